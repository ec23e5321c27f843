"""Lets linear layers multiply in fp8, by the vendor's Transformer Engine.

A layer stays the same module, with its parameters, its hooks and its names in a checkpoint. Only
its `forward` is replaced by one that hands input, weight and bias to an engine: a `Linear` of
Transformer Engine that has no parameters of its own. So whatever shards, saves or restores a model
works as before.

Source of how the engine counts, measures and recomputes, and of the names below: Intel Gaudi
PyTorch bridge, `hpex/experimental/transformer_engine`, `module/base.py` and `fp8.py` (commit
f90046f, of 2024, the last whose sources are public).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module
from torch.nn.functional import linear

from lightning_gaudi._core import vendor

from ..wording import did_you_mean, listed

LEFT_OUT = ("lm_head", "embed_out", "lora_A", "lora_B")
"""Names of layers that stay in bf16: output heads, and adapters, which are too small to gain.

Source: optimum-habana 1d8504c6c, `accelerate/utils/transformer_engine.py`, leaves adapters out."""

FORMATS = ("HYBRID", "E5M2")
ALGORITHMS = ("max", "most_recent")
_PHASE = "in_activation_recompute_phase"
_NEEDED = ("update_amax_fwd", "update_amax_bwd", _PHASE)
"""The entries of a layer's `fp8_meta` that the engine keeps and we set."""


def check_recipe(given: Any) -> None:
    """Checks the settings of delayed scaling, unless they are an object of the vendor's.

    Args:
        given: A mapping of arguments of `DelayedScaling`, an instance of it, or None.

    Raises:
        ValueError: A name or a value is not known.
    """
    if not isinstance(given, Mapping):
        return
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "fp8_format": ("'HYBRID' or 'E5M2'", lambda value: value in FORMATS),
        "interval": ("a number of steps, 1 or more", lambda value: _is_count(value, 1)),
        "margin": ("a number of powers of two, 0 or more", lambda value: _is_count(value, 0)),
        "amax_history_len": ("a number of steps, 1 or more", lambda value: _is_count(value, 1)),
        "amax_compute_algo": (
            "'max', 'most_recent' or a function",
            lambda value: value in ALGORITHMS or callable(value),
        ),
        "reduce_amax": ("true or false", lambda value: isinstance(value, bool)),
        "scaling_factor_compute_algo": ("a function or null", lambda v: v is None or callable(v)),
    }
    for name, value in given.items():
        if name not in rules:
            raise ValueError(
                f"recipe has {name!r}, which delayed scaling does not know."
                f"{did_you_mean(name, rules)} It takes {', '.join(rules)}."
            )
        expected, is_right = rules[name]
        if not is_right(value):
            raise ValueError(f"recipe has {name}={value!r}. Pass {expected}.")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def make_recipe(given: Any) -> Any:
    """Returns the vendor's `DelayedScaling`, whose format is HYBRID by default.

    Args:
        given: See `check_recipe`.
    """
    recipes = vendor.transformer_engine().recipe
    if given is not None and not isinstance(given, Mapping):
        return given
    settings = {"fp8_format": "HYBRID", **(given or {})}
    settings["fp8_format"] = getattr(recipes.Format, settings["fp8_format"])
    return recipes.DelayedScaling(**settings)


