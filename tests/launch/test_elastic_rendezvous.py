"""Ranks agree on a name for their part of a store, whatever is left in it."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only

from lightning_gaudi.distributed.elastic_rendezvous import (
    agree_on_name,
    claim_rank,
    loopback,
    own_store,
)
from tests.helpers.ports import free_port

TIMEOUT = timedelta(seconds=60)


def _agree(store: dist.Store, world_size: int) -> set[str]:
    with ThreadPoolExecutor(world_size) as pool:
        ranks = range(world_size)
        return set(pool.map(lambda rank: agree_on_name(store, rank, world_size), ranks))


def _store() -> dist.Store:
    store = dist.HashStore()
    store.set_timeout(TIMEOUT)
    return store


def test_each_attempt_has_a_name_of_its_own() -> None:
    store = _store()
    first, second, third = (_agree(store, 4) for _ in range(3))
    assert len(first) == len(second) == len(third) == 1
    assert len(first | second | third) == 3


def test_another_number_of_ranks_agrees_in_the_same_store() -> None:
    store = _store()
    assert len({name for size in (4, 1, 2, 6) for name in _agree(store, size)}) == 4


def test_a_rank_that_died_while_it_met_leaves_nothing_that_counts() -> None:
    """Ranks 1 and 2 said hello; rank 0 answered, and all died before they took the name."""
    store = _store()
    for rank in (1, 2):
        store.set(f"lightning_gaudi/said/{store.add('lightning_gaudi/said/all', 1)}", f"{rank} x")
        store.set("lightning_gaudi/answer/x", "old")
    store.add("lightning_gaudi/said/all", 1)  # the third died before it said anything
    names = _agree(store, 3)
    assert len(names) == 1
    assert "old" not in names


def test_rank_0_names_who_did_not_come() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=2))
    with ThreadPoolExecutor() as pool:
        came = pool.submit(agree_on_name, store, 2, 4)
        with pytest.raises(TimeoutError, match=r"Timed out after 2 s: rank 1, 3 did not come"):
            agree_on_name(store, 0, 4)
        assert came.result()


def test_another_rank_says_that_rank_0_did_not_come() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(TimeoutError, match=r"rank 0 did not come to the store of torchrun"):
        agree_on_name(store, 1, 2)


@pytest.mark.parametrize(
    ("address", "listens_on"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.9.9.9", "127.9.9.9"),
        ("::1", "::1"),
        ("localhost", "127.0.0.1"),
        ("10.0.0.1", None),
        ("node-0", None),
    ],
)
def test_a_loopback_address_is_one_that_reaches_this_machine_alone(
    address: str, listens_on: str | None
) -> None:
    assert loopback(address) == listens_on


def test_the_store_of_one_machine_listens_on_its_loopback_address_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name, value in {"ADDR": "127.0.0.1", "PORT": str(port)}.items():
        monkeypatch.setenv(f"MASTER_{name}", value)
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)  # which the ranks set
    ranks = [LightningEnvironment(), LightningEnvironment()]
    for rank, environment in enumerate(ranks):
        environment.set_world_size(2)
        environment.set_global_rank(rank)
    with ThreadPoolExecutor(2) as pool:  # each waits for the other
        stores = [*pool.map(lambda each: own_store(each, TIMEOUT), ranks)]
    stores[1].set("key", "value")
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    tables = [*lines, *(x.split() for x in Path("/proc/net/tcp6").read_text().splitlines()[1:])]
    listening = [each[1] for each in tables if each[3] == "0A"]
    assert [each for each in listening if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_rank_that_appears_twice_is_refused() -> None:
    store = _store()
    for rank in range(3):
        claim_rank(store, rank, 3)
    here = rf"{re.escape(socket.gethostname())}, process {os.getpid()}"
    message = rf"say that they are rank 1 of 3: {here}, and {here}\. Start each with a rank of its"
    with pytest.raises(MisconfigurationException, match=message):
        claim_rank(store, 1, 3)
