"""The switches: what may be written, where, and what comes first."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_gaudi.callbacks import Reliability
from lightning_gaudi.fabric import strategies as fabric_strategies
from lightning_gaudi.reliability import settings
from lightning_gaudi.reliability.settings import ReliabilitySettings
from lightning_gaudi.strategies import HPUDDPStrategy, SingleHPUStrategy
from tests.helpers.tiny import hpu_trainer

_NOTHING = ReliabilitySettings(
    exact_resume=False,
    verify_checkpoints=False,
    save_on_exit=False,
    auto_resume=False,
    stop_on_nan=False,
    watchdog=False,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("on", ReliabilitySettings()),
        (True, ReliabilitySettings()),
        ("off", _NOTHING),
        (False, _NOTHING),
        ("watchdog=off, async_save=on", ReliabilitySettings(watchdog=False, async_save=True)),
        ("watchdog_timeout_s=90", ReliabilitySettings(watchdog_timeout_s=90.0)),
        ("slow_rank_factor=2", ReliabilitySettings(slow_rank_factor=2.0)),
        ("slow_rank_factor=off", ReliabilitySettings(slow_rank_factor=None)),
        ({"stop_on_nan": False}, ReliabilitySettings(stop_on_nan=False)),
        (None, None),
    ],
)
def test_a_value_is_a_word_pairs_or_a_mapping(
    value: Any, expected: ReliabilitySettings | None
) -> None:
    assert settings.SETTING.parse(value, "reliability=") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "of",
            "reliability=: 'of' does not say what to keep. There is no 'of'. Did you mean 'off'",
        ),
        ("watchdog=maybe", "watchdog='maybe' is neither on nor off"),
        ("watchdog=off,on=true", "'on=true' is no part of it: on and off stand alone"),
        ("watchdog", "watchdog='' is neither on nor off"),
        ("watchdog_timeout_s=soon", "watchdog_timeout_s='soon' is no time in seconds"),
        ({"watchdog_timeout_s": 0}, "watchdog_timeout_s=0 is no time in seconds above 0"),
        ({"slow_rank_factor": 1}, "slow_rank_factor=1 is no number above 1"),
        ("slow_rank_s=soon", "slow_rank_s='soon' is no time in seconds"),
        ({"slow_rank_s": None}, "slow_rank_s=None is no time in seconds above 0"),
        ({"watchdog": "off"}, "watchdog='off' is neither True nor False"),
        ({"watchdogs": True}, "There is no 'watchdogs'"),
        (3, "3 does not say what to keep. Pass 'on', 'off'"),
    ],
)
def test_a_wrong_value_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings.SETTING.parse(value, "reliability=")


def test_an_argument_comes_before_a_callback_and_that_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(settings.VARIABLE, "stop_on_nan=off")
    argument = ReliabilitySettings(watchdog=False)
    callback = ReliabilitySettings(async_save=True)
    assert settings.SETTING.choose(argument, callback) == (argument, "reliability=")
    assert settings.SETTING.choose(None, callback) == (callback, "the callback Reliability")
    assert settings.SETTING.choose(None, None)[0] == ReliabilitySettings(stop_on_nan=False)
    monkeypatch.delenv(settings.VARIABLE)
    assert settings.SETTING.choose(None, None) == (ReliabilitySettings(), None)


@pytest.mark.parametrize(
    "kind",
    [
        SingleHPUStrategy,
        HPUDDPStrategy,
        fabric_strategies.SingleHPUStrategy,
        fabric_strategies.HPUDDPStrategy,
    ],
)
def test_strategies_take_it(kind: Any) -> None:
    assert not kind(reliability="watchdog=off").reliability.watchdog
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(.*'no' does not say what to keep"):
        kind(reliability="no")


def test_a_trainer_refuses_a_wrong_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.VARIABLE, "watchdog=no")
    with pytest.raises(ValueError, match=f"{settings.VARIABLE}: 'watchdog=no' does not say"):
        hpu_trainer()


def test_the_callback_has_the_same_switches_with_the_same_defaults() -> None:
    assert Reliability().settings == ReliabilitySettings()
    defaults = ReliabilitySettings()
    values = {name: not getattr(defaults, name) for name in settings.NAMES}
    values |= {"watchdog_timeout_s": 9.0, "slow_rank_factor": 3.0, "slow_rank_s": 5.0}
    for name, value in values.items():
        assert getattr(Reliability(**{name: value}).settings, name) == value
