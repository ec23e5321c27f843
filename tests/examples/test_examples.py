"""The scripts in `examples/`, as a user starts them, reach on HPUs what they reach on the CPU."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.forked import fork_python
from tests.helpers.process import run
from tests.helpers.trainers import run_trainers

FOLDER = Path(__file__).parents[2] / "examples"
NO_PLUGIN = {"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_AUTOLOAD": "0"}
"""The environment of the CPU's runs: Lightning as it is without this package."""


@dataclass(frozen=True)
class Example:
    """A script, how to shorten it, and how far its metric may be from the CPU's."""

    name: str
    few: str = "--max_epochs 1"
    """Arguments for a run of a few seconds."""
    rtol: float = 0
    """On one card, of a short run. 0: all printed digits are equal, as no random number is drawn
    on the device; else the device has drawn other noise than the CPU, which shares its generator
    with the data loader."""
    atol_one: float = 0
    """On one card, of a whole run."""
    atol_two: float = 0
    """On two cards, where the data are shuffled in another way."""
    two_cards: str = ""
    """Arguments for several devices, on whatever accelerator."""

    def command(self, accelerator: str, devices: int, more: str = "") -> list[str]:
        """What a user would type."""
        script, prefix = FOLDER / f"{self.name}.py", "--"
        command = [str(script)]
        if (config := script.with_suffix(".yaml")).exists():
            command, prefix = [str(script), "fit", "--config", str(config)], "--trainer."
        settings = [f"{prefix}accelerator", accelerator, f"{prefix}devices", str(devices)]
        return [*command, *settings, *more.split()]


EXAMPLES = [
    Example(
        "gan", rtol=0.4, atol_one=0.03, atol_two=0.03,
        two_cards="--strategy ddp_find_unused_parameters_true",
    ),
    Example("vae", rtol=0.03, atol_one=0.6, atol_two=1.2),
    Example(
        "language_model", "--trainer.max_steps 5 --trainer.val_check_interval 10",
        rtol=0.01, atol_one=0.02, atol_two=0.05,
    ),
    Example("image_classifier", atol_two=0.04),
    Example("fabric_loop", "--max_epochs 8", atol_two=0.02),
    Example("callbacks", "--max_epochs 4", atol_two=0.3),
    Example("compiled", atol_one=0.004, atol_two=0.02),
    Example("multi_loader", atol_two=0.02),
    Example("contrastive", atol_two=0.04),
    Example("pl_namespace", "--max_epochs 4", rtol=0.1, atol_one=0.08, atol_two=0.08),
]  # fmt: skip
BY_NAME = {example.name: example for example in EXAMPLES}
OTHER_TRAINERS = {"hf_trainer", "accelerate_loop", "trl_sft"}
"""See `test_other_trainers.py`."""
FAST = ("language_model", "fabric_loop", "callbacks")
"""With LightningCLI, Fabric and callbacks."""
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=BY_NAME)


def metric(output: str) -> float:
    """The number in the script's one line for machines."""
    lines = re.findall(r"^metric: \w+ (\S+)$", output, re.MULTILINE)
    assert len(lines) == 1, output
    return float(lines[0])


CLEAN = {"LIGHTNING_GAUDI_SIMULATE_RULES": "error"}
"""No script does what a Gaudi would refuse, slow down or compute otherwise."""


def _start(example: Example, accelerator: str, devices: int, cwd: Path, more: str = "") -> float:
    cwd.mkdir(exist_ok=True)
    simulated = {"LIGHTNING_GAUDI_SIMULATE": "2", "JSONARGPARSE_DEPRECATION_WARNINGS": "off"}
    env = {**simulated, **CLEAN, **(NO_PLUGIN if accelerator == "cpu" else {})}
    if "--sync_batchnorm" in more:
        env["PT_HPU_LAZY_MODE"] = "1"  # where a card has it
        # torch's layer selects the ranks that have rows by a mask, which waits for the device.
        env["LIGHTNING_GAUDI_SIMULATE_RULES"] = "warn"
    more += f" {example.two_cards}" if devices > 1 else ""
    command = [sys.executable, *example.command(accelerator, devices, more)]
    return metric(run(command, env=env, cwd=cwd, timeout=280).stdout)


