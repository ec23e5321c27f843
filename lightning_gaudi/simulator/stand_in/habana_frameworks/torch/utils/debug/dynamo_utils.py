"""Counts the operations that `torch.compile(backend="hpu_backend")` puts into graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...._missing import missing


class FxGraphAnalyzer:
    """Counts the operations of each graph that is compiled within a `with` block.

    Args:
        reset_dynamo: Whether to forget the graphs that were compiled before.
        capture_non_hpu_output: Whether operations count whose results are not on the HPU.
    """

    @dataclass
    class OpCount:
        """The number of times an operation was in a graph, and was left to eager mode."""

        graph_count: int = 0
        eager_count: int = 0

    registered_contexts: ClassVar[dict[int, FxGraphAnalyzer]] = {}
    """The analyzers that count at present."""

    def __init__(self, reset_dynamo: bool = False, capture_non_hpu_output: bool = False) -> None:
        self.reset_dynamo = reset_dynamo
        self.capture_non_hpu_output = capture_non_hpu_output
        self.graphs: list[dict[str, FxGraphAnalyzer.OpCount]] = []
        self.partition_num = 0

    def __enter__(self) -> FxGraphAnalyzer:
        self.registered_contexts[id(self)] = self
        if self.reset_dynamo:
            torch._dynamo.reset()
        return self

    def __exit__(self, *exc_info: object) -> None:
        del self.registered_contexts[id(self)]

    def count_ops(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Counts a graph's operations; the simulated HPU leaves none to eager mode."""
        counts: dict[str, FxGraphAnalyzer.OpCount] = {}
        for node in nodes:
            if node.op in ("call_function", "call_method") and self._counts(node):
                name = node._pretty_print_target(node.target)
                counts.setdefault(name, FxGraphAnalyzer.OpCount()).graph_count += 1
        self.graphs.append(counts)
        self.partition_num += 1

    def _counts(self, node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        device = getattr(value, "device", None)
        return self.capture_non_hpu_output or (device is not None and device.type == "hpu")

    def get_ops_summary(self) -> list[dict[str, OpCount]]:
        """Returns the counts by operation, of each graph."""
        return self.graphs

    def get_partition_num(self) -> int:
        """Returns the number of graphs that went to the device."""
        return self.partition_num


def count_graph(graph_module: torch.fx.GraphModule) -> None:
    """Has all analyzers count a graph that is compiled."""
    for analyzer in FxGraphAnalyzer.registered_contexts.values():
        analyzer.count_ops(graph_module.graph.nodes)


__getattr__ = missing(__name__)
