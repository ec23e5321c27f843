"""Row 10, between hosts: a cable that is cut, one that is slow, and a host that vanishes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.network import INTERFACE, TwoHosts, two_hosts
from tests.launch.started import Started, found, program, started

GROUP_TIMEOUT_S = 90
"""Longer than the ranks of a busy machine need to come."""

WATCHDOG_S = 20

LIMIT_S = WATCHDOG_S + 5.0
"""After which all processes of a host have ended."""

pytestmark = pytest.mark.timeout(900)


@contextlib.contextmanager
def _running(folder: Path, hosts: TwoHosts, **settings: object) -> Iterator[list[Started]]:
    """One job on both hosts, each with two ranks that Lightning starts."""
    command = program(folder, devices=2, num_nodes=2, timeout_s=GROUP_TIMEOUT_S, **settings)
    with contextlib.ExitStack() as stack:
        runs = []
        for host in range(2):
            env = {
                "MASTER_ADDR": hosts.addresses[0],
                "MASTER_PORT": "29500",
                "NODE_RANK": str(host),
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "LIGHTNING_GAUDI_RELIABILITY": f"watchdog_timeout_s={WATCHDOG_S}",
                "SLOW": "1",
            }
            own = folder / str(host)
            own.mkdir()
            runs.append(stack.enter_context(started([*hosts.command(host), *command], own, env)))
        yield runs


def _wait_until_training(folder: Path, runs: list[Started]) -> None:
    end = time.monotonic() + 240
    while len(list(folder.glob("step3-*"))) < 2:
        assert all(run.process.poll() is None for run in runs), "".join(r.output for r in runs)
        assert time.monotonic() < end, "".join(run.output for run in runs)
        time.sleep(0.1)
    time.sleep(2)


def _end(runs: list[Started], began: float) -> float:
    """Wait until each of some hosts has ended with a failure; how long it took."""
    for run in runs:
        run.wait_for_all_to_end(LIMIT_S - (time.time() - began))
        assert run.process.returncode != 0, run.output
    return time.time() - began


def test_both_hosts_end_when_the_cable_is_cut(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with two_hosts() as hosts, _running(tmp_path, hosts, num_batches=40000) as runs:
        _wait_until_training(tmp_path, runs)
        hosts.cut(1)
        took = _end(runs, time.time())
        for host, run in enumerate(runs):
            assert f"ends: rank {2 * (1 - host)} hangs" in run.output
    measured(f"cable cut, watchdog {WATCHDOG_S} s: both hosts ended after {took:.0f} s")


@pytest.mark.parametrize("lost", [0, 1])
def test_the_other_host_ends_when_one_vanishes(
    lost: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with two_hosts() as hosts, _running(tmp_path, hosts, num_batches=40000) as runs:
        _wait_until_training(tmp_path, runs)
        hosts.cut(lost)
        os.killpg(runs[lost].process.pid, signal.SIGKILL)
        took = _end([runs[1 - lost]], time.time())
        assert f"ends: rank {2 * lost} hangs" in runs[1 - lost].output
    measured(f"host {lost} vanished, watchdog {WATCHDOG_S} s: the other ended after {took:.0f} s")


def test_a_slow_cable_changes_nothing_but_time(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with two_hosts() as hosts:
        for host in range(2):
            hosts.slow_down(host, "2mbit")
        began = time.monotonic()
        with _running(tmp_path, hosts) as runs:
            for run in runs:
                assert run.wait(400) == 0, run.output
        took = time.monotonic() - began
    ranks = found(tmp_path)
    assert [rank["world_size"] for rank in ranks] == [4] * 4
    assert {str(rank["weights"]) for rank in ranks} == {str(ranks[0]["weights"])}
    measured(f"a cable of 2 Mbit/s: 4 ranks of 2 hosts agree, {took:.0f} s")
