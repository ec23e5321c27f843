"""Whose line is running."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

import pytest

from lightning_gaudi.tools.audit import call_sites
from lightning_gaudi.tools.audit.call_sites import Place


def _function_of(module: str, name: str = "run") -> Callable[[Callable[[], object]], Place]:
    """A function of a module of that name, which calls what it is given."""
    code = compile(f"def {name}(inner): return inner()", f"/x/site-packages/{module}.py", "exec")
    namespace = types.ModuleType(module).__dict__
    exec(code, namespace)
    return namespace[name]  # type: ignore[no-any-return]


def _below(*modules: str) -> Place:
    """The place of a user's line that calls functions of these modules, the outermost first."""
    call: Callable[[], object] = call_sites.here
    for module in reversed(modules):
        name, _, function = module.partition(":")
        outer = _function_of(name, function or "run")
        call = functools.partial(outer, call)
    return call()  # type: ignore[return-value]


def test_the_innermost_line_of_the_user_is_told() -> None:
    place = call_sites.here()
    assert (place.file, place.function) == (
        __file__,
        "test_the_innermost_line_of_the_user_is_told",
    )
    assert (place.via, place.stage, place.phase) == ("", "training", "forward")


def test_a_library_that_is_called_is_named_by_its_innermost_line() -> None:
    assert _below("torch.nn.functional").via == ""
    assert _below("transformers.trainer", "torch._tensor").via == "transformers.trainer.py:1, run"


@pytest.mark.parametrize(
    ("module", "stage"),
    [
        ("lightning.pytorch.loops.evaluation_loop", "validation"),
        ("pytorch_lightning.loops.evaluation_loop", "validation"),
        ("lightning.pytorch.trainer.connectors.checkpoint_connector", "checkpoint"),
        ("lightning.pytorch.loops.training_epoch_loop", "training"),
        ("transformers.trainer:evaluate", "validation"),
        ("transformers.trainer:train", "training"),
    ],
)
def test_the_stage_is_that_of_the_loop(module: str, stage: str) -> None:
    assert _below(module).stage == stage


def test_backward_and_the_optimizer_are_told_apart() -> None:
    assert _below("torch.autograd.graph").phase == "backward"
    assert _below("torch.optim.adamw").phase == "optimizer"
    assert _below("torch.nn.modules.module").phase == "model"
    closure = _below("torch.optim.adamw", "lightning.pytorch.loops.optimization.automatic")
    assert closure.phase == "forward"


def test_a_compiled_graph_is_known_by_its_backend() -> None:
    backend = "habana_frameworks.torch.dynamo.compile_backend.backends"
    assert _below(backend).is_compiled
    assert not _below("torch._dynamo.eval_frame").is_compiled


def test_who_trains_is_seen_on_the_stack() -> None:
    assert call_sites.trainer() == ""
    assert _function_of("transformers.trainer")(call_sites.trainer) == "transformers"
    assert _function_of("lightning_fabric.wrappers")(call_sites.trainer) == "lightning"
