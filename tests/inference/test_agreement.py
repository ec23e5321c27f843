"""Tokens and logits are those of transformers' own `generate` on the CPU."""

import json

import pytest

from tests.helpers.forked import fork_module, fork_python
from tests.inference.agreement import NUM_TOKENS, observe, waits
from tests.inference.tiny_models import FUSED_KINDS, KINDS

LAZY = {"PT_HPU_LAZY_MODE": "1"}
FEW = 16


def check_text(found):
    assert found["distinct"] >= 20
    sizes = [size for size in (1, 8) if f"tokens {size}" in found]
    assert sizes
    for batch_size in sizes:
        assert found[f"tokens {batch_size}"] == 0
        assert found[f"logits {batch_size}"] < 1e-5


def check_costs(found, graphs_a_shape, captures_a_shape):
    # A first pass also copies the logits to the host, and so waits and launches more.
    assert 0 < found["first graph_compilation"] <= graphs_a_shape * found["shapes"]
    assert found["second graph_compilation"] == 0
    captures = captures_a_shape * found["shapes"]
    assert found["first captures"] == found["second captures"] == captures
    assert found["second host_sync"] == 0
    # A launch a token, and one that copies the result.
    assert found["second launch"] == found["calls"] * (NUM_TOKENS + 1)


@pytest.mark.slow_but("Bloom, 6 heads")
@pytest.mark.parametrize("kind", KINDS)
def test_on_the_cpu_tokens_and_logits_are_those_of_transformers(kind):
    check_text(observe(kind, count=FEW))


@pytest.mark.slow
def test_compiled_on_the_hpu_tokens_graphs_and_waits_are_as_promised():
    found = observe("Bloom, 6 heads", "hpu", "compile", FEW, batch_sizes=(8,))
    check_text(found)
    check_costs(found, graphs_a_shape=2, captures_a_shape=0)


def test_captured_on_the_hpu_tokens_graphs_and_waits_are_as_promised():
    name = "tests.inference.agreement"
    out = fork_module(name, str(FEW), "Llama", env=LAZY)
    for line in out.stdout.splitlines():
        found = json.loads(line)
        check_text(found)
        check_costs(found, graphs_a_shape=3, captures_a_shape=1)


@pytest.mark.parametrize(("check_end_every", "expected"), [(None, 0), (1, 11), (5, 2)])
def test_the_host_waits_as_often_as_it_is_told(check_end_every, expected):
    assert waits(check_end_every) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "graphs", "captures"), [("0", 2, 0), ("1", 3, 1)])
@pytest.mark.parametrize("kind", [*KINDS, *FUSED_KINDS])
def test_all_prompts_in_both_modes(kind, mode, graphs, captures):
    env = {"PT_HPU_LAZY_MODE": mode}
    out = fork_module("tests.inference.agreement", "64", kind, env=env, timeout=600)
    found = json.loads(out.stdout)
    check_text(found)
    check_costs(found, graphs, captures)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_prompt_is_read_as_one_that_is_not(kind):
    source = f"""
        from tests.inference.agreement import main
        main({FEW}, {kind!r}, capture_prefill=True)
    """
    found = json.loads(fork_python(source, env=LAZY).stdout)
    check_text(found)
    check_costs(found, graphs_a_shape=3, captures_a_shape=2)
