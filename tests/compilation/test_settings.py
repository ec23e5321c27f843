"""The switch: what may be written, where, and what comes first."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lightning_gaudi.compilation import settings
from lightning_gaudi.compilation.model import check_options
from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.fabric import strategies as fabric_strategies
from lightning_gaudi.strategies import HPUDDPStrategy, SingleHPUStrategy
from tests.helpers.tiny import hpu_trainer


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("none", Compilation("none")),
        ("model", Compilation("model")),
        ("regions", Compilation()),
        ("regions:BertLayer, T5Block", Compilation(regions=["BertLayer", "T5Block"])),
        ({"mode": "regions", "recompile_limit": 4}, Compilation(recompile_limit=4)),
        (None, None),
    ],
)
def test_a_value_is_a_word_or_a_mapping(value: Any, expected: Compilation | None) -> None:
    assert settings.SETTING.parse(value, "compile=") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("region", "compile=: 'region' does not say what to compile. Pass 'none', 'model'"),
        (True, "compile=: True does not say what to compile"),
        ({"mod": "none"}, "There is no 'mod'. Did you mean 'mode'? Names are mode, regions"),
        ({"mode": "all"}, "mode='all' is none of 'none', 'model', 'regions'"),
        ({"regions": "BertLayer"}, "regions='BertLayer' is no list"),
        ({"regions": []}, "names no class"),
        ({"mode": "model", "regions": ["A"]}, "are for mode='regions', but mode='model'"),
        ({"recompile_limit": 0}, "recompile_limit=0 is no number of graphs"),
        ({"on_give_up": "raise"}, "on_give_up='raise' is none of 'warn', 'error'"),
    ],
)
def test_a_wrong_value_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        settings.SETTING.parse(value, "compile=")


def test_an_argument_comes_before_a_callback_and_that_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(settings.VARIABLE, "model")
    argument, callback = Compilation("none"), Compilation(recompile_limit=3)
    assert settings.SETTING.choose(argument, callback) == (argument, "compile=")
    assert settings.SETTING.choose(None, callback) == (callback, "the callback Compile")
    assert settings.SETTING.choose(None, None) == (Compilation("model"), settings.VARIABLE)
    monkeypatch.delenv(settings.VARIABLE)
    assert settings.SETTING.choose(None, None) == (Compilation(), None)


@pytest.mark.parametrize("kind", [HPUDDPStrategy, SingleHPUStrategy])
def test_a_strategy_names_its_argument(kind: Any) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(compile=...\): 'fast'"):
        kind(compile="fast")
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(compile=...\): 'fast'"):
        getattr(fabric_strategies, kind.__name__)(compile="fast")


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_a_wrong_variable_raises_when_the_trainer_is_made(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.VARIABLE, "everything")
    with pytest.raises(ValueError, match="LIGHTNING_GAUDI_COMPILE: 'everything'"):
        hpu_trainer(strategy=strategy)


def test_an_option_that_the_vendors_compiler_lacks_is_named_with_what_is_close() -> None:
    check_options({"force_static_compile": True})
    with pytest.raises(ValueError, match=r"no option 'force_static'.*'force_static_compile'"):
        check_options({"force_static": True})
    with pytest.raises(ValueError, match="no option 'force_static'"):
        hpu_trainer(strategy=SingleHPUStrategy(compile={"options": {"force_static": True}}))
