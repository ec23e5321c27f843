"""HCCL on two ranks. All checks run in one spawn; each is a test of its own here."""

import copy
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from lightning_gaudi import simulator
from tests.helpers.ranks import run_ranks
from tests.simulator import checks

_NUM_RANKS = 2
_RANK_SUM = 3.0  # of rank + 1


def _filled(value, size=2, **options):
    return torch.full((size,), float(value), device="hpu").to(**options)


def _mine(size=2):
    return _filled(dist.get_rank() + 1, size)


def _zeros(num_tensors=_NUM_RANKS, size=2):
    return [_filled(0, size) for _ in range(num_tensors)]


def check_backend(rank):
    assert dist.get_backend() == "hccl"
    assert dist.get_default_backend_for_device("hpu") == "hccl"


def check_all_reduce_sum(rank):
    tensor = _mine()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [_RANK_SUM] * 2
    assert tensor.device == torch.device("hpu:0")


def check_all_reduce_average(rank):
    tensor = _mine()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [_RANK_SUM / 2] * 2
    integers = torch.tensor([rank, 5], device="hpu")
    dist.all_reduce(integers, op=dist.ReduceOp.AVG)
    assert integers.tolist() == [0, 5]


def check_all_reduce_of_each_dtype(rank):
    for dtype in (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8),
    ):
        tensor = _filled(rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.dtype == dtype
        assert tensor.tolist() == [3, 3], dtype
    flag = torch.tensor([rank == 0, False], device="hpu")
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    assert flag.tolist() == [True, False]


def check_all_reduce_of_a_view(rank):
    whole = torch.arange(6.0, device="hpu").view(2, 3)
    dist.all_reduce(whole[1])
    assert whole.tolist() == [[0, 1, 2], [6, 8, 10]]


def check_all_reduce_in_inference_mode(rank):
    with torch.inference_mode():
        tensor = _mine()
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [_RANK_SUM / 2] * 2


def check_all_reduce_coalesced(rank):
    tensors = [_mine(), _mine(3)]
    with dist._coalescing_manager(device=torch.device("hpu")):
        for tensor in tensors:
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert [t.tolist() for t in tensors] == [[_RANK_SUM / 2] * 2, [_RANK_SUM / 2] * 3]


def check_broadcast(rank):
    tensor = _mine()
    dist.broadcast(tensor, src=1)
    assert tensor.tolist() == [2, 2]


def check_reduce(rank):
    for op, expected in ((dist.ReduceOp.SUM, _RANK_SUM), (dist.ReduceOp.AVG, _RANK_SUM / 2)):
        tensor = _mine()
        dist.reduce(tensor, dst=1, op=op)
        if rank == 1:
            assert tensor.tolist() == [expected] * 2


def check_all_gather(rank):
    outputs = _zeros()
    dist.all_gather(outputs, _mine())
    assert [output.tolist() for output in outputs] == [[1, 1], [2, 2]]


def check_all_gather_into_tensor(rank):
    output = _filled(0, 4)
    dist.all_gather_into_tensor(output, _mine())
    assert output.tolist() == [1, 1, 2, 2]


def check_all_gather_into_tensor_coalesced(rank):
    outputs = _zeros(size=4)
    with dist._coalescing_manager(device=torch.device("hpu")):
        for output in outputs:
            dist.all_gather_into_tensor(output, _mine())
    assert [output.tolist() for output in outputs] == [[1, 1, 2, 2]] * 2


def check_gather(rank):
    outputs = _zeros() if rank == 0 else None
    dist.gather(_mine(), outputs, dst=0)
    if outputs is not None:
        assert [output.tolist() for output in outputs] == [[1, 1], [2, 2]]


def check_scatter(rank):
    output = _filled(0)
    dist.scatter(output, [_filled(10), _filled(11)] if rank == 0 else None, src=0)
    assert output.tolist() == [10 + rank] * 2


def check_lists_of_unequal_tensors_are_refused(rank):
    parts = [_filled(1, 2), _filled(2, 3)]
    for refused in (
        lambda: dist.reduce_scatter(_filled(0, 2 + rank), parts),
        lambda: dist.all_to_all(_zeros(size=2 + rank), parts),
    ):
        with pytest.raises(RuntimeError, match=r"lists of tensors of one size, got \d and \d"):
            refused()


def check_reduce_scatter(rank):
    parts = [_filled(1), _filled(2)]
    output = _filled(0)
    dist.reduce_scatter(output, parts)
    assert output.tolist() == [2.0 * (rank + 1)] * 2
    assert parts[0].tolist() == [1, 1]  # the input stays


def check_reduce_scatter_tensor(rank):
    for op, factor in ((dist.ReduceOp.SUM, 2), (dist.ReduceOp.AVG, 1), (dist.ReduceOp.MAX, 1)):
        given = torch.arange(4.0, device="hpu")
        output = _filled(0)
        dist.reduce_scatter_tensor(output, given, op=op)
        assert output.tolist() == [factor * 2.0 * rank, factor * (2.0 * rank + 1)]
        assert given.tolist() == [0, 1, 2, 3]


def check_reduce_scatter_tensor_coalesced(rank):
    outputs = _zeros()
    with dist._coalescing_manager(device=torch.device("hpu")):
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.arange(4.0, device="hpu"))
    assert [output.tolist() for output in outputs] == [[4.0 * rank, 4.0 * rank + 2]] * 2


