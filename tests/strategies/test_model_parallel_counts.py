"""What a step in shards does beyond torch's own engine: nothing that waits, or sends anything."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lightning_gaudi._core import vendor
from lightning_gaudi.simulator import collective_stats, host_syncs
from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import Layout, Parallel
from tests.strategies.sharded_cases import Batch, Block, Case, Stack, loader, make_net

pytestmark = pytest.mark.slow

WARM = 4
"""Steps after which engines and optimizers have all that they will need."""

CASES = {
    "plain": Case("adamw"),
    "bf16-mixed": Case("adamw", {"precision": "bf16-mixed"}),
    "clipped_value": Case("adamw", {"gradient_clip_val": 0.3, "gradient_clip_algorithm": "value"}),
    "clipped_norm": Case("adamw", {"gradient_clip_val": 0.3}),
}
LAYOUTS = {"fsdp2": Layout(2, 1), "tensors": Layout(1, 2), "fsdp2_of_tensors": Layout(2, 2)}
RUNS = (
    (2, ("fsdp1", "fsdp2", "tensors"), None),
    (2, ("tensors",), {"PT_HPU_LAZY_MODE": "1"}),
    (4, ("fsdp2_of_tensors",), None),
)
"""Ranks, layouts, environment."""

Steps = list[Counter[str]]


def _counts() -> Counter[str]:
    counts = Counter(host_syncs())
    counts["graphs"] = vendor.metric("graph_compilation")["TotalNumber"]  # type: ignore[index]
    for kind, stats in collective_stats().items():
        counts[kind] = stats["calls"]
    return counts


class Counting:
    """Notes at the start of each training step what was counted so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts: Steps = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.counts.append(_counts())
        loss: Tensor = super().training_step(batch, batch_idx)  # type: ignore[misc]
        self.log("loss", loss)  # type: ignore[attr-defined]
        return loss


class CountingParallel(Counting, Parallel): ...


class CountingStack(Counting, Stack): ...


def _bare(net: nn.Module, data: Any) -> Steps:
    """A loop with torch alone."""
    counts = []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for features, targets in data:
        counts.append(_counts())
        output = net(features.to("hpu", non_blocking=True))
        (output - targets.to("hpu", non_blocking=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        vendor.mark_step()
    return _steps(counts)


def _steps(counts: Steps) -> Steps:
    return [after - before for before, after in pairwise(counts)][WARM:]


def _bare_in_shards(rank: int, name: str) -> Steps:
    if name == "fsdp1":
        policy = ModuleWrapPolicy({Block})
        device = torch.device("hpu", 0)
        net: nn.Module = FullyShardedDataParallel(
            make_net(), auto_wrap_policy=policy, device_id=device, use_orig_params=True
        )
        return _bare(net, loader(rank, 2))
    layout = LAYOUTS[name]
    names = ("data_parallel", "tensor_parallel")
    mesh = init_device_mesh("hpu", (layout.data, layout.tensors), mesh_dim_names=names)
    net = layout.how(make_net(), mesh).to("hpu")
    return _bare(net, loader(rank // layout.tensors, layout.data))


def _fit(rank: int, names: tuple[str, ...]) -> dict[tuple[str, str], Steps]:
    found = {}
    for name in names:
        for key, case in CASES.items():
            if name == "fsdp1" and key == "clipped_value":
                continue
            if name == "fsdp1":
                model: Any = CountingStack()
                case.fit(2, model=model, strategy=FSDPStrategy(auto_wrap_policy={Block}))
            else:
                model = LAYOUTS[name].fit(case, kind=CountingParallel)[1].lightning_module
            found[name, key] = _steps(model.counts)
        found[name, "bare"] = _bare_in_shards(rank, name)
    return found


@pytest.fixture(scope="module", params=RUNS, ids=("eager", "lazy", "both"))
def ranks(request: pytest.FixtureRequest, tmp_path_factory: Any) -> list[Any]:
    num, names, env = request.param
    folder = tmp_path_factory.mktemp("ranks")
    return run_trainers(_fit, folder, names, num_ranks=num, env=env)


def test_step_does_what_the_bare_engine_does(ranks: list[Any]) -> None:
    """But for the norm of the gradients: one reduction for each axis that they are spread over."""
    for found in ranks:
        for (name, key), steps in found.items():
            for step, bare in zip(steps, found[name, "bare"], strict=True):
                more = Counter(step)
                more.subtract(bare)
                is_norm = key == "clipped_norm"
                assert {kind for kind, count in more.items() if count} == (
                    {"all_reduce"} if is_norm else set()
                ), (name, key, step, bare)
                assert more["all_reduce"] <= 3


def test_fsdp2_and_tensor_parallelism_wait_for_no_device(ranks: list[Any]) -> None:
    """The old FSDP does, in torch itself: it waits for each layer that it has gathered."""
    kinds = {"all_gather", "reduce_scatter", "all_reduce"}
    for found in ranks:
        for (name, key), steps in found.items():
            if name != "fsdp1":
                assert all(set(step) <= kinds for step in steps), (name, key)
