"""Programs that never heard of us, audited as a user does it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.process import environment, is_running, run

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
_AUDIT = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "audit"]
_ENV = {"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_COMPILE": "none"}

LOOP = """
import sys
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))).to("hpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    loss = model(torch.ones(2, 4, device="hpu")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if "--reads" in sys.argv:
        print("loss", loss.item(), flush=True)
print("ran to its end")
"""
COMPILED = LOOP.replace(
    "optimizer = ", "model = torch.compile(model, backend='hpu_backend')\noptimizer = "
)


def _audit(
    command: list[str], *options: str, folder: Path, **settings: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the command; return what it printed, and the JSON report."""
    report = folder / "report.json"
    result = run(
        [*_AUDIT, "--json", str(report), *options, "--", *command],
        env=_ENV | settings.pop("env", {}),
        check=False,
        timeout=400,
        **settings,
    )
    return result, json.loads(report.read_text()) if report.exists() else {}


def _python(source: str, *args: str) -> list[str]:
    return [sys.executable, "-c", source, *args]


def _planted(program: Path) -> set[tuple[str, int]]:
    """The rules that a program's comments name, and their lines."""
    return {
        (rule, number)
        for number, line in enumerate(program.read_text().splitlines(), 1)
        for comment in re.findall(r"\S  # (.*)", line)
        for rule in comment.split()
    }


def _found(report: dict[str, Any], program: Path) -> set[tuple[str, int]]:
    return {
        (each["rule"], each["line"]) for each in report["findings"] if each["file"] == str(program)
    }


def test_a_program_is_ended_after_its_steps_and_what_was_found_is_its_status(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.html"
    options = ["--steps", "6", "--html", str(page)]
    result, report = _audit(_python(LOOP, "1000", "--reads"), *options, folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "ran to its end" not in result.stdout
    assert result.stdout.startswith("loss ")  # its own output, in front of ours
    assert (report["num_steps"], report["program_status"]) == (6, 0)
    rules = {each["rule"]: each for each in report["findings"]}
    assert rules.keys() == {"uncompiled", "item-waits"}
    assert rules["item-waits"]["num_steps"] == 3
    assert rules["item-waits"]["line"] == 14
    assert "<string>:14  [item-waits]" in result.stdout
    assert "<h2>2 findings, worst first</h2>" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_program_of_which_nothing_is_to_say_is_clean(mode: str, tmp_path: Path) -> None:
    source, env = (COMPILED, {}) if mode == "eager" else (LOOP, {"PT_HPU_LAZY_MODE": "1"})
    result, report = _audit(_python(source, "5"), folder=tmp_path, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ran to its end\n" in result.stdout
    assert "Nothing was found." in result.stdout
    assert report["num_steps"] == 5
    assert report["ranks"][0]["is_lazy"] == (mode == "lazy")


@pytest.mark.slow
def test_a_program_that_fails_keeps_its_output_and_its_status(tmp_path: Path) -> None:
    source = LOOP + "\nprint('but', file=sys.stderr); sys.exit(7)"
    result, report = _audit(_python(source, "5", "--reads"), folder=tmp_path)
    assert result.returncode == 7
    assert "but\n" in result.stderr
    assert "It failed: the command exited with 7, see above." in result.stdout
    assert report["program_status"] == 7
    assert "item-waits" in {each["rule"] for each in report["findings"]}


@pytest.mark.slow
def test_what_a_card_refuses_fails_the_program_and_is_the_first_finding(tmp_path: Path) -> None:
    source = "import torch\ntorch.ones(2, device='hpu')\ntorch.ones(2).cfloat().to('hpu')"
    result, report = _audit(_python(source), folder=tmp_path)
    assert result.returncode == 1
    assert "GaudiRuleError" in result.stderr
    assert report["findings"][0]["rule"] == "complex-refused"
    assert (report["findings"][0]["weight"], report["findings"][0]["line"]) == ("fails", 3)


@pytest.mark.slow_but("False")
@pytest.mark.parametrize("uses_torch", [True, False])
def test_a_program_without_a_card_cannot_be_audited(uses_torch: bool, tmp_path: Path) -> None:
    source = LOOP.replace("hpu", "cpu") if uses_torch else "print('ran to its end')"
    result, report = _audit(_python(source, "5"), folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "ran to its end\n")
    assert "no process of the command gave a card anything to do" in result.stderr
    assert not report


@pytest.mark.slow
def test_an_interrupt_is_the_programs_and_what_was_met_is_told(tmp_path: Path) -> None:
    command = [*_AUDIT, "--", *_python(LOOP, "100000", "--reads")]
    command[len(_AUDIT) : len(_AUDIT)] = ["--steps", "100000"]
    with subprocess.Popen(
        command, env=environment(_ENV), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(6):
            assert process.stdout.readline().startswith("loss ")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert process.returncode == 130
    assert "the command exited with 130" in out
    assert "[item-waits]" in out


@pytest.mark.slow
def test_nothing_that_the_program_started_is_left(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[2], 'w').write(str(child.pid))\n"
    )
    pid = tmp_path / "pid"
    result, _ = _audit(_python(source + LOOP, "100", str(pid)), "--steps", "4", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert not is_running(int(pid.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cards"), [("lightning", 1), ("lightning", 2), ("fabric", 1), ("transformers", 1)]
)
def test_eight_faults_are_found_at_their_lines(name: str, cards: int, tmp_path: Path) -> None:
    program = PROGRAMS / f"faults_{name}.py"
    argument = str(tmp_path) if name == "transformers" else str(cards)
    command = [sys.executable, str(program), argument]
    options = ["--cards", str(cards), "--steps", "12"]
    result, report = _audit(command, *options, folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "trained to the end" not in result.stdout
    planted = _planted(program)
    assert len(planted) == 8
    assert planted <= _found(report, program)
    assert [len(rank["steps"]) for rank in report["ranks"]] == [12] * cards


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize(
    "recipe",
    ["bert_pretraining", "mrpc", "t5_summarization", "text_generation", "text_to_image"],
)
def test_recipes_are_clean(recipe: str, mode: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "run", recipe, "fit"]
    command += ["--config", "simulated", f"--trainer.default_root_dir={tmp_path}"]
    env = {"LIGHTNING_GAUDI_COMPILE": None, "PT_HPU_LAZY_MODE": "1" if mode == "lazy" else None}
    result, report = _audit(command, folder=tmp_path, cwd=ROOT, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert report["findings"] == []
    assert report["num_steps"] == 20


@pytest.mark.slow
def test_ranks_of_a_program_that_ends_by_itself_are_told_apart(tmp_path: Path) -> None:
    """They have left their group when they end."""
    program = tmp_path / "loop.py"
    program.write_text(
        "import torch, habana_frameworks.torch.distributed.hccl\n"
        f"torch.distributed.init_process_group('hccl')\n{LOOP}"
        "torch.distributed.destroy_process_group()\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command = [*launcher, str(program), "5", "--reads"]
    result, report = _audit(command, "--cards", "2", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("ran to its end") == 2
    assert [(rank["rank"], rank["world_size"]) for rank in report["ranks"]] == [(0, 2), (1, 2)]
    assert {tuple(each["ranks"]) for each in report["findings"]} == {(0, 1)}


@pytest.mark.slow
def test_ranks_that_multiprocessing_started_end_with_their_parent(tmp_path: Path) -> None:
    source = (PROGRAMS / "faults_lightning.py").read_text()
    program = tmp_path / "spawned.py"
    program.write_text(source.replace("devices=devices,", "devices=2, strategy='ddp_spawn',"))
    command = [sys.executable, str(program)]
    result, report = _audit(command, "--cards", "2", "--steps", "5", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert [rank["is_ended"] for rank in report["ranks"]] == [True, True]
