"""The names of Lightning that the plugin relies on, for the Trainer and for Fabric."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from lightning_gaudi import connectors, seam
from lightning_gaudi.fabric import connector as fabric_connector


class Place(NamedTuple):
    """Where a connector is, and what is known of it."""

    modules: tuple[str, str]
    name: str
    patch: Callable[[ModuleType], None]
    sources: dict[str, list[str]]
    """Source hashes of the wrapped methods in Lightning 2.5.6 to 2.6.6, oldest first."""


TRAINER = Place(
    (
        "lightning.pytorch.trainer.connectors.accelerator_connector",
        "pytorch_lightning.trainer.connectors.accelerator_connector",
    ),
    "_AcceleratorConnector",
    connectors.patch_connector,
    {
        "_check_config_and_set_final_flags": ["947302743392"],
        "_choose_auto_accelerator": ["1b8c7af74bc2"],
        "_set_parallel_devices_and_init_accelerator": ["e3b768e3b375"],
        "_choose_and_init_cluster_environment": ["c6ae6d947245"],
        "_choose_strategy": ["81e89d036042"],
        "_check_strategy_and_fallback": ["26b169deb2f4"],
        "_check_and_init_precision": ["7e496b7b2ec1", "09dff7904c62"],
    },
)
FABRIC = Place(
    ("lightning.fabric.connector", "lightning_fabric.connector"),
    "_Connector",
    fabric_connector.patch_connector,
    {
        "_check_config_and_set_final_flags": ["2ba96a581fcb"],
        "_choose_auto_accelerator": ["b3271d822696"],
        "_set_parallel_devices_and_init_accelerator": ["172be9304722"],
        "_choose_and_init_cluster_environment": ["c6ae6d947245"],
        "_choose_strategy": ["a4f082ff16cf"],
        "_check_strategy_and_fallback": ["6dce32242bd8"],
        "_check_and_init_precision": ["d0c28a357381"],
    },
)
PLACES = pytest.mark.parametrize("place", [TRAINER, FABRIC], ids=["trainer", "fabric"])


def _source_hash(function: Any) -> str:
    source = inspect.getsource(inspect.unwrap(function))
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        source = source.replace(name, "")
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@PLACES
@pytest.mark.parametrize("namespace", [0, 1], ids=["lightning", "pytorch_lightning"])
@pytest.mark.parametrize("method", seam.METHODS)
def test_wrapped_method_is_one_we_know(place: Place, namespace: int, method: str) -> None:
    """On a mismatch, read what Lightning changed, then add the hash."""
    connector = getattr(importlib.import_module(place.modules[namespace]), place.name)
    assert vars(connector)[seam.MARK]
    assert _source_hash(getattr(connector, method)) in place.sources[method]


@pytest.mark.parametrize("namespace", ["lightning.fabric", "lightning_fabric"])
def test_process_counter_of_fabric_run_is_one_we_know(namespace: str) -> None:
    """Lightning 2.5.6 to 2.6.6 have this one; see `fabric.cli` for what replaces it."""
    module = importlib.import_module(f"{namespace}.cli")
    assert vars(module)[seam.MARK]
    assert _source_hash(module._get_num_processes) == "6b2ad2ac303e"


@PLACES
def test_nothing_is_patched_if_a_name_is_gone(place: Place) -> None:
    class Connector:
        def __init__(self) -> None:
            self._accelerator_flag = self.accelerator = self.strategy = None

        def _choose_strategy(self) -> None: ...

    module = ModuleType("some.future.lightning")
    setattr(module, place.name, Connector)
    methods = dict(vars(Connector))
    with pytest.warns(RuntimeWarning, match=r"some\.future\.lightning has no .*_devices_flag"):
        place.patch(module)
    assert dict(vars(Connector)) == methods


@PLACES
def test_nothing_is_patched_if_the_connector_is_gone(place: Place) -> None:
    with pytest.warns(RuntimeWarning, match=f"has no {place.name} any more"):
        place.patch(ModuleType("some.future.lightning"))
