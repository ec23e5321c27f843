"""Versions that nobody has run on a Gaudi are named, once."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator
from pathlib import Path

import lightning.fabric  # noqa: F401  # says which rank is which
import pytest
import torch

from lightning_gaudi._core import deepspeed_versions as versions
from lightning_gaudi.releases import minor

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "larger-models.md"


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    versions.warn_if_untested.cache_clear()
    yield
    versions.warn_if_untested.cache_clear()


def test_versions_that_nobody_has_run_on_a_gaudi_are_named_once() -> None:
    installed = importlib.metadata.version("deepspeed")
    message = (
        rf"DeepSpeed {installed} with torch {torch.__version__.split('+', maxsplit=1)[0]}.* is "
        r"untested on a Gaudi.*torch 2\.6 and Gaudi software 1\.21\.0.*filterwarnings"
    )
    with pytest.warns(UserWarning, match=message):
        versions.warn_if_untested()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_if_untested()


def test_the_way_to_silence_it_does() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="DeepSpeed .* is untested")
        versions.warn_if_untested()


def test_versions_that_were_run_on_a_gaudi_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed, found = importlib.metadata.version("deepspeed"), torch.__version__
    assert not versions.is_tested(deepspeed, found)
    run = versions.Run(minor(deepspeed), minor(found), "1.24.1", "Gaudi 3", "somebody")
    monkeypatch.setattr(versions, "RUNS", (*versions.RUNS, run))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_if_untested()


def test_the_document_has_the_table() -> None:
    rows = [f"| {' | '.join(run)} |" for run in versions.RUNS]
    assert (
        "\n".join(
            ["| DeepSpeed | torch | Gaudi software | Card | By |", "|---|---|---|---|---|", *rows]
        )
        in DOCUMENT.read_text()
    )
