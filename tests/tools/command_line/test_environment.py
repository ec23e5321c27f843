"""Variables that a YAML asks for are set before torch is imported, on every rank."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from lightning_gaudi._core.precision import autocast_ops
from lightning_gaudi.tools.command_line import catalog, environment
from tests.helpers.process import environment as process_environment, run

ROOT = Path(__file__).parents[3]
LAZY, LIST = "PT_HPU_LAZY_MODE", "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has not imported torch, and sets what it likes."""
    monkeypatch.delitem(sys.modules, "torch")
    for name in (LAZY, LIST, "PT_HPU_RECIPE_CACHE_CONFIG"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _file(folder: Path, text: str, name: str = "mine.yaml") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return ["--config", str(folder / name)]


def _appended(arguments: list[str]) -> dict[str, str]:
    *same, last = environment.set_environment(arguments)
    assert same == arguments
    name, _, value = last.partition("=")
    assert name == "--environment"
    found: dict[str, str] = json.loads(value)
    return found


def test_a_file_says_what_is_set(tmp_path: Path) -> None:
    text = f"environment:\n  {LAZY}: 1\n  PT_HPU_RECIPE_CACHE_CONFIG: /tmp/x,false,1024\n"
    arguments = ["fit", *_file(tmp_path, text)]
    expected = {LAZY: "1", "PT_HPU_RECIPE_CACHE_CONFIG": "/tmp/x,false,1024"}
    assert _appended(arguments) == expected
    assert {name: os.environ[name] for name in expected} == expected


def test_nothing_is_set_and_nothing_added_without_the_key(tmp_path: Path) -> None:
    arguments = ["fit", *_file(tmp_path, "data: {seed: 1}\n"), "--data.seed=2"]
    assert environment.set_environment(arguments) == arguments


@pytest.mark.parametrize("word", ["--help", "--print_config"])
def test_nothing_is_set_where_settings_are_shown(tmp_path: Path, word: str) -> None:
    arguments = ["fit", *_file(tmp_path, f"environment: {{{LAZY}: 1}}\n"), word]
    assert environment.set_environment(arguments) == arguments
    assert LAZY not in os.environ


@pytest.mark.parametrize(
    "words", [[f"--environment.{LAZY}=0"], [f"--environment.{LAZY}", "0"], ["--environment", "{}"]]
)
def test_what_is_typed_comes_before_a_file(tmp_path: Path, words: list[str]) -> None:
    arguments = ["fit", *_file(tmp_path, f"environment: {{{LAZY}: 1}}\n"), *words]
    if words[-1] == "{}":
        assert environment.set_environment(arguments) == arguments
        assert LAZY not in os.environ
    else:
        assert _appended(arguments) == {LAZY: "0"}
        assert os.environ[LAZY] == "0"


def test_the_last_file_with_the_key_counts(tmp_path: Path) -> None:
    first = _file(tmp_path, f"environment: {{{LAZY}: 1, HABANA_LOGS: a}}\n", "a.yaml")
    second = _file(tmp_path, "environment: {HABANA_LOGS: b}\n", "b.yaml")
    third = _file(tmp_path, "data: {}\n", "c.yaml")
    assert _appended(["fit", *first, *second, *third]) == {"HABANA_LOGS": "b"}


def test_the_environment_comes_before_a_file_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LAZY, "0")
    arguments = ["fit", *_file(tmp_path, f"environment: {{{LAZY}: 1}}\n")]
    assert _appended(arguments) == {LAZY: "0"}
    said = f"lightning-gaudi: {LAZY} is 0 in your environment, which comes before 1 in --config "
    assert capsys.readouterr().err.startswith(said)
    monkeypatch.setenv("LOCAL_RANK", "1")
    environment.set_environment(arguments)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(LAZY, "1")
    environment.set_environment(arguments)
    assert capsys.readouterr().err == ""


def test_a_file_of_operators_is_relative_to_the_yaml(tmp_path: Path) -> None:
    arguments = ["fit", *_file(tmp_path / "deep", f"environment: {{{LIST}: ops.txt}}\n")]
    with pytest.raises(catalog.UsageError, match=r"deep/ops\.txt does not exist\. Name a file of"):
        environment.set_environment(arguments)
    (tmp_path / "deep" / "ops.txt").write_text("linear\n")
    assert _appended(arguments) == {LIST: str(tmp_path / "deep" / "ops.txt")}
    (tmp_path / "typed.txt").write_text("mm\n")
    typed = _appended([*arguments, f"--environment.{LIST}=typed.txt"])
    assert typed == {LIST: str(tmp_path / "typed.txt")}
    assert os.environ[LIST] == str(tmp_path / "typed.txt")


