"""What is patched in Lightning's Trainer, and the private names this relies on.

The Trainer decides on accelerator, strategy and precision in `_AcceleratorConnector`. Six of its
methods are wrapped; each does what it did unless the accelerator is ours:

1. `_check_config_and_set_final_flags`: of an unknown name it says what an HPU has, not a GPU.
2. `_choose_auto_accelerator`: "hpu" where Lightning would take the CPU and there is a card.
3. `_set_parallel_devices_and_init_accelerator`: says what was looked for where there is no card.
4. `_choose_strategy`: a strategy on the HPU, where Lightning raises or falls back to the CPU.
5. `_check_strategy_and_fallback`: the user's choice in its form for the HPU, or a refusal.
6. `_check_and_init_precision`: autocast on the HPU, where Lightning would name another device.

Contract: Lightning 2.5.6 to 2.6.6 has all names in `_METHODS` and `_ATTRIBUTES`. They are looked
for before anything is patched; if one is missing, a warning says so and nothing is.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning.fabric.connector import _convert_precision_to_unified_args
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import StrategyRegistry
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gaudi import vendor

from .accelerator import HPUAccelerator
from .checkpoint import HPUCheckpointIO
from .distributed import check_start_method
from .precision import HPUPrecisionPlugin, check_precision_plugin, unsupported
from .strategies import HPUDDPStrategy, HPUParallelStrategy, SingleHPUStrategy, to_hpu_strategy
from .strategies.base import HPUStrategy
from .strategies.conversion import NAMES

_MARK = "_lightning_gaudi_is_patched"

_ATTRIBUTES = (
    "_accelerator_flag",
    "_devices_flag",
    "_num_nodes_flag",
    "_parallel_devices",
    "_precision_flag",
    "_precision_plugin_flag",
    "_strategy_flag",
    "accelerator",
    "strategy",
)


_OLD_NAMES: dict[str, type] = {
    "HPUAccelerator": HPUAccelerator,
    "HPUCheckpointIO": HPUCheckpointIO,
    "HPUParallelStrategy": HPUParallelStrategy,
    "HPUPrecisionPlugin": HPUPrecisionPlugin,
    "SingleHPUStrategy": SingleHPUStrategy,
}
"""What Lightning had until 2.5.5 and has only stubs of since."""


def patch_connector(module: ModuleType) -> None:
    """Wrap the connector's methods and register our names; doing it again is harmless."""
    connector = getattr(module, "_AcceleratorConnector", None)
    if connector is not None and _MARK in vars(connector):
        return
    missing = ["_AcceleratorConnector"] if connector is None else _missing_names(connector)
    if missing:
        _warn(module, missing)
        return
    HPUAccelerator.register_accelerators(AcceleratorRegistry)
    SingleHPUStrategy.register_strategies(StrategyRegistry)
    HPUDDPStrategy.register_strategies(StrategyRegistry)
    for name, wrap in _METHODS.items():
        setattr(connector, name, wrap(getattr(connector, name)))
    setattr(connector, _MARK, True)


def patch_graveyard(module: ModuleType) -> None:
    """Put our classes where Lightning left stubs for them, and add the HPU to the device log.

    The last module that Lightning imports, so that all others are there.
    """
    from lightning.pytorch import accelerators, plugins, strategies
    from lightning.pytorch.plugins import io, precision
    from lightning.pytorch.trainer import setup

    from .profiler import extend_trainer_setup

    places = (module, accelerators, strategies, plugins, io, precision)
    for name, ours in _OLD_NAMES.items():
        stub = getattr(module, name, None)
        for place in places:
            if stub is not None and getattr(place, name, None) is stub:
                setattr(place, name, ours)
    _extend_device_log(setup)
    extend_trainer_setup(setup)


def _missing_names(connector: type) -> list[str]:
    used = {
        name
        for function in vars(connector).values()
        if hasattr(function, "__code__")
        for name in function.__code__.co_names
    }
    missing = [name for name in _METHODS if not hasattr(connector, name)]
    return missing + [name for name in _ATTRIBUTES if name not in used]


def _warn(module: ModuleType, missing: list[str]) -> None:
    warnings.warn(
        f"accelerator='hpu' will not work: {module.__name__} has no {', '.join(missing)} any more, "
        "which lightning-gaudi relies on. Upgrade lightning-gaudi, or install a Lightning from "
        "2.5.6 to before 2.7.",
        RuntimeWarning,
        stacklevel=2,
    )


def _is_ours(connector: Any) -> bool:
    return isinstance(connector.accelerator, HPUAccelerator)


def _names_hpu(flag: Any) -> bool:
    return flag == "hpu" or isinstance(flag, HPUAccelerator)


