"""Patches the connectors, in which Trainer and Fabric choose accelerator and strategy.

Seven methods of each are wrapped. Each is unchanged unless the accelerator is ours:

1. `_check_config_and_set_final_flags`: names what an HPU has if a name is unknown.
2. `_choose_auto_accelerator`: "hpu" where Lightning would take the CPU and there is a card.
3. `_set_parallel_devices_and_init_accelerator`: says why there is no card; with devices="auto" a
   strategy for one card gets one, as does a notebook.
4. `_choose_and_init_cluster_environment`: finds launchers that Lightning does not know, and the
   number of nodes if the launcher tells it.
5. `_choose_strategy`: gives a strategy for the HPU, where Lightning raises or takes the CPU's.
6. `_check_strategy_and_fallback`: turns the user's choice into its form for the HPU, or refuses it.
7. `_check_and_init_precision`: autocasts on the HPU, where Lightning would name another device.

The decisions are made in modules that are imported when an HPU is asked for:
`fabric.strategies.selection`, `fabric.accelerator` and `fabric.precision`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, NamedTuple, Union, get_args

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.strategy_table import STRATEGIES, listed_names

from .apply import enter, raise_missing, replace, require, wrap

_ATTRIBUTES = (
    "_accelerator_flag",
    "_cluster_environment_flag",
    "_devices_flag",
    "_num_nodes_flag",
    "_parallel_devices",
    "_strategy_flag",
    "accelerator",
    "strategy",
)
"""Attributes of a connector that our methods use; its own methods must name each of them."""


class ConnectorSpec(NamedTuple):
    """Names that differ between the connectors of Trainer and Fabric."""

    patch: str
    """The name in the register."""
    connector: str
    """The connector's class."""
    precision_name: str
    """The attribute with the precision given by name."""
    precision_plugin: str
    """The attribute with a precision plugin that was passed instead."""
    accelerators: str
    """Lightning's registry of accelerators by name, in the connector's module."""
    strategies: str
    """Lightning's registry of strategies by name."""
    room: str
    """The prefix of our modules for it."""

    @property
    def is_fabrics(self) -> bool:
        """Whether it is Fabric's connector."""
        return bool(self.room)


_TRAINER = ConnectorSpec(
    patch="trainer-connector",
    connector="_AcceleratorConnector",
    precision_name="_precision_flag",
    precision_plugin="_precision_plugin_flag",
    accelerators="AcceleratorRegistry",
    strategies="StrategyRegistry",
    room="",
)
_FABRIC = ConnectorSpec(
    patch="fabric-connector",
    connector="_Connector",
    precision_name="_precision_input",
    precision_plugin="_precision_instance",
    accelerators="ACCELERATOR_REGISTRY",
    strategies="STRATEGY_REGISTRY",
    room="fabric.",
)


def patch_trainer(module: ModuleType, family: Family) -> None:
    """Wraps the methods of the Trainer's connector and registers our names."""
    _Hooks(module, family, _TRAINER).install()


def patch_fabric(module: ModuleType, family: Family) -> None:
    """Wraps the methods of Fabric's connector and registers our names."""
    _Hooks(module, family, _FABRIC).install()


def patch_precision_names(module: Any, family: Family) -> None:
    """Lets "fp8" be passed as `precision`, wherever Lightning looks at the names."""
    patch = "precision-names"
    require(patch, module, "_PRECISION_INPUT_INT", "_PRECISION_INPUT_STR_ALIAS")
    names = (*get_args(module._PRECISION_INPUT_STR), "fp8")
    known = Literal[names]  # type: ignore[valid-type]
    every = known, module._PRECISION_INPUT_INT, module._PRECISION_INPUT_STR_ALIAS
    replace(patch, module, "_PRECISION_INPUT_STR", known)
    replace(patch, module, "_PRECISION_INPUT", Union[every])  # noqa: UP007 (made here)


def patch_four_bit_dtype(module: ModuleType, family: Family) -> None:
    """Lets `BitsandbytesPrecision` compute in bfloat16 by default where there is an HPU.

    It is made before a connector knows the accelerator.
    """

    @wrap("four-bit-dtype", module.BitsandbytesPrecision, "__init__")
    def init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        asked = inspect.signature(original).bind(*args, **kwargs)
        is_open = asked.arguments.get("dtype") is None
        if is_open and not asked.arguments["mode"].startswith("int8"):
            import torch

            from lightning_gaudi._core import vendor

            if vendor.is_available() and not torch.cuda.is_available():
                asked.arguments["dtype"] = torch.bfloat16
        original(*asked.args, **asked.kwargs)