def test_a_file_where_the_vendor_reads_none_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an installation below /usr or /root: 1.24 would silently keep its own list."""
    first = tmp_path.resolve().parts[1]
    (tmp_path / "ops.txt").write_text("linear\n")
    arguments = ["fit", *_file(tmp_path, f"environment: {{{LIST}: ops.txt}}\n")]
    is_read_from = autocast_ops.is_read_from
    monkeypatch.setattr(
        autocast_ops,
        "is_read_from",
        lambda path: path.parent.name != tmp_path.name and is_read_from(path),
    )
    assert _appended(arguments) == {LIST: str(tmp_path / "ops.txt")}
    copy = Path(os.environ[LIST])
    assert copy.parent != tmp_path
    assert copy.read_text() == "linear\n"
    assert environment.set_environment(arguments)  # again, and what was set is no other choice
    monkeypatch.setattr(autocast_ops, "_UNREAD_BELOW", {first, "tmp"})
    monkeypatch.setattr(autocast_ops, "is_read_from", is_read_from)
    monkeypatch.delenv(LIST)
    with pytest.raises(catalog.UsageError, match=r"reads no file there, nor in .* below /home"):
        environment.set_environment(arguments)


def test_places_that_the_vendor_does_not_read_from() -> None:
    for path in ("/usr/local/lib/x.txt", "/root/x.txt", "/var/tmp/x"):
        assert not autocast_ops.is_read_from(Path(path))
    assert autocast_ops.is_read_from(Path("/home/me/x.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "environment of --config .*is 3, but should be a mapping"),
        ("{PATH: x}", r"environment\.PATH of --config .* is no variable of torch's, Gaudi's"),
        ("{PT_HPU_LAZY_MOD: 1}", "is not read by anything. Did you mean PT_HPU_LAZY_MODE?"),
        ("{PT_HPU_LAZY_MODE: [1]}", r"is \[1\], but should be a string or a number"),
        ("{PT_HPU_LAZY_MODE: true}", "is true, but should be a string or a number, as in PT"),
        ("{PT_HPU_LAZY_MODE: null}", "is null, but should be a string or a number"),
        (f"{{{LIST}: 3}}", "=3 does not exist. Name a file of operators, one a line"),
    ],
)
def test_what_cannot_be_meant_is_a_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(catalog.UsageError, match=message) as raised:
        environment.set_environment(["fit", *_file(tmp_path, f"environment: {text}\n")])
    assert "\n" not in str(raised.value)
    assert LAZY not in os.environ


def test_it_is_too_late_once_torch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    arguments = ["fit", *_file(tmp_path, f"environment: {{{LAZY}: 1}}\n")]
    with pytest.raises(catalog.UsageError, match="has to be set before torch is imported, which"):
        environment.set_environment(arguments)
    assert LAZY not in os.environ
    monkeypatch.setenv(LAZY, "1")
    assert _appended(arguments) == {LAZY: "1"}


SEEN = """
import os
from lightning.pytorch import Callback
from lightning_gaudi import vendor


class Seen(Callback):
    def on_train_start(self, trainer, pl_module):
        import torch
        from habana_frameworks.torch import hpu
        x = torch.ones(8, 8, device=pl_module.device)
        with torch.autocast("hpu", torch.bfloat16):
            dtypes = (x @ x).dtype, torch.nn.functional.softmax(x, 1).dtype
        rank, mode = trainer.global_rank, "lazy" if vendor.is_lazy() else "eager"
        # In one piece: the other rank writes to the same pipe.
        os.write(1, f"\\nSEEN rank {rank} {mode} {dtypes[0]} {dtypes[1]}\\n".encode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_cards", [1, 2])
@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_modes_and_operators_are_effective_on_every_card(
    tmp_path: Path, num_cards: int, mode: str
) -> None:
    """The list leaves softmax out, which the vendor's own has."""
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "ops.txt").write_text("linear\nmatmul\n")
    value = int(mode == "lazy")
    config = f"""
environment: {{{LAZY}: {value}, {LIST}: ops.txt}}
trainer:
  callbacks: [{{class_path: seen.Seen}}]
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args: {{save_dir: logs, name: run}}
"""
    words = ["run", "mrpc", "fit", "--config=simulated", *_file(tmp_path, config)]
    words += [f"--trainer.devices={num_cards}", "--trainer.max_steps=1", "--data.packages=[]"]
    words += ["--data.pairs_per_sentence=1", "--trainer.limit_val_batches=0"]
    env = {"LIGHTNING_GAUDI_SIMULATE": None, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    assert LAZY not in process_environment(env)
    command = [sys.executable, "-m", "lightning_gaudi.tools.command_line", *words]
    said = run(command, cwd=tmp_path, env=env, timeout=300)
    lines = sorted(line for line in said.stdout.splitlines() if line.startswith("SEEN"))
    expected = f"{mode} torch.bfloat16 torch.float32"
    assert lines == [f"SEEN rank {rank} {expected}" for rank in range(num_cards)]
    saved = (tmp_path / "logs" / "run" / "version_0" / "config.yaml").read_text()
    assert f"environment:\n  {LAZY}: '{value}'\n  {LIST}: {tmp_path}/ops.txt\n" in saved
