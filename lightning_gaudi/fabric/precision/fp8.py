"""Has Fabric's plugins for fp8, which the vendor's Transformer Engine computes in."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Module
from torch.utils.checkpoint import CheckpointFunction
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi._core.wording import listed
from lightning_gaudi._patches.apply import wrap

from .deepspeed import HPUDeepSpeedPrecision
from .fsdp import HPUFSDPPrecision
from .plugin import HPUPrecision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_gaudi._core.precision.fp8 import Fp8Layers

NAMES = ("fp8", "transformer-engine")
"""The strings that may be passed as `precision`: our name, and Lightning's."""

BASES = ("bf16-mixed", "bf16-true", "32-true")


class FP8Mixin(Precision):
    """Lets linear layers multiply in fp8, on top of a plugin for another precision.

    Everything else is computed in that precision. A checkpoint has the same weights as in any other
    precision, and the scales beside them, which may be ignored.
    """

    precision: Any

    computes_in_fp8 = True

    minimize_memory: bool | None
    """Whether the backward rounds weights again, instead of keeping them in fp8."""

    # Class attributes, since the `__init__` of Lightning's own plugins does not set them.
    _layers: list[Fp8Layers]
    _restored: Mapping[str, Any]
    _installed: bool = False
    _is_in_first_step: bool = True
    _recipe: Any = None

    def __init__(
        self,
        precision: str = "fp8",
        recipe: Mapping[str, Any] | Any | None = None,
        skip: Sequence[str] = (),
        minimize_memory: bool | None = None,
    ) -> None:
        """Chooses how scales are found, and which layers stay out.

        Args:
            precision: The precision of everything else: `"bf16-mixed"`, which `"fp8"` and
                `"transformer-engine"` mean, `"bf16-true"`, or `"32-true"`.
            recipe: How scales follow the largest values seen: the vendor's `DelayedScaling`, or a
                mapping of its arguments (`fp8_format`, `"HYBRID"` by default or `"E5M2"`;
                `interval`, `margin`, `amax_history_len`, `amax_compute_algo`, `reduce_amax`).
            skip: Names of layers, or of modules, that are not computed in fp8. Output heads and the
                matrices of LoRA never are.
            minimize_memory: Whether the backward rounds weights to fp8 again, instead of keeping
                them from the forward; by default it does if weights are sharded.

        Raises:
            MisconfigurationException: The precision is no base for fp8.
            ValueError: A setting of `recipe` is not known.
        """
        from lightning_gaudi._core.precision.fp8 import check_recipe

        check_recipe(recipe)
        if isinstance(skip, str):
            raise ValueError(f"skip={skip!r} is no list. Pass [{skip!r}].")
        base = "bf16-mixed" if precision in NAMES else precision
        if base not in BASES:
            raise MisconfigurationException(
                f"{type(self).__name__}(precision={precision!r}) is no precision to compute in "
                f"beside fp8. Pass {' or '.join(map(repr, BASES))}."
            )
        super().__init__(base)  # type: ignore[call-arg]
        self.recipe, self.skip = recipe, tuple(skip)
        self.minimize_memory = minimize_memory
        self._layers, self._restored = [], {}

    def for_strategy(self, kind: type[Any], has_whole_weights: bool) -> Any:
        """Returns the plugin for a strategy: itself, or one of the strategy's with its settings.

        Args:
            kind: The strategy's plugin for fp8.
            has_whole_weights: Whether no weight of it is in shards.

        Raises:
            MisconfigurationException: It is a class of the user's for another strategy.
        """
        plugin: Any = self
        if not isinstance(self, kind):
            if type(self).__module__ != kind.__module__:
                raise MisconfigurationException(
                    f"{type(self).__name__} is no {kind.__name__}, in which this strategy computes "
                    f"in fp8. Derive it from {kind.__name__}, or pass precision='fp8'."
                )
            plugin = kind(self.precision, self.recipe, self.skip, self.minimize_memory)
        if plugin.minimize_memory is None:
            plugin.minimize_memory = not has_whole_weights
        return plugin

    @override
    def convert_module(self, module: Module) -> Module:
        """Lets the linear layers of a module compute in fp8; acquires the card.

        Raises:
            MisconfigurationException: The card or the release has no fp8.
            ValueError: A name in `skip` is no layer's, or no layer is left.
        """
        check_card()
        from lightning_gaudi._core.precision.fp8 import Fp8Layers, make_recipe, reentrant

        wrap("fp8-checkpointing", CheckpointFunction, "forward")(reentrant)

        if self._recipe is None:
            self._recipe = make_recipe(self.recipe)
        converted: Module = super().convert_module(module)
        found = next((each for each in self._layers if each.root is converted), None)
        if found is None:
            if not self._installed:  # these layers belong to an earlier run
                self._layers.clear()
            minimize = bool(self.minimize_memory)
            found = Fp8Layers(converted, self._recipe, self.skip, minimize)
            self._layers.append(found)
            self._restore(found, len(self._layers) - 1)
        found.install()
        self._installed = True
        return converted

    @override
    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Runs the model's forward, with its linear layers in fp8."""
        if self._is_in_first_step and any(layers.have_trained for layers in self._layers):
            # Cycles of torch's compiler, which stops at each such layer, hold the activations that
            # it has seen: a fifth of a step's memory.
            gc.collect()
            self._is_in_first_step = False
        with super().forward_context(), self._fp8():
            yield

    @override
    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Runs backward, in which checkpointed activations are computed in fp8 again."""
        with self._fp8():
            super().backward(*args, **kwargs)

    def _fp8(self) -> Any:
        from lightning_gaudi._core.precision.fp8 import fp8_context, make_recipe

        if self._recipe is None:
            self._recipe = make_recipe(self.recipe)
        return fp8_context(self._recipe)

    @override
    def teardown(self) -> None:
        """Restores the layers' own forward; the scales are kept for another run."""
        for layers in self._layers:
            layers.remove()
        self._installed = False
        super().teardown()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Returns the scales of all layers, and the state of the plugin for the rest."""
        scales = {str(number): each.state() for number, each in enumerate(self._layers)}
        return {**super().state_dict(), "fp8": scales}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes scales, which are kept until `convert_module` if there is no module yet."""
        self._restored = state_dict.get("fp8", {})
        rest = {name: value for name, value in state_dict.items() if name != "fp8"}
        if rest:
            super().load_state_dict(rest)
        for number, layers in enumerate(self._layers):
            self._restore(layers, number)

    def _restore(self, layers: Fp8Layers, number: int) -> None:
        state: Mapping[str, Tensor] | None = self._restored.get(str(number))
        new = layers.load(state) if state is not None else []
        if new:
            rank_zero_warn(
                f"The checkpoint has no scales of {listed(new)}: training begins to find them, as "
                "in a first step. It was saved with another skip=[...]."
            )