def check_all_to_all(rank):
    outputs = _zeros()
    dist.all_to_all(outputs, [_filled(10 * rank + i) for i in range(2)])
    assert [output.tolist() for output in outputs] == [[10.0 * i + rank] * 2 for i in (0, 1)]


def check_all_to_all_single(rank):
    output = _filled(0)
    dist.all_to_all_single(output, torch.arange(2.0, device="hpu") + 10 * rank)
    assert output.tolist() == [rank, 10 + rank]


def check_send_and_receive(rank):
    tensor = _mine()
    if rank == 0:
        dist.send(tensor, dst=1)
        return
    assert dist.recv(tensor, src=0) == 0
    assert tensor.tolist() == [1, 1]


def check_futures_of_point_to_point_works(rank):
    received = _filled(0, 2**16)
    works = [dist.isend(_mine(2**16), 1 - rank), dist.irecv(received, 1 - rank)]
    doubled = works[1].get_future().then(lambda future: future.value()[0] * 2)
    works[0].get_future().wait()  # in the same order on both: neither may keep the other
    assert doubled.wait()[0] == 2 * (2 - rank)
    for work in works:
        assert work.wait()
        assert work.is_completed()
    work = dist.isend(_mine(), 1 - rank)
    dist.recv(received[:2], 1 - rank)
    work.wait()
    assert work.get_future().value()[0].tolist() == [rank + 1] * 2  # when it has ended


def check_polling_point_to_point_works(rank):
    received = _filled(0)
    works = [dist.isend(_mine(), 1 - rank), dist.irecv(received, 1 - rank)]
    while not all(work.is_completed() for work in works):
        pass
    assert received.tolist() == [2 - rank] * 2


def check_futures_of_coalesced_works(rank):
    tensors, received = [_mine(), _mine(3)], _filled(0)
    with dist._coalescing_manager(device=torch.device("hpu"), async_ops=True) as manager:
        dist.isend(_mine(), 1 - rank)
        dist.irecv(received, 1 - rank)
        for tensor in tensors:
            dist.broadcast(tensor, src=1, async_op=True)
    (work,) = manager.works
    values = work.get_future().wait()
    assert [value.tolist() for value in values[-2:]] == [[2, 2], [2, 2, 2]]
    assert all(value.device == torch.device("hpu:0") for value in values)
    assert received.tolist() == [2 - rank] * 2
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in (outputs := _zeros()):
            dist.reduce_scatter_tensor(output, torch.arange(4.0, device="hpu"))
    values = manager.works[0].get_future().wait()
    assert [value.tolist() for value in values] == [[4.0 * rank, 4.0 * rank + 2]] * 2
    assert values[0].data_ptr() == outputs[0].data_ptr()


