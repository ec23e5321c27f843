"""Ranks that end as a fork of `multiprocessing` does, which runs no `atexit`."""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch.distributed as dist

from lightning_gaudi._core import collectives
from lightning_gaudi._core.processes import farewell
from tests.helpers.ranks import call_forked
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_checkpoint_cases import model_of, part_of, trainer_of

LATE_S = 3.0


def _ends_late(rank: int, late: int) -> str:
    trainer: pl.Trainer = trainer_of("ddp", 2, max_epochs=1)
    trainer.fit(model_of("ddp"), part_of("ddp", rank, 2))
    if rank == late:
        time.sleep(LATE_S)  # the other one's function has returned
        store = dist.distributed_c10d._get_default_store()
        store.set("late", "")
        return bytes(store.get("late")).decode() + "ended late"
    return "ended"


@pytest.mark.slow
def test_rank_0_keeps_the_store_for_those_who_still_need_it(tmp_path: Path) -> None:
    assert run_trainers(_ends_late, tmp_path, 1) == ["ended", "ended late"]


@pytest.mark.slow
def test_a_rank_that_waits_at_its_end_is_not_blamed(tmp_path: Path) -> None:
    assert run_trainers(_ends_late, tmp_path, 0) == ["ended late", "ended"]


def _exports(rank: int, folder: Path) -> str:
    """Rank 0 goes on alone, and the other one has use for what it does."""
    trainer: pl.Trainer = trainer_of("ddp", 2, max_epochs=1)
    trainer.fit(model_of("ddp"), part_of("ddp", rank, 2))
    exported, end = folder / "exported", time.monotonic() + 60
    if rank == 0:
        dist.destroy_process_group()
        exported.touch()
        return "exported"
    while not exported.exists() and time.monotonic() < end:
        time.sleep(0.1)
    dist.destroy_process_group()
    return "found" if exported.exists() else "waited in vain"


@pytest.mark.slow
def test_no_rank_waits_for_others_to_destroy_their_groups(tmp_path: Path) -> None:
    assert run_trainers(_exports, tmp_path, tmp_path) == ["exported", "found"]


def _end_by_agreement(folder: Path) -> None:
    """As after SIGTERM to all of several forks: each ends with the status that they agreed on."""
    gc.freeze()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_agrees_to_end, args=(rank, folder)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    (folder / "result").write_text(json.dumps([each.exitcode for each in ranks]))


def _agrees_to_end(rank: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "where"), 2)
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        store.set("port", str(server.port))
    else:
        server = dist.TCPStore("127.0.0.1", int(store.get("port")), 2)
    dist.init_process_group("hccl", store=server, rank=rank, world_size=2)
    dist.barrier()
    farewell.note_agreement()
    if rank == 1:
        time.sleep(LATE_S)
        server.set("late", "")
        assert server.get("late") == b""
    raise SystemExit(143)


@pytest.mark.slow
def test_rank_0_keeps_the_store_where_all_have_agreed_to_end(tmp_path: Path) -> None:
    call_forked(_end_by_agreement, tmp_path, timeout=100)
    assert json.loads((tmp_path / "result").read_text()) == [143, 143]


def test_a_store_that_leaves_once_all_have_heard_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 asks for something when its thread has already told rank 0 that it may leave."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    both = [farewell.Farewell(None, "end", store, rank, 2) for rank in range(2)]

    def gone() -> None:
        assert both[1]._is_told.wait(60)
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(both[1], "_who_has_died", gone)
    for each in both:
        each.listen()
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(farewell.Farewell.wait, both)]
    for each in both:
        each.close()
    assert found == [None, None]


def _does_another_thing(rank: int) -> str:
    """As where rank 1 has fewer batches: it is at the end of its epoch, rank 0 takes a step."""
    trainer: pl.Trainer = trainer_of("ddp", 2, max_epochs=1)
    trainer.fit(model_of("ddp"), part_of("ddp", rank, 2))
    agreement = collectives.StopAgreement()
    agreement.agree(0)
    agreement.finish() if rank == 1 else agreement.agree(0)
    with pytest.raises(RuntimeError) as caught:
        collectives.decide(True, all_ranks=True) if rank == 1 else agreement.finish()
    assert collectives.decide(True, all_ranks=True)
    assert not collectives.decide(rank == 1, all_ranks=True)
    assert collectives.decide(rank == 1, all_ranks=False)
    assert not collectives.decide(False, all_ranks=False)
    return str(caught.value)


def test_ranks_with_more_and_fewer_batches_are_told_so(tmp_path: Path) -> None:
    """Not that gloo ends the process, or takes one's vote for another's."""
    more, fewer = run_trainers(_does_another_thing, tmp_path)
    assert "begins another step of training, but another rank wants a decision" in more
    assert "rank 1, in step 3, the end of the fit, wants a decision" in fewer
    assert "but another rank begins another step of training" in fewer
    assert "an IterableDataset must yield as many on each rank" in more
