"""Implements wrap_in_hpu_graph, which captures a module's forward for each new kind of input."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch

from ..._binding import C
from .. import memory
from ..streams import default_stream
from . import checks
from .context import capturing
from .graph import HPUGraph
from .keys import (
    copy_to,
    extract_tensors,
    get_user_input_tensor_list,
    input_hash,
    is_any_cpu_float_bfloat_0d_tensors,
)

Module = TypeVar("Module", bound=torch.nn.Module)


class CachedParams:
    """A captured forward, and the counts of all of them together."""

    cache_hits: dict[int, int] = {}  # noqa: RUF012 (the vendor counts for all modules together)
    iteration_cnt = 0
    skip_replay_cnt: dict[int, int] = {}  # noqa: RUF012
    bypass_hpu_graphs = 0

    def __init__(
        self,
        graph_inputs: Any,
        graph_outputs: Any,
        graph: HPUGraph,
        out_tinfo_list: list[dict[str, Any]] | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.graph_inputs = graph_inputs
        self.graph_outputs = graph_outputs
        self.graph = graph
        self.out_tinfo_list = out_tinfo_list
        self.asynchronous = asynchronous
        self.have_h2d_tensor = False
        self.watch: checks.Watch | None = None


@dataclass
class _Wrapper:
    """A wrapped forward with its settings and graphs."""

    forward: Callable[..., Any]
    cache: dict[int, CachedParams]
    asynchronous: bool
    disable_tensor_cache: bool
    dry_run: bool | None
    max_graphs: int | None
    free_inplace: bool
    verbose: bool
    log_frequency: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Captures or replays a graph, or calls the wrapped forward."""
        CachedParams.iteration_cnt += 1
        warmup_mode = kwargs.pop("warmup_mode", False)
        if kwargs.pop("bypass_hpu_graphs", False):
            CachedParams.bypass_hpu_graphs += 1
            return self.forward(*args, **kwargs)
        key = input_hash((args, kwargs))
        cache_tensors = extract_tensors(kwargs.pop("cache_tensors_list", []))
        cached = self.cache.get(key)
        if cached is None:
            if self.max_graphs is not None and len(self.cache) == self.max_graphs:
                return self.forward(*args, **kwargs)
            cached = self.cache[key] = self._capture(args, kwargs, cache_tensors)
        elif warmup_mode:
            C.mark_step()
            CachedParams.skip_replay_cnt[key] = CachedParams.skip_replay_cnt.get(key, 0) + 1
        else:
            CachedParams.cache_hits[key] = CachedParams.cache_hits.get(key, 0) + 1
            self._replay(cached, (args, kwargs))
        self._log_at_times()
        return cached.graph_outputs

    def _capture(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], cache_tensors: list[torch.Tensor]
    ) -> CachedParams:
        no_cache, dry_run = self.modes()
        graph = HPUGraph()
        tensors = get_user_input_tensor_list((args, kwargs))
        has_numbers = is_any_cpu_float_bfloat_0d_tensors(tensors)
        watch = checks.Watch.begin(getattr(self.forward, "__self__", None), (args, kwargs))
        with capturing(graph, default_stream(), dry_run):
            if no_cache or has_numbers:
                graph.mark_user_inputs(tensors)
            outputs = self.forward(*args, **kwargs)
        if watch is not None:
            watch.end(graph)
        cached = CachedParams((args, kwargs), outputs, graph, None, self.asynchronous)
        if no_cache:
            results = extract_tensors(outputs)
            cached.out_tinfo_list = [get_tensor_info(tensor) for tensor in results]
            graph.mark_user_outputs([*cache_tensors, *results], self.free_inplace)
            cached.graph_inputs = _unmatched(graph, tensors)
            checks.report_passed_through(tensors, results)
        cached.have_h2d_tensor = has_numbers
        cached.watch = watch
        if dry_run:
            self._run(cached, tensors)
        return cached

    def _replay(self, cached: CachedParams, inputs: Any) -> None:
        if cached.watch is not None:
            cached.watch.check(inputs)
        tensors = get_user_input_tensor_list(inputs)
        new = _unmatched(cached.graph, tensors) if self.modes()[0] else inputs
        old = get_user_input_tensor_list(cached.graph_inputs)
        checks.report_writes(cached.graph, old, get_user_input_tensor_list(new))
        with torch.no_grad():
            copy_to(cached.graph_inputs, new)
        self._run(cached, tensors)

    def _run(self, cached: CachedParams, tensors: tuple[torch.Tensor, ...]) -> None:
        if self.modes()[0] or cached.have_h2d_tensor:
            cached.graph.replayV3(tensors, self.asynchronous)
        else:
            cached.graph.replay(self.asynchronous)

    def modes(self) -> tuple[bool, bool]:
        """Returns whether graphs keep no tensors, and whether captures only find out what runs."""
        asked = os.environ.get("PT_HPUGRAPH_DISABLE_TENSOR_CACHE")
        no_cache = self.disable_tensor_cache if asked is None else asked == "1"
        return no_cache, no_cache if self.dry_run is None else self.dry_run

    def clear_cache(self) -> None:
        """Drops all graphs and their memory."""
        self.cache.clear()

    def clear_inputs(self) -> None:
        """Drops the inputs that the graphs update in place and still hold."""
        for cached in self.cache.values():
            cached.graph.clear_inputs()

    def log_statistics(self) -> None:
        """Prints how many graphs there are and how often they were found."""
        no_cache, dry_run = self.modes()
        hits = CachedParams.cache_hits
        print("HPU graphs for inference")
        print(f"  max_graphs={self.max_graphs} asynchronous={self.asynchronous}")
        print(f"  disable_tensor_cache={no_cache} dry_run={dry_run}")
        print(f"  graphs: {len(self.cache)}, replays: {sum(hits.values())} {hits}")
        print(f"  skipped in warm-up: {sum(CachedParams.skip_replay_cnt.values())}")
        print(f"  bypassed: {CachedParams.bypass_hpu_graphs}")
        print(memory.memory_summary())

    def _log_at_times(self) -> None:
        every = self.log_frequency
        if self.verbose and every > 0 and CachedParams.iteration_cnt % every == 0:
            self.log_statistics()


