"""Memory of the card: what counts against its capacity, and what happens past it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import _hpu_sim
import pytest
import torch

from tests.helpers import vendor_names
from tests.helpers.forked import fork_python

KIB, MIB = 1 << 10, 1 << 20


def _in_use() -> int:
    return int(_hpu_sim.memory_stats()["InUse"])


@pytest.fixture(scope="module")
def _frozen() -> Iterator[None]:
    """What is there before does not take the garbage collector's time; the card is taken."""
    torch.empty(1, device="hpu")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_garbage(_frozen: None) -> None:
    """Tensors in the garbage of other tests are freed before, and not while, bytes are counted."""
    gc.collect()


@pytest.fixture
def room() -> Iterator[int]:
    """1 MiB more than what is in use; the limit of before is put back."""
    limit = _hpu_sim.memory_stats()["Limit"]
    _hpu_sim.set_memory_limit(_in_use() + MIB)
    yield MIB
    _hpu_sim.set_memory_limit(limit)


def test_stats_have_the_vendors_keys() -> None:
    assert set(_hpu_sim.memory_stats()) == set(vendor_names.MEMORY_STATS)


def test_bytes_are_counted_until_the_last_reference_goes() -> None:
    before = _in_use()
    tensor = torch.zeros(256, device="hpu")
    view = tensor[:8]
    assert _in_use() == before + KIB
    del tensor
    assert _in_use() == before + KIB
    del view
    assert _in_use() == before


def test_results_of_operators_count_like_allocations() -> None:
    tensor = torch.ones(256, device="hpu")
    before = _in_use()
    total = tensor + tensor
    assert _in_use() == before + KIB
    del total
    assert _in_use() == before


def test_peak_is_the_most_since_its_reset() -> None:
    _hpu_sim.reset_peak_memory_stats()
    before = _in_use()
    torch.zeros(256, device="hpu")
    assert _hpu_sim.memory_stats()["MaxInUse"] == before + KIB
    _hpu_sim.reset_peak_memory_stats()
    assert _hpu_sim.memory_stats()["MaxInUse"] == before


def test_accumulated_counters_reset_and_active_ones_do_not() -> None:
    kept = torch.zeros(256, device="hpu")
    _hpu_sim.reset_accumulated_memory_stats()
    before = _hpu_sim.memory_stats()
    assert (before["NumAllocs"], before["NumFrees"], before["MaxAllocSize"]) == (0, 0, 0)
    assert before["ActiveAllocs"] >= 1
    torch.zeros(512, device="hpu")
    after = _hpu_sim.memory_stats()
    assert (after["NumAllocs"], after["NumFrees"], after["MaxAllocSize"]) == (1, 1, 2 * KIB)
    assert after["TotalSystemAllocs"] == before["TotalSystemAllocs"] + 1
    assert after["TotalActiveAllocs"] == before["TotalActiveAllocs"]
    assert kept.sum() == 0


@pytest.mark.usefixtures("room")
def test_allocation_past_the_limit_names_the_figures_and_a_way_out() -> None:
    with pytest.raises(RuntimeError, match=r"tried to allocate 4\.00 MiB; .* in use"):
        torch.empty(MIB, device="hpu")
    with pytest.raises(RuntimeError, match=r"\(peak .*\)\. Try a smaller micro batch"):
        torch.empty(MIB, device="hpu")


@pytest.mark.usefixtures("room")
def test_result_past_the_limit_is_refused_and_given_back() -> None:
    column, row = torch.ones(1024, 1, device="hpu"), torch.ones(1, 1024, device="hpu")
    before = _in_use()
    with pytest.raises(RuntimeError, match="HPU out of memory"):
        column + row
    assert _in_use() == before
    assert (column + 1).sum() == 2048


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_argument_that_cannot_grow_keeps_its_value(room: int) -> None:
    column, row = torch.ones(1024, 1, device="hpu"), torch.ones(1, 1024, device="hpu")
    out = torch.full((4,), 7.0, device="hpu")
    before = _in_use()
    with pytest.raises(RuntimeError, match="HPU out of memory"):
        torch.add(column, row, out=out)
    assert _in_use() == before
    assert out.tolist() == [7.0] * 4
    assert out.mul_(2).tolist() == [14.0] * 4  # by the CPU's kernel, on the same memory
    _hpu_sim.set_memory_limit(before + 8 * room)
    assert torch.add(column, row, out=out).sum() == 2 * 1024 * 1024


@pytest.mark.usefixtures("room")
def test_backward_past_the_limit_leaves_the_process_usable() -> None:
    weight = torch.ones(1, 128, device="hpu", requires_grad=True)
    inputs = torch.ones(1024, 1, device="hpu")
    with pytest.raises(RuntimeError, match="HPU out of memory"):
        (inputs * weight).exp().square().sum().backward()
    _hpu_sim.set_memory_limit(0)
    (inputs * weight).sum().backward()
    assert torch.equal(weight.grad.cpu(), torch.full((1, 128), 1024.0))


def test_host_that_has_not_the_memory_is_told_from_a_full_card() -> None:
    limit = _hpu_sim.memory_stats()["Limit"]
    _hpu_sim.set_memory_limit(0)
    before = _in_use()
    try:
        with pytest.raises(torch.OutOfMemoryError, match="the host that simulates it does not"):
            torch.empty(1 << 45, dtype=torch.uint8, device="hpu")
    finally:
        _hpu_sim.set_memory_limit(limit)
    assert _in_use() == before


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"number of bytes, or 0 for none, got -1"):
        _hpu_sim.set_memory_limit(-1)


