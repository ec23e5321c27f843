"""A program is rehearsed, and what that says is what the program takes."""

from __future__ import annotations

import functools
import importlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_gaudi._core.memory.owners import holders
from lightning_gaudi._core.memory.report import REST
from lightning_gaudi.tools.plan import picture, plan_module, report
from lightning_gaudi.tools.plan.cards import CARDS, find_cards, with_kept
from lightning_gaudi.tools.plan.measurement import BESIDE
from lightning_gaudi.tools.plan.plan import Planned, plan
from lightning_gaudi.tools.plan.request import Rehearsed, Request, read_results
from tests.helpers.process import environment, is_running
from tests.tools.plan.rehearsing import rehearse

PROJECTS = Path(__file__).parents[1] / "projects"

SCRIPT = """
import lightning.pytorch as pl, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8))

    def training_step(self, batch, batch_idx):
        features, labels = batch
        STEP
        loss = nn.functional.cross_entropy(self.layers(features), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        num_steps = self.trainer.estimated_stepping_batches
        assert num_steps == 300, f"no warm-up of 100 steps lies within {num_steps}"
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 64), torch.randint(8, (64,)))
    trainer = pl.Trainer(max_steps=300, callbacks=[pl.callbacks.ModelCheckpoint("saved")])
    trainer.fit(Model(), DataLoader(data, batch_size=16))
    raise SystemExit("it trained on")
"""


NOTHING_RAN = (
    'nothing in it used a card. Have it train on "hpu", or plan its module with a batch '
    "(lightning_gaudi.tools.plan.plan.plan_module)"
)
PRINTED = 'print("PEAK", torch.hpu.memory_stats()["MaxInUse"])'


def _script(folder: Path, step: str = "pass") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("STEP", step))
    return path


def _plan(folder: Path, *options: str, program: tuple[str, ...]) -> Any:
    command = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "plan",
        *options,
        "--",
        *program,
    ]
    return subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=300
    )


def _make(namespace: str | None) -> Any:
    net = nn.Linear(64, 512)
    if namespace is None:
        return net
    pl = importlib.import_module(namespace)

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(*batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


@pytest.mark.slow
@pytest.mark.parametrize("namespace", [None, "lightning.pytorch", "pytorch_lightning"])
def test_a_module_is_planned_as_it_trains(namespace: str | None) -> None:
    batch = [torch.randn(16, 64)]
    make = functools.partial(_make, namespace)
    (planned,) = plan_module(make, batch, Request(), find_cards("gaudi2"), with_changes=False)
    assert planned.rehearsed is not None, planned.error
    found = planned.rehearsed.categories
    num_weights = 64 * 512 + 512
    assert found["weights"] == 4 * num_weights
    moments = 8 * num_weights if namespace is None else 0  # AdamW's, or its own SGD's
    assert found.get("optimizer state", 0) == pytest.approx(moments, rel=0.01)


@pytest.mark.slow
def test_a_script_is_planned_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    path = _script(tmp_path)
    picture = tmp_path / "plan.svg"
    options = ("--cards", "gaudi2,a100", "--json", "--picture", str(picture))
    done = _plan(tmp_path, *options, program=(sys.executable, str(path)))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    rehearsed = found["rehearsed"]
    num_weights = 64 * 512 + 512 + 512 * 8 + 8
    assert rehearsed["batch_size"] == 16
    assert rehearsed["categories"]["weights"] == 4 * num_weights
    # Of each weight two moments, and a count of steps.
    assert rehearsed["categories"]["optimizer state"] == pytest.approx(8 * num_weights, rel=0.01)
    assert sum(rehearsed["categories"].values()) == rehearsed["peak_bytes"]
    # Forward, and the gradients of weights and of what is between the layers.
    assert found["counted"]["flops"] == 2 * 16 * (64 * 512 + 512 * 8) * 2 + 2 * 16 * 512 * 8
    assert 0 < found["largest"]["a100"] <= found["largest"]["gaudi2"]
    assert picture.read_text().startswith("<svg")
    assert {each.name for each in tmp_path.iterdir()} == {"train.py", "plan.svg"}


@pytest.mark.slow
def test_a_rehearsal_starts_nothing_for_the_workers_of_loaders(tmp_path: Path) -> None:
    step = (
        "from lightning_gaudi._core.workers import start\n"
        "        assert start._server._forkserver_pid is None, 'it has a server of workers'"
    )
    path = _script(tmp_path, step)
    path.write_text(path.read_text().replace("batch_size=16", "batch_size=16, num_workers=2"))
    assert rehearse(tmp_path, (sys.executable, str(path)), Request()).batch_size == 16


def _rehearse(folder: Path, script: Path, *, is_dry: bool) -> dict[str, Any]:
    result, request = folder / f"result{is_dry}", folder / "case"
    env = Request(batch_size=24, result=str(result)).environment(request) | {
        "LIGHTNING_GAUDI_RELIABILITY": "off"
    }
    env["LIGHTNING_GAUDI_SIMULATE_DRY"] = str(int(is_dry))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found: dict[str, Any] = read_results(result)[0]
    assert "rehearsed" in found, (found, done.stderr)
    return found


MADE_LATE = """
import lightning.pytorch as pl, sys, torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

SIZES = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 99}


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        if sys.argv[1] == "at once":
            self.make()

    def make(self):
        self.net = BertForSequenceClassification(BertConfig(**SIZES, intermediate_size=128))

    def configure_model(self):
        if not hasattr(self, "net"):
            self.make()

    def training_step(self, batch, batch_idx):
        return self.net(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    one = {"input_ids": torch.ones(128, dtype=torch.long), "labels": torch.tensor(1)}
    pl.Trainer(max_epochs=100).fit(Model(), DataLoader([one] * 32, batch_size=8))
"""


@pytest.mark.slow
def test_a_model_that_is_made_late_checkpoints_its_activations_as_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MADE_LATE)

    def held(made: str, *options: str) -> int:
        program = (sys.executable, "train.py", made)
        done = _plan(tmp_path, "--cards", "gaudi2", "--json", *options, program=program)
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        rest: int = found["rehearsed"]["categories"][REST]
        return rest

    late = held("late", "--checkpointing")
    assert late == held("at once", "--checkpointing")
    assert late < 0.6 * held("late")


