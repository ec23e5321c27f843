"""Programs that a Gaudi would refuse, slow down or compute otherwise, and one that is clean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.forked import fork_python
from tests.helpers.process import run

FOLDER = Path(__file__).with_name("programs")
LAZY = {"PT_HPU_LAZY_MODE": "1"}
GAUDI1 = {"LIGHTNING_GAUDI_SIMULATE_CARD": "gaudi1"}
PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "float64": ("float64-demoted", {}),
    "masked_loss": ("mask-index-dynamic", {}),
    "spectrum": ("fft-refused", {}),
    "nuclear_norm": ("svd-on-cpu", {}),
    "classes_of_batch": ("unique-dynamic", {}),
    "repeated_rows": ("repeat-interleave-dynamic", {}),
    "gamma_noise": ("gamma-samples-on-cpu", {}),
    "half_precision": ("float16-refused-on-gaudi1", GAUDI1),
    "hashed_ids": ("int64-as-int32", LAZY),
    "captured_counter": ("graph-python-state", LAZY),
    "stale_mask": ("graph-stale-value", LAZY),
}
"""Which rule each meets, at the line marked `# here`, and on what."""


def _place(program: str) -> str:
    path = FOLDER / f"{program}.py"
    lines = path.read_text().splitlines()
    [number] = [i for i, line in enumerate(lines, 1) if line.endswith("# here")]
    return f"{path.relative_to(Path.cwd())}:{number}"


@pytest.mark.slow_but("float64")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_line_is_an_error_that_says_what_to_write(program: str) -> None:
    key, env = PROGRAMS[program]
    result = fork_python(
        "import lightning_gaudi, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')",
        str(FOLDER / f"{program}.py"),
        env=env | {"LIGHTNING_GAUDI_SIMULATE_RULES": "error"},
        check=False,
    )
    assert result.returncode == 1
    *_, message = result.stderr.strip().splitlines()
    assert f"GaudiRuleError: {_place(program)}: " in message
    assert "a Gaudi " in message
    assert message.endswith(f"[{key}]")


@pytest.mark.slow_but("masked_loss-1")
@pytest.mark.parametrize(("program", "status"), [("masked_loss", 1), ("clean", 0)])
def test_the_command_line_fails_where_a_gaudi_would_mind(program: str, status: int) -> None:
    command = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "simulate",
        "--rules",
        "error",
        "--",
    ]
    path = FOLDER / f"{program}.py"
    result = run(
        [*command, sys.executable, str(path)], env={"LIGHTNING_GAUDI_SIMULATE": None}, check=False
    )
    assert result.returncode == status, result.stderr
    assert ("GaudiRuleError" in result.stderr) is (status == 1)


@pytest.mark.parametrize("mode", [{}, LAZY], ids=["eager", "lazy"])
def test_a_clean_program_meets_no_rule(mode: dict[str, str]) -> None:
    source = """
        import lightning_gaudi, runpy, sys
        from lightning_gaudi.simulator import rules
        runpy.run_path(sys.argv[1], run_name="__main__")
        assert rules.findings() == [], rules.findings()
    """
    env = mode | {"LIGHTNING_GAUDI_SIMULATE_RULES": "warn"}
    fork_python(source, str(FOLDER / "clean.py"), env=env)