class _Hooks:
    """The wrappers of a connector's methods, which get the method and its arguments."""

    def __init__(self, module: Any, family: Family, spec: ConnectorSpec) -> None:
        self._module = module
        self._family = family
        self._spec = spec

    def install(self) -> None:
        module, spec = self._module, self._spec
        require(spec.patch, module, spec.connector, spec.accelerators, spec.strategies)
        connector = getattr(module, spec.connector)
        require(spec.patch, connector, *self.methods())
        self._check_attributes(connector)
        family = self._family
        room = f"{family.ours}.{spec.room}"
        accelerators, strategies = (
            getattr(module, name) for name in (spec.accelerators, spec.strategies)
        )
        register_accelerator(spec.patch, accelerators, f"{room}accelerator")
        register_strategies(spec.patch, strategies, f"{room}strategies", in_fabric=spec.is_fabrics)
        for name, hook in self.methods().items():
            wrap(spec.patch, connector, name)(hook)

    def methods(self) -> dict[str, Callable[..., Any]]:
        return {
            "_check_config_and_set_final_flags": self.check_config,
            "_choose_auto_accelerator": self.choose_auto_accelerator,
            "_set_parallel_devices_and_init_accelerator": self.init_accelerator,
            "_choose_and_init_cluster_environment": self.choose_environment,
            "_choose_strategy": self.choose_strategy,
            "_check_strategy_and_fallback": self.check_strategy,
            "_check_and_init_precision": self.init_precision,
        }

    def _check_attributes(self, connector: type) -> None:
        # Instance attributes cannot be checked on the class, so the bytecode of its methods must
        # name them.
        functions = [inspect.unwrap(each) for each in vars(connector).values() if callable(each)]
        functions = [each for each in functions if hasattr(each, "__code__")]
        used = {name for each in functions for name in each.__code__.co_names}
        attributes = (*_ATTRIBUTES, self._spec.precision_name, self._spec.precision_plugin)
        if missing := [name for name in attributes if name not in used]:
            raise_missing(self._spec.patch, connector, missing)

    @cached_property
    def _selection(self) -> Any:
        """Chooses our strategy for one of Lightning's."""
        family, spec = self._family, self._spec
        return family.find("fabric.strategies.selection").StrategySelection(
            registry=getattr(self._module, spec.strategies),
            lightning=f"{family.fabric if spec.is_fabrics else family.trainer}.",
            ours=f"{family.ours}.{spec.room}strategies",
            precision=f"{family.ours}.{spec.room}precision",
            names=listed_names(in_fabric=spec.is_fabrics),
        )

    def _is_ours(self, connector: Any) -> bool:
        # `loaded` imports nothing: if the class was never imported, no accelerator can be an
        # instance of it.
        kind = self._family.loaded("fabric.accelerator", "HPUAccelerator")
        return kind is not None and isinstance(connector.accelerator, kind)

    def _names_hpu(self, flag: Any) -> bool:
        kind = self._family.loaded("fabric.accelerator", "HPUAccelerator")
        return flag == "hpu" or (kind is not None and isinstance(flag, kind))

    def _is_our_strategy(self, flag: Any) -> bool:
        if isinstance(flag, str):
            return isinstance(getattr(self._module, self._spec.strategies)[flag], LazyEntry)
        kind = self._family.loaded(f"{self._spec.room}strategies.base", "HPUStrategy")
        return kind is not None and isinstance(flag, kind)

    def check_config(self, original: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except ValueError as error:
            typed = inspect.signature(original).bind(*args, **kwargs).arguments
            if self._names_hpu(typed["accelerator"]):
                self._selection.refuse_unknown(typed["strategy"], typed["precision"], error)
            raise

    def choose_auto_accelerator(self, original: Callable[..., str], /, *args: Any) -> str:
        from lightning_gaudi._core import vendor

        chosen = original(*args)
        return "hpu" if chosen == "cpu" and vendor.is_available() else chosen

    def init_accelerator(self, original: Callable[[Any], None], connector: Any) -> None:
        flag = connector._accelerator_flag
        if self._names_hpu(flag):
            self._family.find("fabric.accelerator").require_card(flag)
            if connector._devices_flag == "auto":
                interactive = self._module._IS_INTERACTIVE
                if self._selection.takes_one_card(connector._strategy_flag, interactive):
                    connector._devices_flag = 1
        original(connector)

    def choose_environment(self, original: Callable[[Any], Any], connector: Any) -> Any:
        if not self._is_ours(connector):
            return original(connector)
        cluster = self._family.find("distributed.cluster")
        asked = len(connector._parallel_devices), connector._num_nodes_flag
        is_open = connector._cluster_environment_flag is None
        found = cluster.find_environment(*asked) if is_open else None
        found = found or original(connector)
        connector._num_nodes_flag = cluster.find_num_nodes(found, *asked)
        return found

    def choose_strategy(self, original: Callable[[Any], Any], connector: Any) -> Any:
        if not self._is_ours(connector):
            return original(connector)
        is_one = len(connector._parallel_devices) == 1 and connector._num_nodes_flag == 1
        return self._selection.default(is_one)

    def check_strategy(self, original: Callable[[Any], None], connector: Any) -> None:
        flag = connector._strategy_flag
        if self._is_ours(connector):
            connector._strategy_flag = self._selection.convert(
                flag,
                connector._parallel_devices,
                connector._num_nodes_flag,
                is_interactive=self._module._IS_INTERACTIVE,
            )
        elif self._is_our_strategy(flag):
            self._selection.refuse_elsewhere(flag, connector._accelerator_flag)
        original(connector)

    def init_precision(self, original: Callable[[Any], Any], connector: Any) -> Any:
        name, spec = getattr(connector, self._spec.precision_name), self._spec
        if not self._is_ours(connector):
            if name == "fp8":
                raise ValueError(
                    "precision='fp8' computes by the Transformer Engine of an HPU, and accelerator="
                    f"{connector._accelerator_flag!r} is none. Pass accelerator='hpu', or "
                    "precision='bf16-mixed'."
                )
            return original(connector)
        plugin = getattr(connector, spec.precision_plugin)
        if plugin is None:
            return self._selection.make_precision(name, connector.strategy)
        plugin = self._selection.convert_precision(plugin, connector.strategy)
        setattr(connector, spec.precision_plugin, plugin)
        return plugin  # Lightning knows `BitsandbytesPrecision` for CUDA alone


class LazyEntry(dict[str, Any]):
    """An entry of a registry of Lightning's whose class is imported when it is read."""

    def __init__(self, key: str, module: str, kind: str, **values: Any) -> None:
        """Describes an entry.

        Args:
            key: The key under which the registry's entries have the class.
            module: Our module that has it.
            kind: The class.
            values: The other keys.
        """
        super().__init__(**values)
        self._key = key
        self._module = module
        self._kind = kind

    def __missing__(self, key: str) -> Any:
        if key != self._key:
            raise KeyError(key)
        found = self[key] = getattr(importlib.import_module(self._module), self._kind)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, the class included."""
        return self[key] if key in self or key == self._key else default


def register_accelerator(patch: str, registry: Any, module: str) -> None:
    """Registers the accelerator "hpu".

    Args:
        patch: The name in the register.
        registry: Lightning's, of accelerators.
        module: Ours that has the accelerator.

    Raises:
        ValueError: Another package has taken the name.
    """
    values = {"description": "Intel Gaudi (HPU)", "init_params": {}, "accelerator_name": "hpu"}
    entry = LazyEntry("accelerator", module, "HPUAccelerator", **values)
    _enter(patch, registry, "hpu", entry, "accelerator")


def register_strategies(patch: str, registry: Any, package: str, *, in_fabric: bool) -> None:
    """Registers our names for `strategy`.

    Args:
        patch: The name in the register.
        registry: Lightning's, of strategies.
        package: Ours that has them.
        in_fabric: Whether it is Fabric's, which knows fewer names.

    Raises:
        ValueError: Another package has taken one of the names.
    """
    for each in STRATEGIES:
        for name in each.fabric_names if in_fabric else each.names:
            values = {"description": each.kind, "init_params": {}, "strategy_name": name}
            entry = LazyEntry("strategy", package, each.kind, **values)
            _enter(patch, registry, name, entry, "strategy")


def _enter(patch: str, registry: Any, name: str, entry: LazyEntry, what: str) -> None:
    # Not `registry.get`, which makes an instance.
    found = dict.get(registry, name)
    if isinstance(found, LazyEntry):
        return
    if found is not None:
        taken = found[what]
        raise ValueError(
            f"{what}={name!r} is {taken.__module__}.{taken.__name__} already. Uninstall the other "
            "plugin for HPUs, such as lightning-habana."
        )
    enter(patch, registry, name, entry)