def _wrap_check_config(original: Callable[..., None]) -> Any:
    @functools.wraps(original)
    def check_config(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except ValueError as error:
            typed = inspect.signature(original).bind(self, *args, **kwargs).arguments
            if _names_hpu(typed["accelerator"]):
                _refuse_unknown(typed["strategy"], typed["precision"], error)
            raise

    return check_config


def _refuse_unknown(strategy: Any, precision: Any, error: ValueError) -> None:
    """Raise our own words if Lightning's `error` is about a name it does not know."""
    if isinstance(strategy, str) and strategy.lower() not in {"auto", *StrategyRegistry}:
        raise MisconfigurationException(
            f"strategy={strategy!r} is unknown. With accelerator='hpu', pass {NAMES}, or an "
            "instance of a strategy."
        ) from error
    try:
        _convert_precision_to_unified_args(precision)
    except ValueError:
        raise MisconfigurationException(unsupported(f"precision={precision!r}")) from error


def _wrap_choose_auto_accelerator(original: Callable[[], str]) -> Any:
    @functools.wraps(original)
    def choose_auto_accelerator() -> str:
        chosen = original()
        return "hpu" if chosen == "cpu" and HPUAccelerator.is_available() else chosen

    return staticmethod(choose_auto_accelerator)


def _wrap_init_accelerator(original: Callable[[Any], None]) -> Any:
    @functools.wraps(original)
    def init_accelerator(self: Any) -> None:
        flag = self._accelerator_flag
        if _names_hpu(flag) and not HPUAccelerator.is_available():
            raise MisconfigurationException(_no_card(flag))
        original(self)

    return init_accelerator


def _wrap_choose_strategy(original: Callable[[Any], Any]) -> Any:
    @functools.wraps(original)
    def choose_strategy(self: Any) -> Any:
        if not _is_ours(self):
            return original(self)
        if len(self._parallel_devices) == 1 and self._num_nodes_flag == 1:
            return SingleHPUStrategy()
        if _IS_INTERACTIVE:
            check_start_method("fork", "'auto'")
        return HPUDDPStrategy()

    return choose_strategy


def _wrap_check_strategy(original: Callable[[Any], None]) -> Any:
    @functools.wraps(original)
    def check_strategy(self: Any) -> None:
        flag = self._strategy_flag
        if _is_ours(self):
            self._strategy_flag = to_hpu_strategy(flag)
            if isinstance(self._strategy_flag, SingleHPUStrategy):
                _refuse_several(flag, len(self._parallel_devices), self._num_nodes_flag)
        elif _is_hpu_strategy(flag):
            raise MisconfigurationException(
                f"strategy={flag!r} trains on an HPU, but the accelerator is "
                f"{self._accelerator_flag!r}. Pass accelerator='hpu', or another strategy."
            )
        original(self)

    return check_strategy


def _wrap_init_precision(original: Callable[[Any], Precision]) -> Any:
    @functools.wraps(original)
    def init_precision(self: Any) -> Precision:
        if not _is_ours(self):
            return original(self)
        if self._precision_plugin_flag is None:
            return HPUPrecisionPlugin(self._precision_flag)
        check_precision_plugin(self._precision_plugin_flag)
        return original(self)

    return init_precision


_METHODS: dict[str, Callable[[Any], Any]] = {
    "_check_config_and_set_final_flags": _wrap_check_config,
    "_choose_auto_accelerator": _wrap_choose_auto_accelerator,
    "_set_parallel_devices_and_init_accelerator": _wrap_init_accelerator,
    "_choose_strategy": _wrap_choose_strategy,
    "_check_strategy_and_fallback": _wrap_check_strategy,
    "_check_and_init_precision": _wrap_init_precision,
}


def _no_card(flag: Any) -> str:
    typed = repr(flag) if isinstance(flag, str) else f"{type(flag).__name__}()"
    return (
        f"accelerator={typed} needs an Intel Gaudi card, but {vendor.unavailable_reason()}, and no "
        "simulator was asked for. Run on a machine with Gaudi and its software, or simulate a "
        "card: set LIGHTNING_GAUDI_SIMULATE=1 before Python starts, or start the program with "
        "`lightning-gaudi simulate -- python ...`."
    )


def _is_hpu_strategy(flag: Any) -> bool:
    if isinstance(flag, str):
        flag = StrategyRegistry[flag]["strategy"]
        return isinstance(flag, type) and issubclass(flag, HPUStrategy)
    return isinstance(flag, HPUStrategy)


def _refuse_several(flag: Any, num_devices: int, num_nodes: int) -> None:
    """Refuse a strategy for one card where there are several: the others would idle."""
    if num_devices > 1 or num_nodes > 1:
        raise MisconfigurationException(
            f"strategy={flag!r} trains on one card, but devices and num_nodes ask for "
            f"{num_devices * num_nodes}. Pass strategy='auto' or 'hpu_ddp', or devices=1."
        )


def _extend_device_log(setup: ModuleType) -> None:
    original = getattr(setup, "_log_device_info", None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def log_device_info(trainer: Any) -> None:
        original(trainer)
        if isinstance(trainer.accelerator, HPUAccelerator):
            rank_zero_info(f"HPU available: True, using: {trainer.num_devices} HPU")

    setattr(log_device_info, _MARK, True)
    setup._log_device_info = log_device_info  # type: ignore[attr-defined]
