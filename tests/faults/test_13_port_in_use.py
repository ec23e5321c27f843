"""Row 13: a port that is in use is said at once; where Lightning may choose, it takes another."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.started import found, program, started

LIMIT_S = 3.0


@contextmanager
def _port_in_use() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_a_port_in_use_is_an_error_within_seconds(
    strategy: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    command = program(tmp_path, devices=2, strategy=strategy)
    with _port_in_use() as port:
        env = {"MASTER_PORT": str(port), "TROUBLE": "fit:0:none"}
        with started(command, tmp_path, env) as run:
            began = run.wait_for_trouble()
            while "is in use by another program" not in run.output:
                assert time.time() - began < 60, run.output
                time.sleep(0.02)
            took = time.time() - began
            run.wait_for_all_to_end(15)
            assert run.process.returncode == 1
            assert f"MASTER_PORT={port}, where rank 0 would wait for the others" in run.output
            assert "Set MASTER_PORT to a free port" in run.output
    assert took < LIMIT_S
    measured(f"{strategy}: said after {took:.1f} s")


def test_lightning_takes_another_port_where_it_may_choose(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Two runs of one machine start at once, and neither is told a port."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    first, second = (program(folder, devices=2) for folder in folders)
    env = {"LIGHTNING_GAUDI_SIMULATE": "8"}
    with (
        started(first, folders[0], env | {"HABANA_VISIBLE_MODULES": "0,1"}) as one,
        started(second, folders[1], env | {"HABANA_VISIBLE_MODULES": "2,3"}) as other,
    ):
        assert one.wait() == 0, one.output
        assert other.wait() == 0, other.output
    assert [len(found(folder)) for folder in folders] == [2, 2]
    measured("two runs at once: each with a port of its own")
