"""Patches that fail are off, named, and leave the others alone."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

import pytest

from lightning_gaudi._core import mirror
from lightning_gaudi._patches import apply
from lightning_gaudi._patches.register import BY_NAME, REGISTER
from tests.patches.test_register import format_target, resolve


@pytest.fixture(autouse=True)
def _nothing_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_broken", set())


def test_a_patch_whose_names_are_gone_is_off_and_named() -> None:
    class Connector:
        def __init__(self) -> None:
            self._accelerator_flag = self.accelerator = self.strategy = None

        def _choose_strategy(self) -> None: ...

    module = ModuleType("some.future.lightning")
    vars(module).update(_Connector=Connector, ACCELERATOR_REGISTRY={}, STRATEGY_REGISTRY={})
    methods = dict(vars(Connector))
    message = (
        r"patch 'fabric-connector' is off: Fabric\(accelerator='hpu'\) will not work. Connector "
        r"has no .*_check_config_and_set_final_flags.* any more. It was checked with lightning "
        r"2.5.6 to 2.6.6, and [\d.]+ is installed."
    )
    with pytest.warns(RuntimeWarning, match=message):
        apply.apply(BY_NAME["fabric-connector"], module, mirror.LIGHTNING)
    assert dict(vars(Connector)) == methods
    assert not module.ACCELERATOR_REGISTRY


def test_a_patch_whose_attributes_are_gone_is_off() -> None:
    from lightning.fabric import connector

    methods = BY_NAME["fabric-connector"].targets[:7]
    names = {target.rpartition(".")[2]: lambda self: None for target in methods}
    module = ModuleType("some.future.lightning")
    vars(module).update(
        _Connector=type("_Connector", (), names), ACCELERATOR_REGISTRY={}, STRATEGY_REGISTRY={}
    )
    with pytest.warns(RuntimeWarning, match="_Connector has no _accelerator_flag, .*_devices_flag"):
        apply.apply(BY_NAME["fabric-connector"], module, mirror.LIGHTNING)
    assert not hasattr(module._Connector._choose_strategy, "__wrapped__")
    assert hasattr(connector._Connector._choose_strategy, "__wrapped__")


def test_a_patch_that_fails_in_the_middle_is_taken_back_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("some.module")
    module.first, module.second = (lambda: 1), (lambda: 2)

    def fail(module: ModuleType, family: Any) -> None:
        apply.wrap("device-log", module, "first")(lambda original: 10 * original())
        raise OSError("half way")

    def succeed(module: ModuleType, family: Any) -> None:
        apply.wrap("device-log", module, "second")(lambda original: 10 * original())

    from lightning_gaudi._patches import trainer_setup

    monkeypatch.setattr(trainer_setup, "patch_device_log", fail)
    monkeypatch.setattr(trainer_setup, "patch_profiler_names", succeed)
    monkeypatch.setattr(apply, "_broken", set())
    with pytest.warns(
        RuntimeWarning, match="'device-log' is off: .* failed with OSError: half way"
    ):
        apply.apply(BY_NAME["device-log"], module, mirror.LIGHTNING)
    assert module.first() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply.apply(BY_NAME["device-log"], module, mirror.LIGHTNING)  # said once
        apply.apply(BY_NAME["profiler-by-name"], module, mirror.LIGHTNING)
    assert module.second() == 20


def test_patching_again_changes_nothing() -> None:
    for family in mirror.FAMILIES:
        for patch in REGISTER:
            if patch.library == "lightning" and patch.trigger:
                targets = [format_target(target, family) for target in patch.targets]
                before = [resolve(target) for target in targets]
                module = importlib.import_module(format_target(patch.trigger, family))
                apply.apply(patch, module, family)
                assert [resolve(target) for target in targets] == before


def test_another_plugin_that_has_taken_our_name_is_named() -> None:
    from lightning_gaudi._patches.connector import register_accelerator

    class HPUAccelerator:
        """Of lightning-habana, say."""

    registry = {"hpu": {"accelerator": HPUAccelerator}}
    with pytest.raises(
        ValueError, match=r"accelerator='hpu' is .*HPUAccelerator already. Uninstall"
    ):
        register_accelerator("trainer-connector", registry, "lightning_gaudi.accelerator")


def test_a_name_of_deepspeeds_that_is_gone_names_the_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_gaudi._patches import deepspeed as patches

    fused = importlib.import_module("deepspeed.runtime.fp16.fused_optimizer").FP16_Optimizer
    monkeypatch.delattr(fused, "initialize_optimizer_states")
    patches.check_names.cache_clear()
    with pytest.raises(
        apply.MissingNameError,
        match=r"FP16_Optimizer has no initialize_optimizer_states any more. It was checked with "
        r"deepspeed 0.19.0 to 0.19.8, and 0.19.\d+ is installed. Install one of those",
    ):
        patches.check_names()