def _fail_while_coalescing(tensor, options):
    with dist._coalescing_manager(**options):
        dist.all_reduce(tensor)
        dist.broadcast(_mine(), src=0, async_op=True)
        raise ZeroDivisionError


def _coalesce_two_kinds(options):
    with dist._coalescing_manager(**options):
        dist.all_reduce(_mine())
        dist.all_gather_into_tensor(_filled(0, 4), _mine())


def check_an_exception_while_coalescing_leaves_nothing(rank):
    device = torch.device("hpu")
    for options in ({"device": device}, {}, {"device": device, "async_ops": True}):
        abandoned = _mine()
        with pytest.raises(ZeroDivisionError):
            _fail_while_coalescing(abandoned, options)
        with pytest.raises(RuntimeError, match="mixed types"):
            _coalesce_two_kinds(options)
        tensor = _mine()
        dist.all_reduce(tensor)
        assert tensor.tolist() == [_RANK_SUM] * 2
        assert abandoned.tolist() == [rank + 1] * 2  # recorded, not run
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            dist.broadcast(tensor, src=0, async_op=True)
        assert [len(work.result()) for work in manager.works] == [1]
        check_batched_send_and_receive(rank)
        check_all_reduce_coalesced(rank)


def check_batched_send_and_receive(rank):
    received = _filled(0)
    operations = [dist.P2POp(dist.isend, _mine(), 1 - rank)]
    operations.append(dist.P2POp(dist.irecv, received, 1 - rank))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.tolist() == [2 - rank] * 2


def check_objects(rank):
    objects = [None] * _NUM_RANKS
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    objects = [rank]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1]


