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
        garbage = torch.full((2**20,), float("nan"))
        del garbage
        print(int((torch.ones(2**20, device="hpu").cpu() != 0).sum()))
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


SIZES = """
    import json, torch, warnings
    from lightning_gaudi.simulator import observer
    warnings.simplefilter("ignore")
    guessed = []
    observer.observe(lambda kind, what, *_: guessed.append(what) if kind == "guessed_size" else 0)
    found = []
    for labels in (torch.arange(8) % 3, torch.arange(2**19) % 3):  # of 64 B and of 4 MiB
        labels = labels.to("hpu")
        rows = torch.zeros(len(labels), 64, device="hpu", requires_grad=True)
        chosen = rows[labels > 1]
        chosen.sum().backward()
        rows.data[labels == 0] = 0.0
        found += [len(chosen), len(labels.unique()), len(torch.nonzero(labels)), *rows.grad.shape,
                  len(torch.masked_select(labels, labels > 0)), len(labels.bincount())]
    known = [*guessed]
    scores = torch.rand(2**20, device="hpu")  # too many to be computed: they read as zeros
    found += [len(scores.unique()), len(scores[scores > 0.5])]
    print(json.dumps([found, known, sorted(set(guessed))]))
"""


def test_sizes_follow_values_that_are_known_and_others_are_told_of() -> None:
    found, known, guessed = _last_line(SIZES, **DRY)
    small, large = 8, 2**19
    counts = [[sum(n % 3 == k for n in range(size)) for k in range(3)] for size in (small, large)]
    expected = [
        number
        for size, (zeros, _, twos) in zip((small, large), counts, strict=True)
        for number in (twos, 3, size - zeros, size, 64, size - zeros, 3)
    ]
    assert found == [*expected, 1, 0]
    assert known == []
    assert guessed == ["aten::_unique2", "aten::index.Tensor"]


def test_what_is_small_is_computed_and_what_is_large_takes_no_memory() -> None:
    found = _last_line(
        """
        import json, resource, torch
        from torch import nn
        torch.manual_seed(0)
        layer, words = nn.Linear(4, 3).to("hpu"), torch.tensor([[3, 1, 0], [2, 0, 0]]).to("hpu")
        x = torch.arange(8.0).view(2, 4).to("hpu")
        loss = nn.functional.cross_entropy(layer(x), words[:, 0].clamp(max=2))
        loss.backward()
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.zeros(2, 3, 5, device="hpu"), (words > 0).sum(1).cpu(), batch_first=True
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        arange = torch.arange(2**28, device="hpu")  # its result is an argument
        ones = torch.ones(2**28, device="hpu")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(json.dumps([loss.item(), layer.weight.grad.abs().sum().item(), len(packed.data),
                          [*arange.shape], grown]))
        """,
        **DRY,
    )
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 3), torch.arange(8.0).view(2, 4)
    loss = torch.nn.functional.cross_entropy(layer(x), torch.tensor([2, 2]))
    loss.backward()
    assert found[:2] == pytest.approx([loss.item(), layer.weight.grad.abs().sum().item()])
    assert found[2:4] == [3, [2**28]]
    assert found[4] < 100 * 1024  # KiB


LIKE_BEFORE = """
    import json, torch
    calls = []
    def tell(x, y, *, alpha=1):
        calls.append(1)
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    library = torch.library.Library("aten", "IMPL")
    library.impl("add.Tensor", tell, "Meta")
    # So large that nothing of them is computed, whatever a kernel that computes would refuse.
    x, y = torch.ones(600, 700, device="hpu"), torch.ones(600, 700, device="hpu")
    for other in range(2):
        torch.add(x, y)
"""


@pytest.mark.slow_but("torch.add(x, 1.0)")
@pytest.mark.parametrize(
    "call",
    [
        "torch.add(x.t(), y.t())",
        "torch.add(x[:1], y[:1])",
        "torch.add(x.half(), y)",
        "torch.add(x, x)",
        "torch.add(x, y, alpha=2)",
        "torch.add(x, y, alpha=True)",
        "torch.add(x, 1.0)",
        "torch.add(x, torch.tensor(1.0))",
    ],
)
def test_a_kernel_is_asked_once_for_arguments_that_look_the_same(call: str) -> None:
    source = f"""{LIKE_BEFORE}
    again = len(calls)
    for other in range(3):
        result = {call}
    print(json.dumps([again, len(calls) - again]))
    """
    assert _last_line(source, **DRY) == [1, 1]