def check_card() -> None:
    """Refuses fp8 on a card that does not have it; acquires the card.

    Raises:
        MisconfigurationException: The card does not compute in fp8, or the release has no
            Transformer Engine.
    """
    card = vendor.generation()
    if card is not None and not card.has_float8:
        raise MisconfigurationException(
            f"precision='fp8' needs a Gaudi 2 or later, and this card is a {card.title}. Pass "
            "precision='bf16-mixed'."
        )
    try:
        vendor.transformer_engine()
    except ImportError as error:
        raise MisconfigurationException(
            "precision='fp8' computes by the vendor's Transformer Engine, which this release of "
            f"its software lacks ({error}). Install a release that has it (1.18 to 1.24 do), or "
            "pass precision='bf16-mixed'."
        ) from error


class HPUFP8Precision(FP8Mixin, HPUPrecision):
    """Has linear layers compute in fp8: `Fabric(precision="fp8")`, or with options `plugins=...`.

    It is for one card, DDP and FSDP2. Fabric saves no plugin: put `fabric.strategy.precision` into
    the state of a checkpoint, which then has the scales.
    """


class HPUFSDPFP8Precision(FP8Mixin, HPUFSDPPrecision):
    """Has linear layers compute in fp8 with FSDP (FullyShardedDataParallel)."""


class HPUDeepSpeedFP8Precision(FP8Mixin, HPUDeepSpeedPrecision):
    """Has linear layers compute in fp8 with DeepSpeed."""
