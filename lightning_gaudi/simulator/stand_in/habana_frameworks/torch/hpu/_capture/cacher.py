"""Implements ModuleCacher, which trains a model by captured graphs, one for each kind of input."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

from ..._binding import C
from .. import memory
from .graph_model import (
    GraphModel,
    get_full_args,
    process_function_signature,
    refuse_data_parallel,
)
from .keys import input_hash


class ModuleCacher(torch.nn.Module):
    """Trains a model by captured graphs: one forward and one backward for each kind of input.

    Inputs are of one kind if `input_hash` says so. No graph is used in evaluation, in calls without
    gradients, in eager mode, and for a new kind when there are `max_graphs`.

    Set gradients to zero, not to None, while they accumulate: the graph's gradients are the same
    memory at every replay. The model must not be wrapped for data parallel training before, and
    gradient checkpointing cannot be captured.

    Args:
        max_graphs: The most kinds of inputs.

    Source: `hpu/graphs.py`, 1.24.0; the vendor's "HPU Graphs for Training".
    """

    def __init__(self, max_graphs: int = 10) -> None:
        super().__init__()
        self.max_graphs = max_graphs
        self.model_dict: dict[int, GraphModel] = {}
        self.input_count_dict: dict[int, int] = {}
        self.priority_keys: list[int] = []
        self.is_capturing = False
        self.hpugraph_tracing = False
        self.iteration_cnt = -1
        self.cached_hits_dict: dict[int, int] = {}
        self.uncached_train_hits = 0
        self.uncached_eval_hits = 0
        self.forward_cnt = 0
        self.set_iterations_call_cnt = 0
        self.verbose = False

    def __call__(  # the vendor's object wraps a model when it is called
        self,
        model: torch.nn.Module,
        use_lfu: bool = False,
        inplace: bool = True,
        allow_unused_input: bool = False,
        asynchronous: bool = False,
        have_grad_accumulation: bool = False,
        log_frequency: int = 100,
        verbose: bool = False,
        disable_tensor_cache: bool = False,
        dry_run: bool = False,
    ) -> torch.nn.Module:
        """Makes a model train by graphs.

        Args:
            model: The model, on the device.
            use_lfu: Whether to capture only the kinds of inputs that were the most frequent
                between the model's `capture_start()` and `capture_end()`.
            inplace: Whether to change the model itself, not a shallow copy of it.
            allow_unused_input: See `make_graphed_callables`.
            asynchronous: Likewise.
            have_grad_accumulation: Whether the first micro-batch has graphs of its own; tell the
                model each one's number: `model.set_iteration_count(number)`.
            log_frequency: Every how many calls statistics are printed.
            verbose: Whether they are printed.
            disable_tensor_cache: See `make_graphed_callables`; PT_HPUGRAPH_DISABLE_TENSOR_CACHE=1
                or 0 overrules it.
            dry_run: Likewise; PT_HPUGRAPH_ENABLE_DRY_RUN=1 or 0 overrules it.

        Returns:
            The model, or its copy.

        Raises:
            AssertionError: The model is wrapped for data parallel training, or its forward takes
                positional arguments without names.
        """
        refuse_data_parallel(model)
        if not inplace:
            model = copy.copy(model)
        # A shallow copy: it shares the parameters and keeps the forward that is wrapped below.
        self.orig_model = copy.copy(model)
        self.forward_params = process_function_signature(self.orig_model.forward)
        self.model = model
        self.inplace = inplace
        self.use_lfu = use_lfu
        self.allow_unused_input = allow_unused_input
        self.asynchronous = asynchronous
        self.have_grad_accumulation = have_grad_accumulation
        self.log_frequency = log_frequency
        self.verbose = verbose
        self.disable_tensor_cache = _asked("PT_HPUGRAPH_DISABLE_TENSOR_CACHE", disable_tensor_cache)
        self.dry_run = _asked("PT_HPUGRAPH_ENABLE_DRY_RUN", dry_run)
        self._install()
        return self.model

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the graphs: a copy or a loaded object captures its own."""
        return {**self.__dict__, "model_dict": {}, "cached_hits_dict": {}}

    def _install(self) -> None:
        model = self.model
        model.orig_forward = model.forward
        model.forward = self.forward_lfs if self.use_lfu else self.forward
        model.is_hpugraph_tracing = self.is_hpugraph_tracing
        model.set_iteration_count = self.set_iteration_count
        model.capture_start = self.capture_start
        model.capture_end = self.capture_end

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model's forward by a graph, which is captured first if there is room for it."""
        key = self._key(args, kwargs)
        return self._run(key, len(self.model_dict) < self.max_graphs, args, kwargs)

    def forward_lfs(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model's forward with `use_lfu`, by graphs for the frequent kinds of inputs."""
        key = self._key(args, kwargs)
        if self.is_capturing:
            self.record(key)
        return self._run(key, key in self.priority_keys, args, kwargs)

    def _key(self, args: Any, kwargs: Any) -> int:
        self.iteration_cnt += 1
        key = input_hash(get_full_args(self.forward_params, *args, **kwargs))
        if self.have_grad_accumulation and self.forward_cnt == 0:
            key = input_hash((key, self.forward_cnt + 1))
        if self.verbose and self.iteration_cnt % self.log_frequency == 0:
            self.log_stats()
        return key

    def _run(self, key: int, may_capture: bool, args: Any, kwargs: Any) -> Any:
        is_training = self.model.training
        if is_training and torch.is_grad_enabled() and C.is_lazy() and not self.is_capturing:
            if key in self.model_dict:
                return self.cache_replay(key, *args, **kwargs)
            if may_capture:
                return self.cache_insert(key, *args, **kwargs)
        if is_training:
            self.uncached_train_hits += 1
        else:
            self.uncached_eval_hits += 1
        return self.model.orig_forward(*args, **kwargs)

    def cache_insert(self, input_id: int, *args: Any, **kwargs: Any) -> Any:
        """Captures the graphs for a kind of input, and replays the forward."""
        self.hpugraph_tracing = True
        try:
            graph_model = GraphModel(
                self.orig_model,
                self.allow_unused_input,
                self.asynchronous,
                self.disable_tensor_cache,
                self.dry_run,
            )
            graph_model.init_hpu_graph(*args, **kwargs)
            self.model_dict[input_id] = graph_model
            return self.cache_replay(input_id, *args, **kwargs)
        finally:
            self.hpugraph_tracing = False

    def cache_replay(self, input_id: int, *args: Any, **kwargs: Any) -> Any:
        """Replays the forward for a kind of input that was captured."""
        self.cached_hits_dict[input_id] = self.cached_hits_dict.get(input_id, 0) + 1
        return self.model_dict[input_id].graph_forward(*args, **kwargs)

    def is_hpugraph_tracing(self) -> bool:
        """Returns whether a graph is being captured."""
        return self.hpugraph_tracing

    def set_iteration_count(self, iter_num: int) -> None:
        """Says which micro-batch of a step comes next; 0 is the first."""
        self.forward_cnt = iter_num
        self.set_iterations_call_cnt += 1

    def capture_start(self) -> None:
        """Begins to count kinds of inputs, for `use_lfu`; nothing is captured meanwhile."""
        self.is_capturing = True

    def record(self, input_id: int) -> None:
        """Counts an input."""
        self.input_count_dict[input_id] = self.input_count_dict.get(input_id, 0) + 1

    def capture_end(self) -> None:
        """Ends counting: the most frequent kinds will be captured."""
        counts = self.input_count_dict
        self.priority_keys = sorted(counts, key=counts.__getitem__, reverse=True)
        self.priority_keys = self.priority_keys[: self.max_graphs]
        self.is_capturing = False
        self.input_count_dict = {}
        if self.verbose:
            self.log_stats()

    def log_stats(self) -> None:
        """Prints how many graphs there are and how often they were found."""
        hits = self.cached_hits_dict
        print("HPU graphs for training")
        print(f"  max_graphs={self.max_graphs} use_lfu={self.use_lfu}")
        print(f"  have_grad_accumulation={self.have_grad_accumulation}, told the micro-batch ")
        print(f"    {self.set_iterations_call_cnt} times")
        print(f"  graphs: {len(self.model_dict)}, replays: {sum(hits.values())} {hits}")
        print(f"  without a graph: {self.uncached_train_hits} in training, ")
        print(f"    {self.uncached_eval_hits} in evaluation")
        print(memory.memory_summary())


def _asked(variable: str, value: bool) -> bool:
    asked = os.environ.get(variable)
    return value if asked is None else asked == "1"
