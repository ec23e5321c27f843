"""Work is counted as the card does it: a graph at each of its replays, weights as often as read."""

from __future__ import annotations

import json

import pytest

from tests.helpers.process import run_python

COUNTED = """
    import json, sys
    import torch
    from lightning_gaudi.inference.engine import Runner
    from lightning_gaudi.tools.plan.work import Work

    engine, num_weights, num_runs, size = sys.argv[1], *map(int, sys.argv[2:])
    empty = [torch.empty(size, size, device="hpu") for _ in range(num_weights)]
    weights = [torch.nn.Parameter(each) for each in empty]
    step_input = torch.empty(4, size, device="hpu")

    def step(values):
        for weight in weights:
            values = values @ weight
        return values

    work = Work(weights)
    work.start()
    runner = Runner(step, engine, device="hpu")
    for _ in range(num_runs):
        runner(step_input)
    work.stop()
    print(json.dumps([work.num_flops, work.moved_bytes, work.weight_bytes, runner.num_captures]))
"""
DRY = {"LIGHTNING_GAUDI_SIMULATE_DRY": "1", "PT_HPU_LAZY_MODE": "1"}


def _count(engine: str, num_weights: int, num_runs: int, size: int) -> list[int]:
    arguments = [engine, *map(str, (num_weights, num_runs, size))]
    counted: list[int] = json.loads(run_python(COUNTED, *arguments, env=DRY, timeout=300).stdout)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["graph", "none"])
def test_a_replayed_graph_counts_as_what_it_replays(engine: str) -> None:
    flops, moved, weights, captures = _count(engine, num_weights=3, num_runs=5, size=4096)
    assert captures == (engine == "graph")
    assert flops == 5 * 3 * 2 * 4 * 4096 * 4096
    # Each product reads a weight, and reads and writes 4 rows; a graph's input is copied besides.
    product = 4 * (4096 * 4096 + 2 * 4 * 4096)
    assert 0 <= moved - 5 * 3 * product <= 2 * 5 * 2 * 4 * 4 * 4096
    # 192 MiB do not stay on any card's chip: all weights are brought each time.
    assert weights == 5 * 3 * 4 * 4096 * 4096


CROSSING = """
    import json, sys
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend
    from lightning_gaudi import vendor
    from lightning_gaudi.tools.plan.work import Work

    def heads(length):
        return torch.empty(2, 4, length, 8, device="hpu", requires_grad=True)

    work = Work()
    work.start()
    for queries, keys in ((16, 16), (16, 32), (1, 16)):
        q, k = heads(queries), heads(keys)
        found = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ k
        found = found + vendor.fused_sdpa().apply(q, k, k, None, 0.0, False)
        (found + attend(q, k, k)).sum().backward()
    torch.softmax(torch.empty(8, 3, device="hpu"), dim=-1)  # classes
    work.stop()
    print(json.dumps([work.num_attentions, work.num_cross_attentions]))
"""


@pytest.mark.slow
def test_attention_to_another_sequence_is_counted_and_backward_is_not() -> None:
    found = json.loads(run_python(CROSSING, env=DRY, timeout=300).stdout)
    assert found == [10, 6]


@pytest.mark.slow
def test_weights_that_may_stay_on_the_chip_are_brought_once() -> None:
    *_, weights, _ = _count("graph", num_weights=3, num_runs=5, size=512)
    assert weights == 3 * 4 * 512 * 512
