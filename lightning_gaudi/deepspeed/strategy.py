"""A mixin for the DeepSpeed strategies of the Trainer and of Fabric."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core.deepspeed_versions import warn_if_untested
from lightning_gaudi._patches.deepspeed import set_variables

from ..distributed.devices import select_card
from ..distributed.strategy import RankedMixin
from . import library
from .config import load as settings
from .config.offload import check_offload, prepare
from .config.validation import check_keys
from .engine.initialize import is_stage_3
from .engine.regions import GatheredRegions
from .pretrained import loads_into_shards


class DeepSpeedMixin(RankedMixin):
    """The base of strategies that train models larger than a card by DeepSpeed's ZeRO.

    Every `deepspeed` name and `DeepSpeedStrategy` instance becomes one on accelerator "hpu" and
    keeps its arguments, which are those of Lightning's `DeepSpeedStrategy`.
    """

    strategy_name = "hpu_deepspeed"

    has_whole_weights = False

    lightning_strategy: type[Any]
    """Lightning's `DeepSpeedStrategy`."""

    # A class attribute, since an instance of Lightning's own strategy may have become one of ours.
    _variables: tuple[str, ...] = ()
    """The variables of the vendor's bridge that this strategy has set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Creates the strategy; see Lightning's `DeepSpeedStrategy` for the arguments."""
        self.check_installed()
        library.load()
        super().__init__(*args, **kwargs)

    @classmethod
    def check_installed(cls) -> None:
        """Raises if DeepSpeed is absent or too old."""
        library.check_installed("strategy='deepspeed'")

    @override
    def takes_declared_regions(self, module: Module) -> bool:
        """Returns whether a model's `compile_regions` holds: stage 3 gathers parts one by one."""
        return not is_stage_3(self.deepspeed_config)

    @property
    def why_not_whole(self) -> str | None:  # type: ignore[override]
        """Why ZeRO-3 compiles regions, and no model as one."""
        if not is_stage_3(self.deepspeed_config):
            return None
        return (
            "but DeepSpeed's stage 3 gathers a model's weights part by part, by hooks which no "
            "graph can hold. Pass compile='regions' or 'none', or stage 2."
        )

    @override
    def prepare_regions(self, modules: Sequence[Module]) -> GatheredRegions | None:
        """Has ZeRO-3 gather the weights of each compiled module as one.

        Args:
            modules: The regions, and those in them that may be called in their place.
        """
        if not is_stage_3(self.deepspeed_config):
            return None
        return GatheredRegions(self.model, modules)

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """DeepSpeed's settings, as Lightning has read them when the strategy was made."""
        config = self.config
        assert isinstance(config, dict)
        return config

    def _loads_into_shards(self) -> AbstractContextManager[None]:
        """Lets `from_pretrained` load into shards within the block under stage 3."""
        is_sharded = is_stage_3(self.deepspeed_config)
        return loads_into_shards(self.deepspeed_config) if is_sharded else nullcontext()

    def validate_for_hpu(self, typed: str) -> None:
        """Checks what the user passed, and that DeepSpeed computes on the HPU."""
        super().validate_for_hpu(typed)
        library.load()
        check_keys(self.deepspeed_config)
        check_offload(self.deepspeed_config)

    @property
    @override
    def leaves_steps_out(self) -> bool:
        """Whether DeepSpeed scales losses, which it does itself: the plugin has no scaler."""
        return bool((self.deepspeed_config.get("fp16") or {}).get("enabled"))

    @override
    def _load_config(self, config: Any) -> dict[str, Any] | None:
        return settings.read(config, self.DEEPSPEED_ENV_VAR)

    @override
    def setup_environment(self) -> None:
        """Chooses this rank's card, prepares it, then connects all ranks."""
        warn_if_untested()
        select_card(self.parallel_devices, self.local_rank)
        self._variables = (*self._variables, *set_variables())
        prepare(self.deepspeed_config)
        # Skips the method of Lightning's DeepSpeedStrategy, which refuses all devices but GPUs.
        super(self.lightning_strategy, self).setup_environment()

    @override
    def setup_distributed(self) -> None:
        """Connects all ranks over HCCL, and DeepSpeed with them."""
        super().setup_distributed()
        self._set_node_environment_variables()
        library.connect(self._timeout)

    _setup_distributed = setup_distributed