@pytest.mark.slow
def test_what_is_remembered_has_memory_of_its_own() -> None:
    found = _last_line(
        f"""{LIKE_BEFORE}
    big = torch.ones(1024, 1024, device="hpu")
    torch.add(big, big)
    before = torch.hpu.memory_stats()["InUse"]
    sums = [torch.add(big, big) for _ in range(3)]
    taken = torch.hpu.memory_stats()["InUse"] - before
    print(json.dumps([len(calls), taken, len({{each.data_ptr() for each in sums}})]))
        """,
        **DRY,
    )
    assert found == [2, 3 * 2**22, 3]


def test_what_resizes_or_shares_memory_is_never_taken_from_before() -> None:
    found = _last_line(
        """
        import json, torch
        x = torch.ones(4, 6, device="hpu")
        found = []
        for _ in range(2):
            out, small = torch.empty(0, device="hpu"), torch.empty(2, 3, device="hpu")
            torch.add(x, 1, out=out)
            small.resize_(5, 7)
            flat = x.reshape(24)
            kept = x.type(torch.float32)
            found.append([[*out.shape], [*small.shape], flat.data_ptr() == x.data_ptr(), kept is x])
        for name in ("float32", "float64"):
            torch.set_default_dtype(getattr(torch, name))
            whole = torch.ones(3, dtype=torch.int32, device="hpu")
            found.append(str((whole / 2).dtype))
        print(json.dumps(found))
        """,
        LIGHTNING_GAUDI_SIMULATE_RULES="off",
        **DRY,
    )
    assert found[0] == found[1] == [[4, 6], [5, 7], True, True]
    assert found[2:] == ["torch.float32", "torch.float64"]


ALL_TWICE = """
    import json, warnings, torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_leaves, tree_map
    warnings.simplefilter("ignore")

    def look(value):
        return [
            (each.shape, each.stride(), each.dtype, each.storage_offset(), str(each.device),
             each.untyped_storage().nbytes()) if isinstance(each, torch.Tensor) else repr(each)
            for each in tree_leaves(value)
        ]

    def shared(inputs, outputs):
        inside = [each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor)]
        outside = [each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
        return [[each.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
                 for each in inside] for other in outside]

    def try_out(call, sample):
        to_card = lambda each: each.to("hpu") if isinstance(each, torch.Tensor) else each
        try:
            args = tree_map(to_card, (sample.input, sample.args, sample.kwargs))
            result = call(args[0], *args[1], **args[2])
        except Exception as error:
            return type(error).__name__, None
        return look(result), shared(args, result), look(args)

    num, other = 0, []
    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        for call in filter(None, (op.op, op.inplace_variant)):
            try:
                samples = [*op.sample_inputs("cpu", torch.float32)][:4]
            except Exception:
                continue
            for sample in samples:
                first, second = try_out(call, sample), try_out(call, sample)
                num += first[1] is not None
                if first != second:
                    other.append([op.name, str(first), str(second)])
    print(json.dumps([num, other]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_every_operator_gives_the_same_twice() -> None:
    num, other = _last_line(ALL_TWICE, LIGHTNING_GAUDI_SIMULATE_RULES="off", **DRY)
    assert num > 2000
    assert not other


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
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = {**DRY, **ranks, **address, "LIGHTNING_GAUDI_SIMULATE": "8"}
    env["LIGHTNING_GAUDI_RELIABILITY"] = "off"
    return int(_last_line(source, **env))


def test_what_is_sent_means_the_same_for_every_collective() -> None:
    """Of 4 ranks in a ring: an all-reduce sends as a reduce-scatter and an all-gather do."""
    source = """
        import json
        import torch
        import torch.distributed as dist
        import habana_frameworks.torch.distributed.hccl
        from lightning_gaudi import simulator

        dist.init_process_group("hccl")
        whole, part = torch.zeros(256, device="hpu"), torch.zeros(64, device="hpu")
        parts = [torch.zeros(64, device="hpu") for _ in range(4)]
        dist.all_reduce(whole)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part)
        dist.all_to_all_single(whole, torch.zeros(256, device="hpu"))
        dist.broadcast(whole, src=0)
        dist.reduce(whole, dst=1)
        dist.gather(part, parts, dst=0)
        dist.scatter(part, parts, src=0)
        dist.send(whole, dst=1)
        dist.recv(whole, src=1)
        stats = simulator.collective_stats()
        print(json.dumps({kind: each["sent"] for kind, each in stats.items()}))
    """
    ranks = {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert _last_line(source, **DRY, **ranks, **address, LIGHTNING_GAUDI_SIMULATE="8") == {
        "all_reduce": 1536,
        **dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all", "scatter"), 768),
        **dict.fromkeys(("broadcast", "reduce", "send"), 1024),
        "gather": 256,
        "recv": 0,
    }


@pytest.mark.slow_but("ddp")
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