def test_storage_that_is_freed_and_grown_is_counted() -> None:
    before = _in_use()
    tensor = torch.ones(256, device="hpu")
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert _in_use() == before
    storage.resize_(KIB)
    assert _in_use() == before + KIB


def test_pinned_memory_is_on_the_host_and_not_counted() -> None:
    before = _in_use()
    pinned = torch.ones(256).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(256).is_pinned()
    assert _in_use() == before


def test_forked_process_is_refused_the_card_of_its_parent() -> None:
    source = """
        import multiprocessing, torch

        def work(tensor, answers):
            try:
                answers.put(str((tensor + 1).sum().item()))
            except RuntimeError as error:
                answers.put(str(error))

        tensor = torch.ones(3, device="hpu")
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        process = context.Process(target=work, args=(tensor, answers))
        process.start()
        print(answers.get(timeout=60))
        process.join()
    """
    assert "Cannot use the HPU in a forked process" in fork_python(source).stdout


def test_forked_process_may_use_a_card_that_its_parent_does_not() -> None:
    source = """
        import multiprocessing, torch

        def work(answers):
            answers.put((torch.ones(3, device="hpu") + 1).sum().item())

        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        process = context.Process(target=work, args=(answers,))
        process.start()
        print(answers.get(timeout=60))
        process.join()
    """
    assert fork_python(source).stdout.strip() == "6.0"


def test_a_command_of_a_notebook_is_no_fork_beside_a_card() -> None:
    source = """
        import os, pty, torch
        torch.ones(1, device="hpu")
        pty.spawn(["true"])
    """
    assert "fork-beside-card" not in fork_python(source).stderr


def test_workers_of_a_loader_fork_beside_a_used_card() -> None:
    source = """
        import torch
        from torch.utils.data import DataLoader

        weight = torch.ones(1, device="hpu")
        loader = DataLoader(torch.arange(8.0), batch_size=4, num_workers=2,
                            multiprocessing_context="fork")
        print([(batch.to("hpu") * weight).sum().item() for batch in loader])
    """
    assert fork_python(source).stdout.strip() == "[6.0, 22.0]"


AT_START = 128 + 2 * 6 * 1024 * 128
"""A header, and the pool of small chunks, which the vendor's allocator adds twice."""

COUNTED = """
import torch
def in_use():
    return torch.hpu.memory_stats()["InUse"]
held = [torch.empty(1, dtype=torch.uint8, device="hpu")]
start = in_use()
print(start)
for num_bytes in (128, 129, 256, 1000):
    before = in_use()
    held.append(torch.empty(num_bytes, dtype=torch.uint8, device="hpu"))
    print(num_bytes, in_use() - before)
before = in_use()
held += [torch.empty(1, device="hpu") for _ in range(6 * 1024)]
print(in_use() - before)
held.clear()
print(in_use() - start)
held = [torch.empty(1, device="hpu") for _ in range(6 * 1024)]
print(in_use() - start)
"""


@pytest.mark.slow_but("None-4194304")
@pytest.mark.parametrize(("gib", "workspace"), [(None, 4 * MIB), ("0", 4 * MIB), ("3", 3 << 30)])
def test_what_a_card_takes_beside_tensors_is_counted_as_the_vendors_pool_does(
    gib: str | None, workspace: int
) -> None:
    """Source: bridge 1.19.0, CoalescedStringentPoolAllocator.cpp, device.cpp."""
    out = fork_python(COUNTED, env={"PT_HPU_INITIAL_WORKSPACE_SIZE": gib}).stdout
    start, *sizes, overflow, left, again = out.splitlines()
    assert int(start) == AT_START + workspace
    assert sizes == ["128 0", "129 256", "256 256", "1000 1024"]
    # Two small chunks were taken before, so that as many of these did not fit into the pool.
    assert (overflow, left, again) == (str(2 * 128), "0", "0")


def test_a_peak_says_what_no_tensor_holds() -> None:
    source = """
        import torch
        from lightning_gaudi.simulator.memory import MemoryLog
        log = MemoryLog()
        kept = torch.empty(1000, dtype=torch.uint8, device="hpu")
        large = torch.empty(5000, dtype=torch.uint8, device="hpu")
        del large
        peak = log.peak()
        log.close()
        stats = torch.hpu.memory_stats()
        print(peak.num_bytes == stats["MaxInUse"], sorted(peak.live.values())[-2:])
        print(peak.beside_tensors - stats["InUse"] + 1024)
        late = MemoryLog()
        print(late.peak().num_bytes < 0, late.peak().beside_tensors)
    """
    first, rounding, late = fork_python(source).stdout.splitlines()
    assert first == "True [1000, 5000]"
    assert int(rounding) == (1024 - 1000) + (5120 - 5000)
    assert late == f"False {AT_START + 4 * MIB}"


def test_a_size_of_the_workspace_that_is_no_number_is_an_error() -> None:
    result = fork_python("import torch", env={"PT_HPU_INITIAL_WORKSPACE_SIZE": "much"}, check=False)
    assert "PT_HPU_INITIAL_WORKSPACE_SIZE='much' is no number of GiB" in result.stderr