@pytest.mark.slow
def test_a_rehearsal_is_what_a_card_that_computes_measures(tmp_path: Path) -> None:
    script = _script(tmp_path)
    dry = _rehearse(tmp_path, script, is_dry=True)
    assert dry == _rehearse(tmp_path, script, is_dry=False)
    assert dry["rehearsed"]["batch_size"] == 24


@pytest.mark.slow
def test_of_many_micro_batches_four_are_run_and_all_are_counted(tmp_path: Path) -> None:
    scheduler = "callbacks=[pl.callbacks.GradientAccumulationScheduler({0: 8}), "

    def counted(trainer: str) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        script = _script(folder)
        script.write_text(script.read_text().replace("callbacks=[", trainer))
        found: dict[str, Any] = _rehearse(folder, script, is_dry=True)["counted"]
        return found

    three, four, eight = (counted(f"accumulate_grad_batches={n}, callbacks=[") for n in (3, 4, 8))
    assert [each["num_micro_batches"] for each in (three, four, eight)] == [3, 4, 8]
    names = ("flops", "moved_bytes", "num_operators", "fused_bytes", "num_passes")
    for name in names:
        assert four[name] > three[name] > 0
        assert eight[name] == four[name] + 4 * (four[name] - three[name]), name
    assert counted(scheduler) == eight


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["none", "model"])
def test_a_plan_is_what_the_program_takes(
    compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, too: what counts operators must not keep torch from compiling them."""
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", compiled)
    script = _script(tmp_path)
    text = script.read_text().replace('raise SystemExit("it trained on")', PRINTED)
    text = text.replace("randn(64,", "randn(8192,").replace("(8, (64,", "(8, (8192,")
    script.write_text(text.replace("batch_size=16", "batch_size=2048").replace("=100", "=1"))
    program = (sys.executable, str(script))
    (found,) = json.loads(_plan(tmp_path, "--cards", "gaudi2", "--json", program=program).stdout)
    env = environment({"LIGHTNING_GAUDI_SIMULATE": "1"})
    run = subprocess.run(
        program, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    (peak,) = re.findall(r"PEAK (\d+)", run.stdout)
    rehearsed = found["rehearsed"]
    planned = max(rehearsed["peak_bytes"], rehearsed["setup_bytes"])
    assert planned == pytest.approx(int(peak), rel=1e-5)  # some numbers are logged in a fourth step


@pytest.mark.slow
def test_several_cards_are_planned_while_another_program_has_their_port(tmp_path: Path) -> None:
    path = _script(tmp_path)
    at_port = "import os, socket\nport = int(os.environ['MASTER_PORT'])\n"
    at_port += "server = socket.create_server(('', port))\n"
    path.write_text(at_port + path.read_text())
    options = ("--devices", "2", "--strategy", "ddp", "--cards", "gaudi2", "--json")
    done = _plan(tmp_path, *options, program=(sys.executable, str(path)))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["rehearsed"]["categories"]["weights"] > 0


@pytest.mark.slow
def test_what_cannot_be_planned_is_named_with_its_line(tmp_path: Path) -> None:
    text = "features = features[features.repeat(1, 2**15).sum(1) > 0]"
    path = _script(tmp_path, text)
    done = _plan(tmp_path, program=(sys.executable, str(path)))
    assert done.returncode == 2
    line = path.read_text().splitlines().index(f"        {text}")
    guessed = rf"size of a result depended on values .* zeros: .*train\.py:{line + 1} \(aten::index"
    assert re.search(guessed, done.stderr, re.DOTALL), done.stderr
    assert f"{path}, line " in done.stderr


@pytest.mark.slow_but("options3-program3-message3", "options4-program4-can't open file")
@pytest.mark.parametrize(
    ("options", "program", "message"),
    [
        (("--cards", "gaudy2"), ("python",), "There is no card 'gaudy2'. Did you mean 'gaudi2'?"),
        ((), ("no-such-program",), "no-such-program: command not found."),
        ((), (sys.executable, "-c", "print('hello')"), f"{NOTHING_RAN}.\nhello"),
        (
            (),
            (sys.executable, "-c", "import sys; print('mine', file=sys.stderr); sys.exit(7)"),
            "the program ended with status 7, and nothing in it had used a card by then: "
            "mend what it says itself.\nmine",
        ),
        ((), (sys.executable, "no_such_file.py"), "can't open file"),
        (("--devices", "64"), ("python",), "'64' is no number from 1 to 8, the cards of a server"),
    ],
)
def test_mistakes_end_with_2_and_say_why(
    options: tuple[str, ...], program: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = _plan(tmp_path, *options, program=program)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_nothing_that_it_has_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Two forks of the program hang in a step, the program waits for them, and `plan` for it."""
    step = (
        f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, f'pid{{os.getpid()}}').touch()"
    )
    script = _script(tmp_path, f"{step}; time.sleep(600)")
    command = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "plan",
        "--",
        sys.executable,
        script,
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        forks = []
        while len(forks) < 2 and process.poll() is None:
            time.sleep(0.1)
            forks = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    assert len(forks) == 2
    assert not [pid for pid in forks if is_running(pid)]


