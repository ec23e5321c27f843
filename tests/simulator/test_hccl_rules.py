"""What HCCL refuses, and what a lazy graph and the counters see of it; a group of one suffices."""

import _hpu_sim
import pytest
import torch
import torch.distributed as dist
from habana_frameworks.torch.distributed import hccl  # noqa: TID251 (what the group comes from)

from lightning_gaudi import simulator
from tests.helpers.forked import fork_python


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _ones(dtype=torch.float32):
    return torch.ones(4, device="hpu", dtype=dtype)


def test_other_reductions_are_refused():
    for name in ("BAND", "BOR", "BXOR"):
        with pytest.raises(RuntimeError, match=f"SUM, AVG, MIN, MAX or PRODUCT, got {name}"):
            dist.all_reduce(_ones(torch.int32), op=getattr(dist.ReduceOp, name))


def test_the_average_of_bool_is_refused():
    with pytest.raises(RuntimeError, match="cannot average bool tensors"):
        dist.all_reduce(_ones(torch.bool), op=dist.ReduceOp.AVG)


def test_receiving_from_any_rank_is_refused():
    with pytest.raises(RuntimeError, match=r"cannot receive from any rank\. Say which"):
        dist.recv(_ones())


def test_coalescing_within_coalescing_is_refused():
    device = torch.device("hpu")
    with (
        pytest.raises(RuntimeError, match="are being coalesced already"),
        dist._coalescing_manager(device=device),
        dist._coalescing_manager(device=device),
    ):
        pass


def test_aborting_and_shutting_down_the_backend_does_nothing():
    backend = dist.group.WORLD._get_backend(torch.device("hpu"))
    assert backend.name() == "hccl"
    backend.abort()
    backend.shutdown()
    dist.all_reduce(tensor := _ones())
    assert tensor.tolist() == [1] * 4


def test_a_collective_ends_the_lazy_graph_before_it(lazy):
    for _ in range(2):
        tensor = _ones() * 2
        dist.all_reduce(tensor)
        dist.broadcast(tensor + 1, src=0)
        _hpu_sim.mark_step()
    stats = _hpu_sim.graph_stats()
    assert [reason for reason, _, _ in _hpu_sim.compilations()] == ["all_reduce", "broadcast"]
    assert stats["num_compilations"] == stats["num_cache_hits"] == 2
    assert stats["num_collectives"] == 4
    assert stats["num_breaks"] == 0
    assert stats["num_empty_steps"] == 2  # the broadcast had taken all there was


@pytest.mark.filterwarnings("ignore:barrier.*using the device under current context")
def test_a_barrier_leaves_the_lazy_graph_alone(lazy):
    simulator.reset_statistics()
    tensor = _ones() * 2
    dist.barrier()
    assert _hpu_sim.graph_stats()["pending_ops"] > 0
    assert simulator.host_syncs() == {"barrier": 1}
    assert tensor.tolist() == [2] * 4


def test_lazy_collectives_are_part_of_the_graph(lazy):
    _hpu_sim.set_lazy_collectives(True)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        work = dist.all_reduce(_ones() * 2, op=op, async_op=True)
        work.get_future().wait()
        assert _hpu_sim.graph_stats()["num_collectives"] == 0
        _hpu_sim.mark_step()
    assert _hpu_sim.graph_stats()["num_mark_steps"] == 2
    num_ops = _hpu_sim.compilations()[0][1]
    dist.all_reduce(_ones() * 2)  # waits
    stats = _hpu_sim.graph_stats()
    assert stats["num_collectives"] == 1
    assert stats["num_cache_hits"] >= 1
    assert stats["num_ops"] == 3 * num_ops


def test_lazy_collectives_cannot_average(lazy):
    _hpu_sim.set_lazy_collectives(True)
    with pytest.raises(RuntimeError, match=r"PT_HPU_ENABLE_LAZY_COLLECTIVES=1 HCCL has no Red"):
        dist.all_reduce(_ones(), op=dist.ReduceOp.AVG)


def test_the_environment_asks_for_lazy_collectives_in_lazy_mode():
    out = fork_python(
        """
        import torch, _hpu_sim, torch.distributed as dist
        import habana_frameworks.torch.distributed.hccl
        dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(2, device="hpu"))
        print([reason for reason, _, _ in _hpu_sim.compilations()])
        dist.destroy_process_group()
        """,
        env={"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "1"},
    ).stdout
    assert out.strip() == "['wait']"


def test_the_environment_asks_for_lazy_collectives_in_vain_in_eager_mode(monkeypatch):
    monkeypatch.setenv("PT_HPU_ENABLE_LAZY_COLLECTIVES", "1")
    assert not hccl._has_lazy_collectives()
    monkeypatch.setattr(hccl, "is_lazy", lambda: True)
    assert hccl._has_lazy_collectives()
