"""What HCCL refuses, and what a lazy graph and the counters see of it; a group of one suffices."""

import warnings

import _hpu_sim
import pytest
import torch
import torch.distributed as dist
from habana_frameworks.torch.distributed import hccl  # noqa: TID251 (what the group comes from)

from lightning_gaudi import simulator
from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.rules import Verdict, table
from tests.helpers.forked import fork_python

# Names that torch 2.13 has others for, which older versions lack.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


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
    with pytest.raises(RuntimeError, match=r"got PREMUL_SUM.*for PREMUL_SUM multiply first"):
        dist.all_reduce(_ones(), op=dist._make_nccl_premul_sum(0.5))


def test_the_average_of_bool_is_refused():
    with pytest.raises(RuntimeError, match="cannot average bool tensors"):
        dist.all_reduce(_ones(torch.bool), op=dist.ReduceOp.AVG)


def _all_collectives(dtype):
    """Calls of each collective, by its name in the table of rules."""
    one, other = _ones(dtype), _ones(dtype)
    return {
        "all_reduce": lambda: dist.all_reduce(one),
        "reduce": lambda: dist.reduce(one, dst=0),
        "broadcast": lambda: dist.broadcast(one, src=0),
        "all_gather": lambda: dist.all_gather([other], one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(other, one),
        "gather": lambda: dist.gather(one, [other], dst=0),
        "scatter": lambda: dist.scatter(one, [other], src=0),
        "reduce_scatter": lambda: dist.reduce_scatter(one, [other]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, other),
        "all_to_all": lambda: dist.all_to_all([one], [other]),
        "all_to_all_single": lambda: dist.all_to_all_single(one, other),
        "all_to_all_single with split sizes": lambda: dist.all_to_all_single(one, other, [4], [4]),
    }


@pytest.fixture
def said():
    """Rules of the card's refuse, and are silent about what they only warn of."""
    rules.set_mode("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rules.GaudiRuleWarning)
        yield
    rules.forget_findings()


def _refused_types(collective):
    """Of a call without a reduction's or splits' conditions."""
    return {
        name
        for rule in table.RULES
        if rule.verdict is Verdict.REFUSED
        and f"hccl::{collective.partition(' ')[0]}" in rule.operators
        and (rule.when is None or (rule.when == "split_sizes" and "split" in collective))
        for name in rule.dtypes
    }


TYPES = (
    *("float32", "bfloat16", "float16", "float64", "int32", "int64", "int16", "int8", "uint8"),
    *("bool", "float8_e4m3fn", "float8_e5m2"),
)


@pytest.mark.usefixtures("said")
def test_every_collective_refuses_the_types_of_its_rows_and_no_others():
    for name in TYPES:
        for collective, call in _all_collectives(getattr(torch, name)).items():
            if name not in _refused_types(collective):
                call()
                continue
            match = f"{collective.partition(' ')[0]} with .*a Gaudi "
            with pytest.raises(rules.GaudiRuleError, match=match):
                call()
    refused = {collective: _refused_types(collective) for collective in _all_collectives(None)}
    assert "int16" in refused["all_reduce"]
    assert "int16" not in refused["broadcast"]
    assert "float8_e5m2" in refused["all_to_all_single with split sizes"]
    assert "float8_e5m2" not in refused["all_to_all_single"]


def test_tensors_of_two_types_are_refused():
    outputs, inputs = [[_ones(torch.float8_e4m3fn)]], [_ones(torch.float8_e5m2)]
    with pytest.raises(TypeError, match="takes tensors of one type, got float8_e5m2 and float8_e4"):
        dist.group.WORLD.allgather(outputs, inputs)


@pytest.mark.usefixtures("said")
def test_moving_an_odd_number_of_bytes_to_all_is_refused():
    for dtype in (torch.uint8, torch.float8_e5m2):
        with pytest.raises(rules.GaudiRuleError, match=r"with 3 elements.*Pad by one"):
            dist.all_to_all([_ones(dtype)[:3]], [_ones(dtype)[:3]])
    with pytest.raises(rules.GaudiRuleError, match=r"with 3 elements.*Pad by one"):
        dist.all_to_all_single(_ones(torch.float8_e5m2)[:3], _ones(torch.float8_e5m2)[:3])


def test_averages_of_integers_are_cut_or_refused():
    tensor = torch.tensor([-3, 3], device="hpu")
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    for dtype, call in (
        (torch.int64, lambda one: dist.reduce_scatter_tensor(one, one, op=dist.ReduceOp.AVG)),
        (torch.uint8, lambda one: dist.reduce_scatter(one, [one], op=dist.ReduceOp.AVG)),
    ):
        with pytest.raises(RuntimeError, match=r"cannot average integers by ReduceOp\.AVG"):
            call(_ones(dtype))
    dist.reduce_scatter_tensor(_ones(torch.uint8), _ones(torch.uint8), op=dist.ReduceOp.AVG)


def test_all_gather_coalesced_is_refused():
    with pytest.raises(RuntimeError, match=r"no all_gather_coalesced\. Call all_gather for each"):
        dist.all_gather_coalesced([[_ones()]], [_ones()])


def test_reduce_scatter_tensor_refuses_other_sizes():
    with pytest.raises(RuntimeError, match="the input has 4 elements and the output 2"):
        dist.group.WORLD._reduce_scatter_base(_ones()[:2], _ones())


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


def test_ending_what_was_not_begun_is_refused():
    with pytest.raises(RuntimeError, match="No collectives of this HCCL group are being coalesced"):
        dist.group.WORLD._end_coalescing(torch.device("hpu"))


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