def test_a_plan_is_told_and_drawn_with_all_that_may_hold_memory(tmp_path: Path) -> None:
    sizes = {
        name: 2**30 * number for number, name in enumerate((*holders(None, []), REST, BESIDE), 1)
    }
    host = {"weights, as they are made": 3 * 2**30, "weights, offloaded": 48}
    found = Rehearsed(
        batch_size=4,
        peak_bytes=sum(sizes.values()),
        setup_bytes=0,
        categories=sizes,
        host=host,
        checkpoint={"with the optimizer": 6 * 2**30, "weights alone": 2 * 2**30},
    )
    planned = Planned(Request(), "", found, largest={"gaudi2": 8})
    lines = [" ".join(each.split()) for each in report.text(planned, find_cards("")).splitlines()]
    assert "gathered weights 5.00 GiB" in lines
    assert "beside tensors 9.00 GiB" in lines
    assert sum("9.46 GiB (Gaudi 2)" in each for each in lines) == 1
    assert "weights, as they are made 3.00 GiB" in lines
    assert not any("offloaded" in each for each in lines)
    assert "a checkpoint: 6.00 GiB with the optimizer, 2.00 GiB weights alone" in lines
    picture.draw([planned], find_cards(""), str(tmp_path / "plan.svg"))
    drawn = (tmp_path / "plan.svg").read_text()
    assert all(f"<title>{name} " in drawn for name in sizes)


def test_cards_are_found_by_name() -> None:
    assert [card.key for card in find_cards("a100, gaudi1")] == ["a100", "gaudi1"]
    assert [card.key for card in find_cards("")] == [*CARDS]


def test_what_is_kept_free_of_a_gaudi_can_be_said() -> None:
    assert [card.kept_bytes / card.memory_bytes for card in find_cards("gaudi1,gaudi2,a100")] == [
        pytest.approx(0.1),
        pytest.approx(0.1),
        0,
    ]
    gaudi, other = with_kept(find_cards("gaudi2,a100"), 50)
    assert gaudi.budget_bytes == gaudi.memory_bytes - 50 * 2**30
    assert other == CARDS["a100"]
    assert with_kept([CARDS["gaudi2"]], None) == [CARDS["gaudi2"]]
    for wrong in (-1, 95):
        with pytest.raises(
            ValueError, match=rf"--keep-free {wrong} GiB is not .* Gaudi 2, .*94.62"
        ):
            with_kept(find_cards("gaudi2"), wrong)


def test_lazy_mode_says_what_no_plan_knows() -> None:
    for is_lazy in (True, False):
        found = Rehearsed(1, 2**30, 0, is_lazy=is_lazy)
        told = report.text(
            Planned(Request(), "", found, largest={"gaudi2": 8}), find_cards("gaudi2")
        )
        assert ("In lazy mode a step is one graph" in told) == is_lazy


@pytest.mark.slow
def test_a_first_gaudi_beside_others_is_planned_as_by_itself() -> None:
    """Its attention is not fused: forks of the same program take a card of its kind."""
    program = [sys.executable, str(PROJECTS / "encoder.py")]
    both = [*plan(program, Request(), find_cards("gaudi1,gaudi2"), with_changes=False)]
    (alone,) = plan(program, Request(), find_cards("gaudi1"), with_changes=False)
    assert [each.on for each in both] == ["", "Gaudi 1"]
    assert both[1] == alone
    assert both[0].rehearsed != both[1].rehearsed