def get_tensor_info(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns shape, dtype and device of a tensor."""
    return {"shape": tensor.shape, "dtype": tensor.dtype, "device": tensor.device}


def _unmatched(graph: HPUGraph, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    matched = graph.get_user_input_match_indices()
    return tuple(tensor for i, tensor in enumerate(tensors) if i not in matched)


def wrap_in_hpu_graph_func(
    func: Callable[..., Any],
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool | None = None,
    max_graphs: int | None = None,
    free_inplace: bool = True,
    verbose: bool = False,
    log_frequency: int = 100,
) -> Callable[..., Any]:
    """Captures a function for each new kind of input; see `wrap_in_hpu_graph`."""
    wrapper = _Wrapper(
        func, {}, asynchronous, disable_tensor_cache, dry_run, max_graphs, free_inplace, verbose,
        log_frequency,
    )  # fmt: skip

    def forward(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    return forward


def wrap_in_hpu_graph(
    module: Module,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool | None = None,
    max_graphs: int | None = None,
    free_inplace: bool = True,
    verbose: bool = False,
    log_frequency: int = 100,
) -> Module:
    """Captures a module's forward for each new kind of input (see `input_hash`), and replays it.

    A replay runs no Python of the module, copies the new inputs into the tensors of the capture
    and returns its results: the same tensors each time, with new values. For inference: wrap in
    `torch.no_grad()`, or activations for a backward are kept as well.

    The call takes three more arguments: `bypass_hpu_graphs=True` calls the module itself,
    `warmup_mode=True` captures but does not replay, `cache_tensors_list` names tensors that are
    updated in place and are kept as results are.

    Args:
        module: What to wrap, in place; gets `clear_cache()`, `clear_inputs()`, `log_statistics()`.
        asynchronous: Whether a replay returns at once; no effect here.
        disable_tensor_cache: Whether replays read the new inputs where they are, so that the graph
            keeps none; PT_HPUGRAPH_DISABLE_TENSOR_CACHE=1 or 0 overrules it.
        dry_run: Whether a capture only finds out what runs, and a replay follows; None means where
            the tensor cache is disabled.
        max_graphs: Beyond this number of graphs the module runs without; None means no limit.
        free_inplace: With `disable_tensor_cache`, whether inputs that are updated in place are let
            go of after a replay, and not at `clear_inputs()`.
        verbose: Whether to print statistics.
        log_frequency: Every how many calls, of all wrapped modules together.

    Source: `hpu/graphs.py`, 1.24.0.
    """
    wrapper = _Wrapper(
        module.forward, {}, asynchronous, disable_tensor_cache, dry_run, max_graphs, free_inplace,
        verbose, log_frequency,
    )  # fmt: skip

    @wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    module.forward = forward
    module.clear_cache = wrapper.clear_cache
    module.clear_inputs = wrapper.clear_inputs
    module.log_statistics = wrapper.log_statistics
    return module
