"""Rules about captured HPU graphs, which go on with what the program has changed since.

A replay runs no Python: a card says nothing, and computes with the values of the capture.
"""

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_SOURCE = "Run Inference Using HPU Graphs; hpu/graphs.py and HPUGraph.cpp, 1.19 and 1.24.0"

PYTHON_STATE = Rule(
    key="graph-python-state",
    verdict=Verdict.DEMOTED,
    operators=("graph::capture",),
    what="changes Python state at the capture of a graph, and at no replay",
    instead="Count outside of what is captured, or keep the state in a tensor that is updated in "
    "place.",
    source=_SOURCE,
    mode="lazy",
)
STALE = Rule(
    key="graph-stale-value",
    verdict=Verdict.DEMOTED,
    operators=("graph::replay",),
    what="replays a graph with the value of its capture",
    instead="Copy into the captured tensor (tensor.copy_(new)), give it as a tensor argument, or "
    "capture again after clear_cache().",
    source=_SOURCE,
    mode="lazy",
)
HOST_VALUES = Rule(
    key="graph-host-values",
    verdict=Verdict.DEMOTED,
    operators=("graph::capture",),
    what="copies values of the host at the capture of a graph, and at no replay",
    instead="Make the tensor on the device (torch.arange, torch.full), once before the capture, or "
    "give it as an argument.",
    source=_SOURCE,
    mode="lazy",
)
HOST_RANDOM = Rule(
    key="graph-host-random",
    verdict=Verdict.DEMOTED,
    operators=("graph::capture",),
    what="draws random numbers of the host at the capture of a graph, and at no replay",
    instead="Draw on the device: torch.rand(..., device='hpu') draws anew at each replay.",
    source=_SOURCE,
    mode="lazy",
)
INPUT_NOT_WRITTEN = Rule(
    key="graph-input-not-written",
    verdict=Verdict.DEMOTED,
    operators=("graph::replay",),
    what="updates the argument of the capture in place, and not the one that is given at a replay",
    instead="Give the same tensor each time, or wrap with disable_tensor_cache=True.",
    source=_SOURCE,
    mode="lazy",
)
INPUT_RETURNED = Rule(
    key="graph-input-returned",
    verdict=Verdict.DEMOTED,
    operators=("graph::capture",),
    what="returns the input of the capture at every replay, where disable_tensor_cache=True lets a "
    "graph return an input or a view of it",
    instead="Return a copy (tensor.clone()), or keep the tensor cache.",
    source=_SOURCE,
    mode="lazy",
)
SHARED_GRADIENTS = Rule(
    key="graph-shared-gradients",
    verdict=Verdict.DEMOTED,
    operators=("graph::replay",),
    what="writes the gradients of a graph into the same memory at every replay, over those that "
    ".grad holds since it was None",
    instead="Give parameters gradients of zeros before the first backward and keep them: "
    "optimizer.zero_grad(set_to_none=False).",
    source="HPU Graphs for Training; make_graphed_callables in hpu/graphs.py, 1.24.0",
    mode="lazy",
)

ROWS: tuple[Rule, ...] = (
    PYTHON_STATE,
    STALE,
    HOST_VALUES,
    HOST_RANDOM,
    INPUT_NOT_WRITTEN,
    INPUT_RETURNED,
    SHARED_GRADIENTS,
)
"""The rules of graph capture."""