def find_linears(root: Module, skip: Sequence[str] = ()) -> dict[str, Linear]:
    """Returns the layers that are to compute in fp8, by name.

    These layers are left out: output heads (the output embeddings of transformers, and layers that
    share their weight with an embedding), adapters, layers with a `forward` of their own, and those
    in `skip`.

    Args:
        root: The model.
        skip: Names of layers, or of modules that contain them: "head" leaves out "head" and
            "model.head.up".

    Raises:
        ValueError: No layer has a name in `skip`, or no layer is left.
    """
    # A subclass with its own `forward` computes something else: 4-bit weights, for example.
    linears = {
        name: module
        for name, module in root.named_modules()
        if isinstance(module, Linear) and type(module).forward is Linear.forward
    }
    for name in skip:
        if not any(_is_below(linear, name) for linear in linears):
            parts = {part for linear in linears for part in linear.split(".")}
            raise ValueError(
                f"skip has {name!r}, but no linear layer has that name."
                f"{did_you_mean(name, {*linears, *parts})}"
            )
    heads = {id(head) for head in _heads(root)}
    embedded = {id(module.weight) for module in root.modules() if isinstance(module, Embedding)}
    found = {
        name: module
        for name, module in linears.items()
        if id(module) not in heads
        and id(module.weight) not in embedded
        and not any(_is_below(name, each) for each in (*LEFT_OUT, *skip))
    }
    if not found:
        raise ValueError(
            f"fp8 is for linear layers, and {type(root).__name__} has none that could "
            f"compute in it (left out: {listed([*linears]) or 'none'}). Use precision='bf16-mixed'."
        )
    return found


def _is_below(name: str, part: str) -> bool:
    return f".{part}." in f".{name}."


def _heads(root: Module) -> Iterator[Module]:
    for module in root.modules():
        find = getattr(module, "get_output_embeddings", None)
        head = find() if callable(find) else None
        if isinstance(head, Module):
            yield head