def _start_all(
    names: list[str], accelerator: str, cwd: Path, env: dict[str, str | None]
) -> dict[str, str]:
    """The outputs of some scripts, shortened, from one process."""
    commands = [BY_NAME[name].command(accelerator, 1, BY_NAME[name].few) for name in names]
    result = fork_python(
        Path(__file__).with_name("run_scripts.py").read_text(),
        json.dumps(commands),
        env={"JSONARGPARSE_DEPRECATION_WARNINGS": "off", **CLEAN, **env},
        cwd=cwd,
        timeout=280,
    )
    return dict(zip(names, json.loads(result.stdout), strict=True))


ShortRun = Callable[[str, str], str]


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """The output of a script, shortened, on the CPU or on one card.

    All fast ones, or all slow ones, run when one is asked for.
    """

    @cache
    def run_all(is_fast: bool, accelerator: str) -> dict[str, str]:
        names = [name for name in BY_NAME if (name in FAST) == is_fast]
        env = NO_PLUGIN if accelerator == "cpu" else {}
        return _start_all(names, accelerator, tmp_path_factory.mktemp(accelerator), env)

    return lambda name, accelerator: run_all(name in FAST, accelerator)[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in BY_NAME],
)
def test_script_does_on_one_card_what_it_does_on_the_cpu(short_run: ShortRun, name: str) -> None:
    on_cpu, on_hpu = (metric(short_run(name, accelerator)) for accelerator in ("cpu", "hpu"))
    assert on_hpu == pytest.approx(on_cpu, rel=BY_NAME[name].rtol, abs=0)


def _run_script(rank: int, command: list[str], cwd: Path) -> str:
    """What the script prints on a rank."""
    os.chdir(cwd)
    sys.argv = command
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(command[0], run_name="__main__")
    return output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fabric_loop"])
def test_script_reaches_the_same_on_two_cards(
    short_run: ShortRun, tmp_path: Path, name: str
) -> None:
    """In ranks that a launcher has started; the script starts its own where it runs slowly."""
    example = BY_NAME[name]
    command = example.command("hpu", 2, example.few)
    outputs = run_trainers(_run_script, tmp_path, command, tmp_path)
    expected = metric(short_run(name, "cpu"))
    assert metric(outputs[0]) == pytest.approx(expected, abs=example.atol_two)


@pytest.mark.slow
@pytest.mark.timeout(600)
@each_example
def test_script_reaches_the_cpus_metric_on_one_and_on_two_cards(
    tmp_path: Path, example: Example
) -> None:
    on_cpu = _start(example, "cpu", 1, tmp_path / "cpu")
    assert _start(example, "hpu", 1, tmp_path / "one") == pytest.approx(
        on_cpu, rel=0, abs=example.atol_one
    )
    assert _start(example, "hpu", 2, tmp_path / "two") == pytest.approx(
        on_cpu, rel=0, abs=example.atol_two
    )


@pytest.mark.slow
def test_image_classifier_with_synchronized_batch_norm(tmp_path: Path) -> None:
    example = BY_NAME["image_classifier"]
    on_cpu = _start(example, "cpu", 1, tmp_path / "cpu")
    on_two = _start(example, "hpu", 2, tmp_path / "two", "--sync_batchnorm")
    assert on_two == pytest.approx(on_cpu, abs=example.atol_two)


@each_example
def test_script_is_lightnings_alone(example: Example) -> None:
    source = (FOLDER / f"{example.name}.py").read_text()
    assert not re.search(r"gaudi|habana|\bhpu", source, re.IGNORECASE)
    assert len(source.splitlines()) < 130


def test_readme_lists_every_script() -> None:
    listed = re.findall(r"\[`(\w+)\.py`\]", (FOLDER / "README.md").read_text())
    assert sorted(listed) == sorted(p.stem for p in FOLDER.glob("*.py"))
    assert {*BY_NAME} == {*listed} - OTHER_TRAINERS
