"""A dry card: sizes and addresses without values, and memory as on a card that computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy

from tests.helpers.forked import fork_python
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_checkpoint_cases import STRATEGIES, model_of, part_of, trainer_of

DRY = {"LIGHTNING_GAUDI_SIMULATE_DRY": "1"}

STEPS = """
import json, torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to("hpu")
head = nn.Conv1d(16, 2, 3, device="hpu")
optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()])
tokens = torch.randn(8, 16, 64)
for _ in range(2):
    with torch.autocast("hpu", torch.bfloat16):
        loss = head(layer(tokens.to("hpu"))).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
stats = torch.hpu.memory_stats()
print(json.dumps({name: stats[name] for name in ("InUse", "MaxInUse", "NumAllocs", "NumFrees")}))
"""


def _last_line(source: str, **env: str) -> Any:
    return json.loads(fork_python(source, env=env).stdout.splitlines()[-1])


def test_steps_take_the_same_memory_as_those_that_compute() -> None:
    dry = _last_line(STEPS, **DRY)
    assert dry == _last_line(STEPS)
    assert dry["MaxInUse"] > dry["InUse"] > 0


def test_what_comes_to_the_host_is_zero() -> None:
    source = """
        import torch
        garbage = torch.full((2**18,), float("nan"))
        del garbage
        print(int((torch.ones(2**18, device="hpu").cpu() != 0).sum()))
    """
    assert _last_line(source, **DRY) == 0


def test_tensors_have_sizes_and_addresses_and_take_no_memory_of_the_host() -> None:
    found = _last_line(
        """
        import json, resource, torch
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        big = [torch.empty(2**33, dtype=torch.uint8, device="hpu") for _ in range(8)]
        product = torch.ones(2**15, 2**15, device="hpu") @ torch.ones(2**15, 8, device="hpu")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(repr(product).startswith("tensor(..."))
        print(json.dumps([grown, len({each.data_ptr() for each in big}), [*product.shape],
                          product.sum().item(), product.cpu().shape[1]]))
        """,
        **DRY,
    )
    assert found[0] < 200 * 1024  # KiB
    assert found[1:] == [8, [2**15, 8], 0.0, 8]


def test_views_writes_and_small_copies_are_what_they_are_elsewhere() -> None:
    found = _last_line(
        """
        import json, torch
        whole = torch.zeros(4, 6, device="hpu")
        view = whole[1:].t()
        same = view.mul_(2).untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        out = torch.empty(0, device="hpu")
        torch.add(whole, 1, out=out)
        told = torch.tensor([3, 1, 2], device="hpu")
        print(json.dumps([same, [*view.shape], [*view.stride()], [*out.shape], told.tolist(),
                          torch.stack([told, told])[0].shape[0]]))
        """,
        **DRY,
    )
    assert found == [True, [6, 3], [1, 6], [4, 6], [3, 1, 2], 3]


@pytest.mark.parametrize(
    "operation", ["torch.nonzero(x)", "x[x > 0]", "torch.masked_select(x, x > 0)", "x.unique()"]
)
def test_sizes_that_depend_on_values_are_refused(operation: str) -> None:
    source = f"""
        import torch, warnings
        warnings.simplefilter("ignore")
        x = torch.randn(8, device="hpu")
        try:
            {operation}
        except NotImplementedError as error:
            print("refused")
    """
    assert "refused" in fork_python(source, env=DRY).stdout


def _peak(rank: int, name: str, num_ranks: int) -> int:
    torch.manual_seed(7)
    stage = name.removeprefix("zero_")
    strategy: Any = STRATEGIES.get(name, lambda num: DeepSpeedStrategy(stage=int(stage)))
    trainer = trainer_of("ddp", num_ranks, max_epochs=1, strategy=strategy(num_ranks))
    trainer.fit(model_of(name), part_of(name, trainer.global_rank, num_ranks))
    return int(torch.hpu.memory_stats()["MaxInUse"])


def _dry_peak(folder: Path, name: str, num_ranks: int) -> int:
    """Of a process that is alone, and takes itself for the first of many."""
    source = f"""
        import json
        from lightning_gaudi.distributed import process_group
        from tests.simulator.test_dry import _peak
        process_group._check_cards = lambda node_rank: None
        print(json.dumps(_peak(0, {name!r}, {num_ranks})))
    """
    ranks = {"WORLD_SIZE": str(num_ranks), "RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    env = {**DRY, **ranks, **address, "LIGHTNING_GAUDI_SIMULATE": "8"}
    env["LIGHTNING_GAUDI_RELIABILITY"] = "off"
    return int(_last_line(source, **env))


@pytest.mark.parametrize(
    "name",
    [
        "ddp",
        "fsdp2_shards",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fsdp_shards", "tensor_full", "zero_1", "zero_2", "zero_3")
        ),
    ],
)
def test_a_rank_alone_takes_what_it_takes_among_others(name: str, tmp_path: Path) -> None:
    among = run_trainers(_peak, tmp_path, name, 2, env={"LIGHTNING_GAUDI_RELIABILITY": "off"})
    assert _dry_peak(tmp_path, name, 2) == among[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp2_shards", "zero_3"])
def test_more_ranks_take_less(name: str, tmp_path: Path) -> None:
    peaks = [_dry_peak(tmp_path, name, num_ranks) for num_ranks in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3
