"""Every name that we use of the vendor's is in the package that is installed, and callable so."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

from lightning_gaudi._core import vendor
from tests.helpers import vendor_names

PACKAGE = "habana_frameworks.torch"
USED = [each for each in vendor_names.CALLABLES if vendor.is_lazy() or not each.is_lazy]
"""What is for lazy mode alone is looked for there: before 1.22 eager mode had no such names."""


def _found(name: str) -> Any:
    """What `name` (below the package) means; `f().x` is x of what f returns."""
    if "()." in name:
        function, _, attribute = name.partition("().")
        called = _found(function)
        # Of all functions whose results we use one has an argument, the name of a metric.
        result = called() if inspect.isclass(called) else called("graph_compilation")
        return getattr(result, attribute)
    module, _, attribute = f"{PACKAGE}.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("module", vendor_names.MODULES, ids=lambda module: module.name or PACKAGE)
def test_module_is_there(module: vendor_names.Module) -> None:
    importlib.import_module(f"{PACKAGE}.{module.name}".rstrip("."))


@pytest.mark.parametrize("listed", USED, ids=lambda listed: listed.name)
def test_callable_takes_the_listed_arguments(listed: vendor_names.Callable) -> None:
    found = _found(listed.name)
    assert callable(found)
    parameters = inspect.signature(eval(f"lambda {listed.signature}: None")).parameters
    positional = [None] * len(parameters)
    try:
        signature = inspect.signature(found)
    except ValueError:
        pytest.skip(f"needs a signature: {listed.name} is compiled and does not tell one")
    signature.bind(*positional)
    signature.bind(**dict.fromkeys(parameters))
    required = [p.name for p in parameters.values() if p.default is p.empty]
    signature.bind(**dict.fromkeys(required))


def test_names_are_reached_as_the_facade_reaches_them() -> None:
    package = vendor.package()
    for listed in USED:
        if listed.name.startswith("hpu.") and "()" not in listed.name:
            owner: Any = package
            for part in listed.name.split("."):
                owner = getattr(owner, part)
            assert owner is _found(listed.name)


def test_torch_knows_the_device_and_the_backend() -> None:
    device = torch.device(vendor_names.DEVICE_TYPE)
    assert torch.get_device_module(device) is vendor.package().hpu
    importlib.import_module(f"{PACKAGE}.distributed.hccl")
    assert vendor_names.BACKEND in torch.distributed.Backend.backend_list
    assert device.type in torch.distributed.Backend.backend_capability[vendor_names.BACKEND]
