"""Numbers that a launcher, or anybody, has put into the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_gaudi
from lightning_gaudi.distributed.cluster import OpenMPIEnvironment
from lightning_gaudi.strategies.jobs import find_job
from lightning_gaudi.untrusted import read_integer

NAMES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "0x1", "9" * 5000, "1e3", "\x1b[2J", "1_0"])
def test_what_is_no_number_is_named(value: str) -> None:
    for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        with pytest.raises(ValueError, match=f"^{name}=.* should be a whole number") as raised:
            find_job({"SLURM_JOB_ID": "1", name: value})
        assert "\x1b" not in str(raised.value)
        assert len(str(raised.value)) < 400


def test_numbers_are_read() -> None:
    assert read_integer("A", environment={"A": " 12 "}) == 12
    assert read_integer("A", 3, environment={}) == read_integer("A", 3, environment={"A": ""}) == 3
    assert read_integer("A", -1, at_least=-1, environment={"A": "-1"}) == -1
    with pytest.raises(ValueError, match=r"^A=not set, but should be a whole number of at least 1"):
        read_integer("A", at_least=1, environment={})


def test_sizes_of_open_mpi_are_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv(NAMES[1], "0")
    monkeypatch.setenv(LOCAL_RANK, "0")
    assert OpenMPIEnvironment.detect()
    assert OpenMPIEnvironment().global_rank() == 0
    for name, value in ((NAMES[0], "0"), (NAMES[2], "0"), (NAMES[1], "x"), (LOCAL_RANK, "")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(ValueError, match=f"^{name}="):
                OpenMPIEnvironment.detect() and OpenMPIEnvironment().world_size()


def test_no_number_is_read_in_another_way() -> None:
    """The stand-in's ranks that are alone are the vendor's business."""
    pattern = re.compile(r"\bint\((?:os\.)?environ\b(?!.*is_lazy)")
    root = Path(lightning_gaudi.__file__).parent
    found = [path.name for path in root.rglob("*.py") if pattern.search(path.read_text())]
    assert set(found) <= {"_alone.py", "switches.py"}