class Fp8Forward:
    """The `forward` of a linear layer that computes in fp8 within `fp8_autocast`.

    - In a training step the engine computes and measures, and its scales follow what it measures.
    - The first step is computed in bf16, while the engine only measures: it would begin with scales
      of 1, which round most weights and gradients to 0.
    - Activation checkpointing recomputes with the scales of the first computation, and measures
      nothing.
    - Evaluation uses the scales that training has found, and changes none. Before there are any, it
      finds scales for each batch.
    """

    in_checkpoint = 0
    """How many times torch's reentrant checkpointing has been entered, on the class. Its first pass
    computes no gradients, but belongs to a training step. See `fp8-checkpointing` in the
    register."""

    def __init__(self, layer: Linear, recipe: Any, minimize_memory: bool) -> None:
        """Makes an engine for a layer, which `install` puts in place.

        Args:
            layer: The layer, on any device; its weight may be a shard.
            recipe: The vendor's `DelayedScaling`.
            minimize_memory: Whether the backward rounds the weight again, instead of keeping it.

        Raises:
            RuntimeError: The engine of this release lacks an attribute that we need.
        """
        self.layer = layer
        self.recipe = recipe
        self.minimize_memory = minimize_memory
        self.engine = self._make_engine()
        self.trains = False
        self._scratch: Any = None
        self._in_first_step = False
        # The engine's output in the first step, and its input, until the backward.
        self._measured: tuple[Tensor, Tensor] | None = None
        missing = [name for name in _NEEDED if name not in self.engine.fp8_meta]
        if missing or not hasattr(self.engine, "run_cnt"):
            raise RuntimeError(
                f"This release's Transformer Engine has no {listed(missing) or 'run_cnt'} in its "
                "Linear, by which evaluation and activation checkpointing are kept apart from "
                "training. Train with precision='bf16-mixed'."
            )

    def _make_engine(self) -> Any:
        layer = self.layer
        return vendor.transformer_engine().Linear(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            params_dtype=layer.weight.dtype,
            skip_weight_param_allocation=True,
            minimize_memory=self.minimize_memory,
        )

    def install(self) -> None:
        """Replaces the layer's own `forward`."""
        self.layer.forward = self  # type: ignore[method-assign]

    def remove(self) -> None:
        """Restores the layer's own `forward`."""
        vars(self.layer).pop("forward", None)

    # A compiler would make constants of the engine's counters, which are Python numbers.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, input: Tensor) -> Tensor:
        """Returns the layer's output, of shape (..., O) for an input of shape (..., I)."""
        weight = self.layer.weight
        is_again = torch._C._current_graph_task_id() != -1
        if not vendor.transformer_engine().fp8.FP8GlobalStateManager.is_fp8_enabled():
            if is_again and self.trains:
                raise RuntimeError(
                    "A layer has computed in fp8, and activation checkpointing computes it again "
                    "outside of fp8: backward() was called on the loss itself. Call "
                    "self.manual_backward(loss) in a LightningModule, or fabric.backward(loss)."
                )
            return linear(input, weight, self.layer.bias)
        if hasattr(weight, "device_mesh"):
            raise RuntimeError(
                "A linear layer is split by tensor parallelism, in which there is no fp8. Leave it "
                "out (skip=[...]), parallelize by fully_shard alone, or use "
                "precision='bf16-mixed'."
            )
        if is_again and torch.is_grad_enabled():
            return self._compute_again(input)
        if torch.is_grad_enabled() or (self.layer.training and Fp8Forward.in_checkpoint):
            return self._train(input)
        if self.has_scales:
            return self._evaluate(input)
        return self._evaluate_without_scales(input)

    @property
    def has_scales(self) -> bool:
        """Whether training has found scales already."""
        return int(self.engine.run_cnt) > 1

    def _run(self, engine: Any, input: Tensor) -> Tensor:
        output: Tensor = engine(input, self.layer.weight, self.layer.bias)
        return output

    def _train(self, input: Tensor) -> Tensor:
        self.trains = self.engine.training = True
        self._in_first_step = self.engine.run_cnt == 0
        self._measured = None
        if not self._in_first_step:
            return self._run(self.engine, input)
        # The engine measures in the forward, because it recognizes its first layer by the order of
        # calls. Activation checkpointing must not see what it saves, which recomputing will not
        # save again.
        plainly = torch.autograd.graph.saved_tensors_hooks(_same, _same)
        with torch.enable_grad(), _measuring(True), plainly:
            seen = input.detach().requires_grad_()
            measured = self._run(self.engine, seen)
        # Its place in the graph is wanted, and not its values, which would stay until backward.
        measured.untyped_storage().resize_(0)
        self._measured = measured, seen
        return self._compute_first(input)

    def _compute_first(self, input: Tensor) -> Tensor:
        """Computes in bf16, and lets the engine measure the gradient in the backward."""
        output = linear(input, self.layer.weight, self.layer.bias)
        if self._measured is not None and output.requires_grad:
            (measured, seen), self._measured = self._measured, None
            measure = partial(_measure_gradient, measured, seen)
            output.register_hook(measure)  # type: ignore[no-untyped-call]
        return output

    def _compute_again(self, input: Tensor) -> Tensor:
        """Recomputes in the backward, for either kind of checkpointing.

        The engine's own context notices this only if the first pass had no gradients, which with
        `use_reentrant=False` it has. So the engine is told.
        """
        if not self.trains:
            raise RuntimeError(
                "A layer is computed in fp8 in the backward, and was not in the forward: it was in "
                "eval() or under no_grad() there, was called outside of the module that Fabric has "
                "set up, or is checkpointed by another function than torch's. Use "
                "torch.utils.checkpoint, on layers that train."
            )
        if self._in_first_step:
            return self._compute_first(input)
        te, meta = vendor.transformer_engine(), self.engine.fp8_meta
        te.fp8.FP8GlobalStateManager.copy_forward_fp8_meta_tensors_for_recompute(meta)
        meta[_PHASE] = True
        with te.distributed.activation_checkpointing():
            return self._run(self.engine, input)

    def _evaluate(self, input: Tensor) -> Tensor:
        engine = self.engine
        # A shallow copy is enough: the engine would replace these tensors only when it updates its
        # scales, which is switched off here.
        meta, run_cnt = dict(engine.fp8_meta), engine.run_cnt
        engine.training = False
        engine.fp8_meta.update(update_amax_fwd={}, update_amax_bwd={})
        try:
            with _measuring(False):
                return self._run(engine, input)
        finally:
            engine.fp8_meta.clear()
            engine.fp8_meta.update(meta)
            engine.run_cnt = run_cnt

    @torch.inference_mode(False)
    @torch.no_grad()
    def _evaluate_without_scales(self, input: Tensor) -> Tensor:
        """Measures this batch by another engine, then computes with the scales that it found."""
        te = vendor.transformer_engine()
        if self._scratch is None:
            self._scratch = self._make_engine()
        # Each rank measures for itself, because another one may have no batch left.
        recipe = te.recipe.DelayedScaling(
            fp8_format=self.recipe.fp8_format, margin=self.recipe.margin, reduce_amax=False
        )
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            self._run(self._scratch, input)
            return self._run(self._scratch, input)

    def state(self) -> Tensor:
        """Returns the engine's scales and counts as bytes."""
        state = self.engine.get_extra_state()
        if not isinstance(state, Tensor):
            raise RuntimeError(
                f"This release's Transformer Engine gives its state as {type(state).__name__}, "
                "which a checkpoint cannot hold. Save with save_weights_only=True."
            )
        return state.cpu()

    def load(self, state: Tensor) -> None:
        """Takes the scales and counts that `state` gave."""
        self.engine.set_extra_state(state)


