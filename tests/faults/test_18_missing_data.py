"""Data that are not there, in an ordinary script and in the recipes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.forked import fork_module, fork_python

SCRIPT = """
import sys
import lightning.pytorch as pl
from lightning_gaudi import vendor
from tests.helpers.tiny import QUIET, TinyModule, batches

def look(hook):
    if sys.argv[1] == hook:
        open("/no/such/data.csv")

class Data(pl.LightningDataModule):
    def prepare_data(self):
        look("prepare_data")
    def setup(self, stage):
        look("setup")
    def train_dataloader(self):
        look("train_dataloader")
        return batches(2)

trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1, **QUIET)
try:
    trainer.fit(TinyModule(), Data())
finally:
    used = vendor.package().hpu.memory_stats()["MaxInUse"] if vendor.is_initialized() else 0
    print("initialized", vendor.is_initialized(), used)
"""


@pytest.mark.parametrize("hook", ["prepare_data", "setup"])
def test_no_card_is_acquired_before_the_data_are_found(
    hook: str, measured: Callable[[str], None]
) -> None:
    result = fork_python(SCRIPT, hook, check=False)
    assert result.returncode == 1
    assert "initialized False 0" in result.stdout
    assert f"Data.{hook} did not find /no/such/data.csv. Check the path" in result.stderr
    assert "The Trainer has acquired no card yet." in result.stderr
    measured(f"{hook}: path, hook, no card acquired")


def test_a_loader_that_misses_its_data_is_named(measured: Callable[[str], None]) -> None:
    """Lightning asks for it when the model is on the card."""
    result = fork_python(SCRIPT, "train_dataloader", check=False)
    assert result.returncode == 1
    assert "Data.train_dataloader did not find /no/such/data.csv." in result.stderr
    assert "The card is released as this process ends." in result.stderr
    measured("train_dataloader: path and hook")


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("mrpc", ["--data.source=path", "--data.path=/no/such"]),
        ("bert_pretraining", ["--data={source: path, path: /no/such}"]),
    ],
)
def test_a_recipe_says_it_before_a_card_is_taken(
    recipe: str, settings: list[str], measured: Callable[[str], None]
) -> None:
    result = fork_module(f"recipes.{recipe}", "fit", "--config=simulated", *settings, check=False)
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert "data.path=/no/such does not exist" in last
    assert "HPU available" not in result.stderr
    measured(f"recipe {recipe}: path and what to name, in one line")