def check_future(rank):
    work = dist.all_reduce(_mine(), op=dist.ReduceOp.AVG, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    assert doubled.tolist() == [_RANK_SUM] * 2
    assert doubled.device == torch.device("hpu:0")
    assert work.is_completed()


def check_functional_collectives(rank):
    group = dist.group.WORLD
    assert functional.all_reduce(_mine(), "avg", group).tolist() == [_RANK_SUM / 2] * 2
    assert functional.all_gather_tensor(_mine(), 0, group).tolist() == [1, 1, 2, 2]
    given = torch.arange(4.0, device="hpu")
    scattered = functional.reduce_scatter_tensor(given, "sum", 0, group)
    assert scattered.tolist() == [4.0 * rank, 4.0 * rank + 2]


def check_subgroup(rank):
    alone = dist.new_group([1])
    if rank == 1:
        tensor = _mine()
        dist.all_reduce(tensor, group=alone)
        assert tensor.tolist() == [2, 2]
        assert dist.get_backend(alone) == "hccl"


def check_what_is_not_implemented_says_so(rank):
    with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO"):
        dist.monitored_barrier()


def check_memory_is_free_when_a_collective_has_been_waited_for(rank):
    """At once, and not when a thread of gloo's comes to it: a peak would be chance."""
    left = 0
    before = torch.hpu.memory_allocated()
    for _ in range(400):
        for is_async in (True, False):
            tensor = _mine()
            work = dist.all_reduce(tensor, async_op=is_async)
            if is_async:
                work.wait()
            gathered = functional.all_gather_tensor(tensor, 0, dist.group.WORLD)
            del tensor, work
            assert functional.wait_tensor(gathered).shape == (2 * _NUM_RANKS,)
            del gathered
            left += torch.hpu.memory_allocated() != before
    assert left == 0


def check_statistics_by_kind(rank):
    simulator.reset_statistics()
    dist.all_reduce(_mine(256))
    with dist._coalescing_manager(device=torch.device("hpu")):
        for _ in range(2):
            dist.all_reduce(_mine(256))
    dist.broadcast(_mine(), src=0)
    dist.all_gather_into_tensor(_filled(0, 4), _mine())
    dist.reduce_scatter_tensor(_filled(0), _mine(4))
    dist.barrier()
    mine, others = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
    mine(_mine(3), 1 - rank)
    others(_mine(4), 1 - rank)
    to, back = (12, 16) if rank == 0 else (16, 12)
    assert simulator.collective_stats() == {
        "all_reduce": {"calls": 2, "bytes": 3 * 1024, "sent": 3 * 1024},
        "broadcast": {"calls": 1, "bytes": 8, "sent": 8},
        "all_gather": {"calls": 1, "bytes": 8, "sent": 8},
        "reduce_scatter": {"calls": 1, "bytes": 16, "sent": 8},
        "barrier": {"calls": 1, "bytes": 0, "sent": 0},
        "send": {"calls": 1, "bytes": to, "sent": to},
        "recv": {"calls": 1, "bytes": back, "sent": 0},
    }


def check_ddp_all_reduces_the_gradients_once_a_step(rank):
    model = _model().to("hpu")
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    x = torch.randn(4, 6, device="hpu")
    for _ in range(3):  # the second one tells the other rank its new buckets
        simulator.reset_statistics()
        ddp(x).sum().backward()
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert simulator.collective_stats() == {
        "all_reduce": {"calls": 1, "bytes": num_bytes, "sent": num_bytes}
    }


def _train(model, rank_slice, device, num_steps=4):
    """Trains on `rank_slice` of each batch of 8."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        x = torch.randn(8, 6, generator=generator)[rank_slice].to(device)
        y = torch.randint(3, (8,), generator=generator)[rank_slice].to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


def _largest_difference(model, reference):
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max((a.detach().cpu() - b.detach()).abs().max().item() for a, b in pairs)


def check_ddp_equals_one_process_on_the_whole_batch(rank):
    model, reference = _model(), _model()
    # Buckets of a few parameters, so that several all-reduces are under way.
    ddp = DistributedDataParallel(
        model.to("hpu"), bucket_cap_mb=0.0002, gradient_as_bucket_view=True
    )
    _train(ddp, slice(4 * rank, 4 * rank + 4), "hpu")
    _train(reference, slice(None), "cpu")
    assert _largest_difference(model, reference) < 1e-6


def check_ddp_under_autocast_with_a_hook_and_unused_parameters(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = _model().to("hpu")
    model.append(nn.Identity()).register_parameter(
        "unused", nn.Parameter(torch.ones(1, device="hpu"))
    )
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    ddp.register_comm_hook(None, fp16_compress_hook)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        loss = ddp(torch.randn(4, 6, device="hpu")).float().square().mean()
    loss.backward()
    gradient = model[0].weight.grad
    other = gradient.clone()
    dist.broadcast(other, src=0)
    assert torch.equal(gradient, other)


def check_fsdp2_equals_one_process_on_the_whole_batch(rank):
    from torch.distributed.fsdp import fully_shard

    model, reference = _model(), copy.deepcopy(_model())
    mesh = init_device_mesh("hpu", (_NUM_RANKS,))
    model.to("hpu")
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    _train(model, slice(4 * rank, 4 * rank + 4), "hpu")
    _train(reference, slice(None), "cpu")
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    assert max((a.full_tensor().cpu() - b).abs().max().item() for a, b in pairs) < 1e-6


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return checks.run(__name__, tmp_path_factory.mktemp("ranks"), num_ranks=_NUM_RANKS)


@pytest.mark.parametrize("name", checks.collect(dict(globals())))
def test_collective(name, failures):
    checks.expect_success(name, failures)


def _fail_on_rank_1(rank: int) -> None:
    dist.barrier()  # else the other may fail first, at connecting
    if rank == 1:
        raise RuntimeError("out of order")
    time.sleep(120)


def test_a_rank_that_fails_is_named_and_ends_the_others(tmp_path):
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)Process 1 terminated with .*out of order"):
        run_ranks(_fail_on_rank_1, tmp_path, timeout=90)
    assert time.monotonic() - start < 60