@contextmanager
def _measuring(is_on: bool) -> Iterator[None]:
    """Switches the engine's measuring on or off inside the context, whatever its interval is."""
    state = vendor.transformer_engine().fp8.FP8GlobalStateManager
    before = state.get_manual_measurement_mode()
    state.set_measurement_mode(manual=True, manual_value=is_on)
    try:
        yield
    finally:
        state.set_measurement_mode(manual=before is not None, manual_value=bool(before))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _measure_gradient(measured: Tensor, seen: Tensor, gradient: Tensor) -> None:
    """Runs the engine's backward only to let it measure."""
    torch.autograd.grad(measured, seen, gradient)


def fp8_context(recipe: Any) -> Any:
    """Returns a context in which the layers compute in fp8, for the forward or the backward."""
    return vendor.transformer_engine().fp8_autocast(enabled=True, fp8_recipe=recipe)


class Fp8Layers:
    """Manages the layers of a model that compute in fp8."""

    def __init__(self, root: Module, recipe: Any, skip: Sequence[str], minimize: bool) -> None:
        """Makes the layers' engines; see `find_linears` and `Fp8Forward`."""
        self.root = root
        linears = find_linears(root, skip)
        self.forwards = {
            name: Fp8Forward(layer, recipe, minimize) for name, layer in linears.items()
        }

    def install(self) -> None:
        """Lets the layers compute in fp8."""
        for forward in self.forwards.values():
            forward.install()

    def remove(self) -> None:
        """Lets the layers compute as they were written; their engines keep the scales."""
        for forward in self.forwards.values():
            forward.remove()

    @property
    def have_trained(self) -> bool:
        """Whether a layer has computed in a training's forward, in this process or before it."""
        return any(int(forward.engine.run_cnt) for forward in self.forwards.values())

    def state(self) -> dict[str, Tensor]:
        """Returns the scales of each layer, by name."""
        return {name: forward.state() for name, forward in self.forwards.items()}

    def load(self, state: Mapping[str, Tensor]) -> list[str]:
        """Takes scales, and returns the names of the layers for which there are none."""
        for name in self.forwards.keys() & state.keys():
            self.forwards[name].load(state[name])
        return [name for name in self.forwards if name not in state]


def reentrant(original: Callable[..., Any], *args: Any) -> Any:
    """Runs the first pass of torch's reentrant checkpointing, and notes that it does."""
    Fp8Forward.in_checkpoint += 1
    try:
        return original(*args)
    finally:
        Fp8Forward.in_checkpoint -= 1
