"""Distributed training on hpu: DDP, SyncBatchNorm, DTensor, tensor parallel and FSDP2.

DDP is compared with DDP on the CPU over gloo, to the bit; the others with one process on the whole
batch. All checks of a number of ranks run in one spawn; each is a test of its own here.
"""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lightning_gaudi import simulator
from tests.simulator import checks
from tests.simulator.checks import expect, inputs

_WHOLE_BATCH = 8


class _Model(nn.Module):
    """Two layers and, if asked for, one more that no step uses."""

    def __init__(self, has_unused=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2) if has_unused else None

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def _model(**options):
    torch.manual_seed(1)
    return _Model(**options)


def _batches(num_steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        yield (
            torch.randn(_WHOLE_BATCH, 6, generator=generator),
            torch.randint(3, (_WHOLE_BATCH,), generator=generator),
        )


def _part(tensor):
    """What this rank sees of a batch."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def _loss(model, x, y, device):
    return nn.functional.cross_entropy(model(x.to(device)), y.to(device))


def _train(model, device, num_steps=4, part=_part):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in _batches(num_steps):
        optimizer.zero_grad()
        _loss(model, part(x), part(y), device).backward()
        optimizer.step()


def _assert_equal(model, reference, tolerance=0.0):
    for (name, tensor), other in zip(
        model.state_dict().items(), reference.state_dict().values(), strict=True
    ):
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        torch.testing.assert_close(
            tensor.cpu(), other, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def _ddp_pair(prepare=lambda ddp, group: None, model_options=None, **options):
    """DDP on hpu over HCCL, and on the CPU over gloo."""
    # Buckets of a few parameters, so that several all-reduces are under way.
    options = {"bucket_cap_mb": 0.0002, "gradient_as_bucket_view": True} | options
    group = dist.new_group(backend="gloo")
    model, reference = _model(**(model_options or {})), _model(**(model_options or {}))
    on_hpu = DistributedDataParallel(model.to("hpu"), **options)
    on_cpu = DistributedDataParallel(reference, process_group=group, **options)
    prepare(on_hpu, None)
    prepare(on_cpu, group)
    return on_hpu, on_cpu


def _check_ddp(*args, **options):
    on_hpu, on_cpu = _ddp_pair(*args, **options)
    _train(on_hpu, "hpu")
    _train(on_cpu, "cpu")
    _assert_equal(on_hpu, on_cpu)


def two_ddp(rank):
    _check_ddp()
    _check_ddp(gradient_as_bucket_view=False, bucket_cap_mb=230)


def two_ddp_with_a_static_graph(rank):
    _check_ddp(static_graph=True)


def two_ddp_with_unused_parameters(rank):
    _check_ddp(find_unused_parameters=True, model_options={"has_unused": True})


def two_ddp_with_hooks(rank):
    for hook in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        _bf16_hook,
    ):
        _check_ddp(lambda ddp, group, hook=hook: ddp.register_comm_hook(group, hook))


def _bf16_hook(group, bucket):
    """torch's own by another name: DDP refuses that one on all but CUDA and XPU."""
    return default_hooks.bf16_compress_hook(group, bucket)


def two_ddp_with_power_sgd(rank):
    def compress(ddp, group):
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    _check_ddp(compress, bucket_cap_mb=25)  # gloo deadlocks on several, on the CPU too


def two_ddp_with_accumulated_gradients(rank):
    on_hpu, on_cpu = _ddp_pair(bucket_cap_mb=1)
    simulator.reset_statistics()
    for model, device in ((on_hpu, "hpu"), (on_cpu, "cpu")):
        for i, (x, y) in enumerate(_batches(4)):
            with contextlib.nullcontext() if i % 2 else model.no_sync():
                _loss(model, _part(x), _part(y), device).backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
    _assert_equal(on_hpu, on_cpu)
    num_bytes = sum(parameter.nbytes for parameter in on_hpu.parameters())
    assert simulator.collective_stats()["all_reduce"] == {
        "calls": 2,
        "bytes": 2 * num_bytes,
        "sent": 2 * num_bytes,  # of two ranks
    }


def two_ddp_with_uneven_inputs(rank):
    on_hpu, on_cpu = _ddp_pair()
    for model, device in ((on_hpu, "hpu"), (on_cpu, "cpu")):
        with model.join():
            _train(model, device, num_steps=3 + rank)
    _assert_equal(on_hpu, on_cpu)


def two_a_ddp_step_never_waits(rank):
    model = DistributedDataParallel(_model().to("hpu"), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(_part(x).to("hpu"), _part(y).to("hpu")) for x, y in _batches(4)]
    for i, (x, y) in enumerate(batches):
        if i == 2:  # buckets are settled by then
            simulator.reset_statistics()
        optimizer.zero_grad()
        _loss(model, x, y, "hpu").backward()
        optimizer.step()
    assert simulator.host_syncs() == {}
    assert list(simulator.collective_stats()) == ["all_reduce"]


def two_ddp_times_its_steps(rank):
    model = DistributedDataParallel(_model().to("hpu"))
    for x, _ in _batches(12):  # it looks at the clock in the first ten
        model(x.to("hpu")).sum().backward()
    times = model._get_ddp_logging_data()
    for name in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
        assert times[name] > 0, name


def two_a_barrier_and_reading_a_result_wait(rank):
    tensor = torch.ones(2, device="hpu")
    simulator.reset_statistics()
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    assert simulator.host_syncs() == {}
    tensor.sum().item()
    dist.barrier()
    assert simulator.host_syncs() == {"aten::_local_scalar_dense": 1, "barrier": 1}


def two_a_barrier_takes_the_local_rank_for_a_device(rank):
    """As accelerate calls it: a process has one card, whatever the index."""
    simulator.reset_statistics()
    dist.barrier(device_ids=[rank])
    dist.barrier(None, False, [rank])
    assert simulator.host_syncs() == {"barrier": 2}


def _check_sync_batch_norm(make, shape, splits=(4, 4), **options):
    """Sync on the parts of the ranks, against plain batch norm on the whole batch."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(5)
    plain, synced = make(**options), nn.SyncBatchNorm.convert_sync_batchnorm(make(**options))
    synced.to("hpu")
    if options.get("affine", True):
        with torch.no_grad():
            weight, bias = torch.randn(2, shape[1], generator=generator)
            for module in (plain, synced):
                module.weight.copy_(weight)
                module.bias.copy_(bias)
    for _ in range(2):
        whole = 3 + 2 * torch.randn(shape, generator=generator)
        factors = torch.randn(shape, generator=generator)
        part = whole.split(splits)[rank].to("hpu").requires_grad_()
        whole.requires_grad_()
        result, expected = synced(part), plain(whole)
        expect(result.detach(), expected.detach().split(splits)[rank], 1e-6)
        (result * factors.split(splits)[rank].to("hpu")).sum().backward()
        (expected * factors).sum().backward()
        expect(part.grad, whole.grad.split(splits)[rank], 1e-6)
    for name, buffer in synced.named_buffers():
        expect(buffer, plain.get_buffer(name), 1e-6)
    for name, parameter in synced.named_parameters():
        dist.all_reduce(parameter.grad)
        expect(parameter.grad, plain.get_parameter(name).grad, 1e-5)  # of magnitude 10
    if options.get("track_running_stats", True):  # else it uses the part's own
        plain.eval()
        synced.eval()
        expect(synced(part).detach(), plain(whole).detach().split(splits)[rank], 1e-6)


def two_sync_batch_norm(rank):
    _check_sync_batch_norm(lambda **o: nn.BatchNorm1d(3, **o), (8, 3))
    _check_sync_batch_norm(lambda **o: nn.BatchNorm2d(3, **o), (8, 3, 4, 5))
    _check_sync_batch_norm(lambda **o: nn.BatchNorm3d(3, **o), (8, 3, 2, 3, 2))


def two_sync_batch_norm_of_unequal_parts(rank):
    _check_sync_batch_norm(lambda **o: nn.BatchNorm2d(3, **o), (8, 3, 4, 5), splits=(6, 2))


def two_sync_batch_norm_with_options(rank):
    _check_sync_batch_norm(lambda **o: nn.BatchNorm1d(3, **o), (8, 3), affine=False)
    _check_sync_batch_norm(lambda **o: nn.BatchNorm1d(3, **o), (8, 3, 2), momentum=None, eps=0.1)
    _check_sync_batch_norm(lambda **o: nn.BatchNorm1d(3, **o), (8, 3, 2), track_running_stats=False)


def two_sync_batch_norm_in_bf16_keeps_statistics_in_fp32(rank):
    whole = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    synced = nn.SyncBatchNorm(3).to("hpu")
    result = synced(whole.chunk(2)[rank].to("hpu"))
    assert result.dtype == torch.bfloat16
    expect(synced.running_mean, whole.float().mean(0) * 0.1, 1e-6)
    expect(result.float(), nn.BatchNorm1d(3)(whole.float()).chunk(2)[rank].detach(), 2e-2)


def two_sync_batch_norm_in_ddp(rank):
    def model():
        torch.manual_seed(0)
        first = nn.Linear(6, 4, bias=False)  # a bias before the norm has no gradient but rounding
        return nn.Sequential(first, nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))

    synced, reference = nn.SyncBatchNorm.convert_sync_batchnorm(model()).to("hpu"), model()
    _train(DistributedDataParallel(synced), "hpu")
    _train(reference, "cpu", part=lambda tensor: tensor)
    _assert_equal(synced, reference, 1e-5)  # AdamW magnifies the last bit


def four_dtensor_placements(rank):
    line = init_device_mesh("hpu", (4,))
    grid = init_device_mesh("hpu", (2, 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(7.0 * 8).view(7, 8)  # 7 rows do not divide by 4
    for mesh, placements in (
        (line, [Shard(0)]),
        (line, [Shard(1)]),
        (line, [Replicate()]),
        (grid, [Shard(0), Shard(1)]),
        (grid, [Shard(0), Replicate()]),
        (grid, [Shard(1), Shard(1)]),
    ):
        tensor = distribute_tensor(whole.to("hpu"), mesh, placements)
        expect(tensor.full_tensor(), whole)
        for target in ([Shard(1)], [Shard(0)], [Replicate()]):
            moved = tensor.redistribute(mesh, target * mesh.ndim)
            expect(moved.full_tensor(), whole)


def four_dtensor_products(rank):
    mesh = init_device_mesh("hpu", (4,))
    a, b = inputs(8, 12)[0], inputs(12, 16, seed=1)[0]
    for left, right in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        product = distribute_tensor(a.to("hpu"), mesh, [left]) @ distribute_tensor(
            b.to("hpu"), mesh, [right]
        )
        if left == Shard(1):
            assert product.placements == (Partial(),)
        expect(product.full_tensor(), a @ b, 1e-5)
    total = distribute_tensor(a.to("hpu"), mesh, [Shard(0)]).sum()
    expect(total.full_tensor(), a.sum(), 1e-5)


def four_dtensor_random_numbers(rank):
    mesh = init_device_mesh("hpu", (4,))
    ones = distribute_tensor(torch.ones(64, device="hpu"), mesh, [Shard(0)])
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(
            [
                torch.distributed.tensor.rand(64, device_mesh=mesh, placements=[Shard(0)]),
                torch.distributed.tensor.randn(64, device_mesh=mesh, placements=[Replicate()]),
                nn.functional.dropout(ones, 0.5),
                distribute_tensor(torch.rand(4, device="hpu"), mesh, [Replicate()]),
            ]
        )
    for first, again in zip(*drawn, strict=True):
        assert torch.equal(first.full_tensor(), again.full_tensor())
        of_first_rank = first.full_tensor().clone()
        dist.broadcast(of_first_rank, src=0)
        assert torch.equal(of_first_rank, first.full_tensor())
    uniform, normal, dropped, _ = (tensor.full_tensor().cpu() for tensor in drawn[0])
    assert uniform.unique().numel() == 64  # shards draw numbers of their own
    assert normal.unique().numel() == 64
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert len({tuple(part.tolist()) for part in dropped.chunk(4)}) > 1


def four_dtensor_dropout_repeats_in_activation_checkpointing(rank):
    mesh = init_device_mesh("hpu", (4,))
    torch.manual_seed(7)
    x = distribute_tensor(torch.ones(64, device="hpu"), mesh, [Shard(0)]).requires_grad_()
    nn.functional.dropout(x, 0.5)
    output = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False)
    nn.functional.dropout(x, 0.5)
    output.sum().backward()
    assert torch.equal(x.grad.full_tensor(), 2 * output.full_tensor())


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def _block():
    torch.manual_seed(3)
    return _Block()


def four_tensor_parallel(rank):
    mesh = init_device_mesh("hpu", (4,))
    reference, x = _block(), inputs(4, 8)[0]
    block = parallelize_module(
        _block().to("hpu"), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    result, expected = block(x.to("hpu")), reference(x)
    expect(result.detach(), expected.detach(), 1e-6)
    result.square().mean().backward()
    expected.square().mean().backward()
    for (name, parameter), other in zip(
        block.named_parameters(), reference.parameters(), strict=True
    ):
        gradient = parameter.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        torch.testing.assert_close(gradient.cpu(), other.grad, rtol=0, atol=1e-6, msg=name)


def four_tensor_parallel_of_sequences(rank):
    mesh = init_device_mesh("hpu", (4,))
    reference, x = _block().norm, inputs(2, 8, 8)[0]
    norm = parallelize_module(_block().norm.to("hpu"), mesh, SequenceParallel())
    part = distribute_tensor(x.to("hpu"), mesh, [Shard(1)])
    expect(norm(part).full_tensor().detach(), reference(x).detach(), 1e-6)


def four_fsdp2_with_tensor_parallel(rank):
    mesh = init_device_mesh("hpu", (2, 2), mesh_dim_names=("dp", "tp"))
    reference, whole = _block(), inputs(8, 8)[0]
    block = parallelize_module(
        _block().to("hpu"), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    fully_shard(block, mesh=mesh["dp"])
    part = whole.chunk(2)[mesh.get_local_rank("dp")].to("hpu")
    for model, x in ((block, part), (reference, whole)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    _assert_equal(block, reference, 1e-6)


def four_fsdp2_of_hybrid_shards(rank):
    mesh = init_device_mesh("hpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, reference = _model().to("hpu"), copy.deepcopy(_model())
    for module in (model.first, model.second, model):
        fully_shard(module, mesh=mesh)
    _train(model, "hpu")
    _train(reference, "cpu", part=lambda tensor: tensor)
    _assert_equal(model, reference, 1e-5)


@pytest.fixture(scope="module")
def failures_of_two(tmp_path_factory):
    return checks.run(__name__, tmp_path_factory.mktemp("two"), num_ranks=2, prefix="two_")


@pytest.fixture(scope="module")
def failures_of_four(tmp_path_factory):
    return checks.run(__name__, tmp_path_factory.mktemp("four"), num_ranks=4, prefix="four_")


@pytest.mark.parametrize("name", checks.collect(dict(globals()), "two_"))
def test_two_ranks(name, failures_of_two):
    checks.expect_success(name, failures_of_two)


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.collect(dict(globals()), "four_"))
def test_four_ranks(name, failures_of_four):
    checks.expect_success(name, failures_of_four)
