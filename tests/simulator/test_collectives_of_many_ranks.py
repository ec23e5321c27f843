"""Every collective on 2, 4 and 8 ranks, against the same arithmetic on the CPU.

Every rank knows what the others begin with, and so what the result must be. All checks of a number
of ranks run in one spawn; each is a test of its own here.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh

from tests.simulator import checks
from tests.simulator.checks import expect, expect_all, inputs

_ROUNDING = 1e-5
_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
_REDUCTIONS = {
    ReduceOp.SUM: lambda given: given.sum(0),
    ReduceOp.AVG: lambda given: given.sum(0) / len(given),
    ReduceOp.MIN: lambda given: given.amin(0),
    ReduceOp.MAX: lambda given: given.amax(0),
    ReduceOp.PRODUCT: lambda given: given.prod(0),
}


def _world():
    return dist.get_world_size()


def _mine(given):
    return given[dist.get_rank()].to("hpu")


def _empty_like(given):
    return [torch.empty_like(tensor, device="hpu") for tensor in given]


def check_all_reduce_of_floats(rank):
    given = inputs(5, 3)
    for op, reduce in _REDUCTIONS.items():
        tensor = _mine(given)
        dist.all_reduce(tensor, op=op)
        expect(tensor, reduce(torch.stack(given)), _ROUNDING)
        first = tensor.clone()
        dist.broadcast(first, src=0)
        assert torch.equal(tensor, first), f"{op} differs between ranks"


def check_all_reduce_of_each_dtype(rank):
    for dtype, op in itertools.product(_DTYPES, _REDUCTIONS):
        given = inputs(7, dtype=dtype)
        if dtype == torch.float32:
            given = [tensor.round() for tensor in given]
        elif dtype.is_signed:
            given = [tensor - 1 for tensor in given]
        if op == ReduceOp.AVG and not dtype.is_floating_point:
            expected = torch.stack(given).sum(0).div(_world(), rounding_mode="trunc").to(dtype)
        else:
            expected = _REDUCTIONS[op](torch.stack(given)).to(dtype)
        tensor = _mine(given)
        dist.all_reduce(tensor, op=op)
        expect(tensor, expected)


def check_all_reduce_of_bool(rank):
    given = [torch.tensor([True, False, i == 0, i > 0]) for i in range(_world())]
    for op, reduce in (
        (ReduceOp.SUM, torch.any),
        (ReduceOp.MAX, torch.any),
        (ReduceOp.PRODUCT, torch.all),
        (ReduceOp.MIN, torch.all),
    ):
        tensor = _mine(given)
        dist.all_reduce(tensor, op=op)
        expect(tensor, reduce(torch.stack(given), dim=0))


def check_all_reduce_of_nothing(rank):
    tensor = torch.empty(0, device="hpu")
    dist.all_reduce(tensor)
    assert tensor.shape == (0,)


def check_all_reduce_of_a_megabyte(rank):
    given = inputs(2**18)
    tensor = _mine(given)
    dist.all_reduce(tensor)
    expect(tensor, torch.stack(given).sum(0), _ROUNDING)


def check_broadcast(rank):
    for src, dtype in itertools.product(range(_world()), (torch.float32, torch.uint8, torch.bool)):
        given = inputs(3, dtype=dtype)
        tensor = _mine(given)
        dist.broadcast(tensor, src=src)
        expect(tensor, given[src])


def check_reduce(rank):
    given = inputs(3, dtype=torch.int64)
    for dst, op in itertools.product((0, _world() - 1), (ReduceOp.SUM, ReduceOp.MAX)):
        tensor = _mine(given)
        dist.reduce(tensor, dst=dst, op=op)
        if rank == dst:
            expect(tensor, _REDUCTIONS[op](torch.stack(given)))
    tensor = _mine(given).float()
    dist.reduce(tensor, dst=1, op=ReduceOp.AVG)
    if rank == 1:
        expect(tensor, torch.stack(given).sum(0) / _world())


def check_all_gather(rank):
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.bool):
        given = inputs(2, 3, dtype=dtype)
        outputs = _empty_like(given)
        dist.all_gather(outputs, _mine(given))
        expect_all(outputs, given)


def check_all_gather_into_tensor(rank):
    given = inputs(2, 3)
    joined = torch.empty(2 * _world(), 3, device="hpu")
    dist.all_gather_into_tensor(joined, _mine(given))
    expect(joined, torch.cat(given))
    stacked = torch.empty(_world(), 2, 3, device="hpu")
    dist.all_gather_into_tensor(stacked, _mine(given))
    expect(stacked, torch.stack(given))


def check_gather(rank):
    given = inputs(3)
    dst = _world() - 1
    outputs = _empty_like(given) if rank == dst else None
    dist.gather(_mine(given), outputs, dst=dst)
    if outputs is not None:
        expect_all(outputs, given)


def check_scatter(rank):
    given = inputs(3)
    src = _world() - 1
    output = torch.empty(3, device="hpu")
    dist.scatter(output, [tensor.to("hpu") for tensor in given] if rank == src else None, src=src)
    expect(output, given[rank])


def check_reduce_scatter(rank):
    given = [inputs(3, seed=part) for part in range(_world())]  # of a part, of each rank
    output = torch.empty(3, device="hpu")
    dist.reduce_scatter(output, [_mine(of_ranks) for of_ranks in given])
    expect(output, torch.stack(given[rank]).sum(0), _ROUNDING)


def check_reduce_scatter_tensor(rank):
    for dtype in _DTYPES:
        given = inputs(2 * _world(), 3, dtype=dtype)
        output = torch.empty(2, 3, device="hpu", dtype=dtype)
        dist.reduce_scatter_tensor(output, _mine(given))
        expected = torch.stack(given).sum(0).to(dtype)[2 * rank : 2 * rank + 2]
        expect(output, expected, _ROUNDING if dtype == torch.float32 else 0.0)


def check_all_to_all(rank):
    given = [inputs(3, seed=to)[rank] for to in range(_world())]
    outputs = [torch.empty(3, device="hpu") for source in range(_world())]
    dist.all_to_all(outputs, [tensor.to("hpu") for tensor in given])
    expect_all(outputs, inputs(3, seed=rank))


def check_all_to_all_single(rank):
    given = inputs(2 * _world(), 3)
    output = torch.empty(2 * _world(), 3, device="hpu")
    dist.all_to_all_single(output, _mine(given))
    expect(output, torch.cat([tensor[2 * rank : 2 * rank + 2] for tensor in given]))


def check_all_to_all_single_of_unequal_splits(rank):
    splits = list(range(_world()))  # each rank sends i rows to rank i
    given = inputs(sum(splits), 2)
    output = torch.empty(rank * _world(), 2, device="hpu")
    dist.all_to_all_single(output, _mine(given), [rank] * _world(), splits)
    begin = sum(splits[:rank])
    expect(output, torch.cat([tensor[begin : begin + rank] for tensor in given]))


def check_ring(rank):
    given = inputs(4)
    after, before = (rank + 1) % _world(), (rank - 1) % _world()
    received = torch.empty(4, device="hpu")
    works = [dist.isend(_mine(given), after), dist.irecv(received, before)]
    for work in works:
        work.wait()
    expect(received, given[before])


def check_blocking_chain(rank):
    tensor = torch.zeros(2, device="hpu")
    if rank > 0:
        dist.recv(tensor, src=rank - 1)
    tensor += 1
    if rank < _world() - 1:
        dist.send(tensor, dst=rank + 1)
    expect(tensor, torch.full((2,), rank + 1.0))


def check_batched_ring(rank):
    given = inputs(4)
    after, before = (rank + 1) % _world(), (rank - 1) % _world()
    received = torch.empty(4, device="hpu")
    operations = [dist.P2POp(dist.isend, _mine(given), after)]
    operations.append(dist.P2POp(dist.irecv, received, before))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect(received, given[before])


def check_objects(rank):
    mine = {"rank": rank, "tensor": torch.full((2,), rank)}
    gathered = [None] * _world()
    dist.all_gather_object(gathered, mine)
    assert [each["rank"] for each in gathered] == list(range(_world()))
    assert gathered[-1]["tensor"].tolist() == [_world() - 1] * 2
    objects = [rank, f"of {rank}"]
    dist.broadcast_object_list(objects, src=_world() - 1)
    assert objects == [_world() - 1, f"of {_world() - 1}"]
    gathered = [None] * _world() if rank == 0 else None
    dist.gather_object(rank**2, gathered, dst=0)
    assert gathered is None or gathered == [i**2 for i in range(_world())]
    output = [None]
    dist.scatter_object_list(output, [f"for {i}" for i in range(_world())], src=0)
    assert output == [f"for {rank}"]


def check_barrier(rank):
    store = dist.distributed_c10d._get_default_store()
    store.add("arrived", 1)
    dist.barrier()
    assert store.add("arrived", 0) == _world()
    assert dist.barrier(async_op=True).wait()


def check_coalescing(rank):
    sums, gathered, scattered = inputs(3, seed=1), inputs(2, seed=2), inputs(_world(), seed=3)
    reduced = [_mine(sums), _mine(gathered)]
    with dist._coalescing_manager(device=torch.device("hpu"), async_ops=True) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor)
    manager.wait()
    expect(reduced[0], torch.stack(sums).sum(0), _ROUNDING)
    expect(reduced[1], torch.stack(gathered).sum(0), _ROUNDING)
    outputs = [torch.empty(2 * _world(), device="hpu") for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("hpu")):
        for output in outputs:
            dist.all_gather_into_tensor(output, _mine(gathered))
    expect_all(outputs, [torch.cat(gathered)] * 2)
    parts = [torch.empty(1, device="hpu") for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("hpu")):
        for part in parts:
            dist.reduce_scatter_tensor(part, _mine(scattered), op=ReduceOp.AVG)
    for part in parts:
        expect(part, (torch.stack(scattered).sum(0) / _world())[rank : rank + 1], _ROUNDING)


def check_futures(rank):
    given = inputs(4)
    works = [dist.all_reduce(_mine(given), op=ReduceOp.AVG, async_op=True) for _ in range(8)]
    futures = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
    for future in futures:
        expect(future.wait(), 2 * torch.stack(given).sum(0) / _world(), _ROUNDING)
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()


def check_subgroups(rank):
    halves = [dist.new_group(list(range(start, _world(), 2))) for start in (0, 1)]
    given = inputs(3, dtype=torch.int64)
    tensor = _mine(given)
    dist.all_reduce(tensor, group=halves[rank % 2])
    expect(tensor, torch.stack(given[rank % 2 :: 2]).sum(0))
    assert dist.get_group_rank(halves[rank % 2], rank) == rank // 2
    pairs, _ = dist.new_subgroups(group_size=2)
    dist.broadcast(tensor := _mine(given), src=rank // 2 * 2, group=pairs)
    expect(tensor, given[rank // 2 * 2])
    if rank == 0:  # only this rank's group, only this rank calls
        with pytest.raises(ValueError, match=r"is not part of group"):
            dist.broadcast(tensor, src=1, group=halves[0])


def check_a_gloo_group_beside(rank):
    beside = dist.new_group(backend="gloo")
    given = inputs(3, dtype=torch.int64)
    on_cpu, on_hpu = given[rank].clone(), _mine(given)
    works = [dist.all_reduce(on_cpu, group=beside, async_op=True)]
    works.append(dist.all_reduce(on_hpu, async_op=True))
    for work in works:
        work.wait()
    assert torch.equal(on_cpu, torch.stack(given).sum(0))
    expect(on_hpu, on_cpu)
    dist.monitored_barrier(group=beside)
    objects = [rank]
    dist.broadcast_object_list(objects, src=1, group=beside, device=torch.device("cpu"))
    assert objects == [1]


def check_a_group_of_both_backends(rank):
    both = dist.new_group(backend="cpu:gloo,hpu:hccl")
    given = inputs(3, dtype=torch.int64)
    for tensor in (given[rank].clone(), _mine(given)):
        dist.all_reduce(tensor, group=both)
        assert torch.equal(tensor.cpu(), torch.stack(given).sum(0))


def check_functional_collectives(rank):
    world = dist.group.WORLD
    given = inputs(2 * _world(), 4)
    total = torch.stack(given).sum(0)
    mine = _mine(given)
    for name, op in (("sum", ReduceOp.SUM), ("avg", ReduceOp.AVG), ("max", ReduceOp.MAX)):
        expected = _REDUCTIONS[op](torch.stack(given))
        expect(
            functional.wait_tensor(functional.all_reduce(mine, name, world)), expected, _ROUNDING
        )
    expect(mine, given[rank])  # the argument stays
    expect(functional.wait_tensor(functional.broadcast(mine, 1, world)), given[1])
    for dim in (0, 1):
        gathered = functional.wait_tensor(functional.all_gather_tensor(mine, dim, world))
        expect(gathered, torch.cat(given, dim=dim))
    scattered = functional.wait_tensor(functional.reduce_scatter_tensor(mine, "sum", 0, world))
    expect(scattered, total[2 * rank : 2 * rank + 2], _ROUNDING)
    exchanged = functional.wait_tensor(functional.all_to_all_single(mine, None, None, world))
    expect(exchanged, torch.cat([tensor[2 * rank : 2 * rank + 2] for tensor in given]))
    many = functional.all_reduce_coalesced([mine, mine + 1], "sum", world)
    expect(functional.wait_tensor(many[1]), total + _world(), _ROUNDING)
    many = functional.all_gather_into_tensor_coalesced([mine], world)
    expect(functional.wait_tensor(many[0]), torch.cat(given))
    many = functional.reduce_scatter_tensor_coalesced([mine], "sum", [0], world)
    expect(functional.wait_tensor(many[0]), total[2 * rank : 2 * rank + 2], _ROUNDING)
    after = [(i + 1) % _world() for i in range(_world())]
    permuted = functional.permute_tensor(mine[:, 0].contiguous(), after, world)  # 1-D only
    expect(functional.wait_tensor(permuted), given[(rank - 1) % _world()][:, 0])


def check_gradients_of_functional_collectives(rank):
    world = dist.group.WORLD
    given = inputs(2, 3)
    weights = inputs(2 * _world(), 3, seed=1)  # of each rank's loss
    mine = _mine(given).requires_grad_()
    gathered = functional.all_gather_tensor_autograd(mine, 0, world)
    (functional.wait_tensor(gathered) * _mine(weights)).sum().backward()
    expect(mine.grad, torch.stack(weights).sum(0)[2 * rank : 2 * rank + 2], _ROUNDING)
    whole = _mine(weights).requires_grad_()
    part = functional.reduce_scatter_tensor_autograd(whole, "sum", 0, world)
    (functional.wait_tensor(part) * _mine(given)).sum().backward()
    expect(whole.grad, torch.cat(given))
    whole = _mine(weights).requires_grad_()
    swapped = functional.all_to_all_single_autograd(
        whole, [2] * _world(), [2] * _world(), dist.group.WORLD
    )
    factors = torch.arange(2.0 * _world(), device="hpu")[:, None] * (rank + 1)
    (functional.wait_tensor(swapped) * factors).sum().backward()
    rows = torch.arange(2.0 * rank, 2.0 * rank + 2)[:, None]  # ours, in what each rank gets
    expect(whole.grad, torch.cat([rows * (i + 1) for i in range(_world())]).expand(-1, 3))


def check_gradients_of_differentiable_collectives(rank):
    given, weights = inputs(3), inputs(_world(), 3, seed=1)
    mine = _mine(given).requires_grad_()
    gathered = torch.stack(differentiable.all_gather(mine))
    (gathered * _mine(weights)).sum().backward()
    expect(gathered.detach(), torch.stack(given))
    expect(mine.grad, torch.stack(weights).sum(0)[rank], _ROUNDING)
    mine = _mine(given).requires_grad_()
    (differentiable.all_reduce(mine) * (rank + 1)).sum().backward()
    expect(mine.grad, torch.full((3,), float(sum(range(1, _world() + 1)))))


def check_meshes(rank):
    given = inputs(3, dtype=torch.int64)
    line = init_device_mesh("hpu", (_world(),))
    tensor = _mine(given)
    dist.all_reduce(tensor, group=line.get_group())
    expect(tensor, torch.stack(given).sum(0))
    shape = (2, _world() // 2)
    grid = init_device_mesh("hpu", shape, mesh_dim_names=("dp", "tp"))
    ranks = torch.arange(_world()).view(shape)
    row, column = grid.get_coordinate()
    for name, members in (("dp", ranks[:, column]), ("tp", ranks[row])):
        tensor = _mine(given)
        dist.all_reduce(tensor, group=grid[name].get_group())
        expect(tensor, torch.stack(given)[members].sum(0))
    flat = grid._flatten("all") if hasattr(grid, "_flatten") else line
    dist.all_reduce(tensor := _mine(given), group=flat.get_group())
    expect(tensor, torch.stack(given).sum(0))


_CHECKS = checks.collect(dict(globals()))


@pytest.fixture(
    scope="module",
    params=(2, 4, pytest.param(8, marks=pytest.mark.slow)),
    ids=lambda n: f"{n}_ranks",
)
def failures(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    return checks.run(__name__, folder, num_ranks=request.param)


@pytest.mark.parametrize("name", _CHECKS)
def test_collective(name, failures):
    checks.expect_success(name, failures)
