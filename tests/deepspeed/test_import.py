"""Importing DeepSpeed changes nothing in the process but what is imported."""

from __future__ import annotations

import importlib.metadata
import os

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._patches import deepspeed
from lightning_gaudi.deepspeed import library
from tests.helpers.forked import fork_python

_WATCH = """
    import os, torch
    def state():
        names = [name for name in os.environ if name.startswith(("PT_HPU", "DS_"))]
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            {name: os.environ[name] for name in names},
        )
    {before}
    expected = state()
    {imports}
    import deepspeed
    assert deepspeed.accelerator.get_accelerator().device_name() == "hpu"
    assert state() == expected, (expected, state())
"""


@pytest.mark.slow_but("deepspeed")
@pytest.mark.parametrize(
    ("imports", "before"),
    [
        (
            "import deepspeed",
            "torch.use_deterministic_algorithms(True, warn_only=True);"
            "os.environ['PT_HPU_LAZY_ACC_PAR_MODE'] = '1'",
        ),
        ("from lightning.pytorch.strategies import DeepSpeedStrategy as D; D()", ""),
    ],
    ids=["deepspeed", "lightning"],
)
def test_import_leaves_torch_and_the_environment_as_they_are(imports: str, before: str) -> None:
    fork_python(_WATCH.replace("{imports}", imports).replace("{before}", before))


@pytest.mark.slow_but("True")
@pytest.mark.parametrize("wanted", [True, False, "warn", None])
def test_trainer_decides_what_is_deterministic(wanted: bool | str | None) -> None:
    fork_python(
        f"""
        import torch, lightning.pytorch as pl
        torch.use_deterministic_algorithms({wanted is None})  # as a program may, before
        pl.Trainer(accelerator="hpu", strategy="deepspeed_stage_2", deterministic={wanted!r})
        import deepspeed
        assert deepspeed.accelerator.get_accelerator().device_name() == "hpu"
        assert torch.are_deterministic_algorithms_enabled() == {wanted is not False}
        found = torch.is_deterministic_algorithms_warn_only_enabled()
        assert found == {wanted == "warn"}
        """
    )


def test_our_import_leaves_torch_and_the_environment_as_they_are() -> None:
    """Whatever it changes: what DeepSpeed has changed before, it is not asked to change again."""
    names = set(os.environ)
    with deepspeed.unchanged() as changed:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        os.environ["PT_HPU_LAZY_ACC_PAR_MODE"] = "0"
        library.load()
    assert changed["PT_HPU_LAZY_ACC_PAR_MODE"] == "0"
    assert set(os.environ) == names
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_deepspeed_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(MisconfigurationException, match=r"DS_ACCELERATOR=cpu .* Unset"):
        library.load()


def test_deepspeed_that_computes_elsewhere_is_refused() -> None:
    """It decides at its import, once for the process."""
    fork_python(
        """
        import os
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed
        del os.environ["DS_ACCELERATOR"]
        from lightning_gaudi.deepspeed import library
        try:
            library.load()
        except Exception as error:
            assert "computes on 'cpu'" in str(error), error
        else:
            raise AssertionError("DeepSpeed on the CPU was taken")
        """
    )


def test_absent_deepspeed_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-gaudi\[deepspeed\]'"):
        library.check_installed("strategy='deepspeed_stage_3'")


def test_too_old_a_deepspeed_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.16.2")
    with pytest.raises(ImportError, match=r"0\.19 or later .* deepspeed 0\.16\.2 is installed"):
        library.check_installed()
