"""Where processes cannot be started, and what must not be settled before they are."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy

from tests.helpers.process import environment, run_python
from tests.helpers.tiny import hpu_trainer

EIGHT = {"LIGHTNING_GAUDI_SIMULATE": "8"}


@pytest.mark.parametrize(
    ("strategy", "typed"),
    [
        ("ddp_fork", "'ddp_fork'"),
        ("ddp_notebook", "'ddp_notebook'"),
        (DDPStrategy(start_method="fork"), r"DDPStrategy\(\)"),
    ],
)
def test_ranks_are_never_forked(strategy: str | DDPStrategy, typed: str) -> None:
    message = f"strategy={typed} starts its processes with 'fork', which the driver of an HPU"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(devices=2, strategy=strategy)


INTERACTIVE = """
import lightning.pytorch as pl
from lightning.fabric import Fabric
quiet = {"logger": False, "enable_checkpointing": False}
for kind, more in ((pl.Trainer, quiet), (Fabric, {})):
    for settings in ({"strategy": s} for s in ("auto", "ddp", "ddp_spawn", "ddp_notebook")):
        try:
            kind(accelerator="hpu", devices=2, **settings, **more)
        except Exception as error:
            print("refused", settings["strategy"], error)

    chosen = kind(accelerator="hpu", **more)
    print("chosen", type(chosen.strategy).__name__, flush=True)

"""


@pytest.mark.slow
def test_an_interactive_session_has_one_card() -> None:
    """`devices="auto"` is one, as Lightning has it for GPUs; more are refused."""
    result = subprocess.run(
        [sys.executable, "-i", "-q", "-c", INTERACTIVE],
        env=environment(EIGHT),
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("refused")] == [
        *("auto", "ddp", "ddp_spawn", "ddp_notebook"),
    ] * 2
    refused = "devices=2 need a process for each card, which an interactive session"
    assert result.stdout.count(refused) == 6
    assert result.stdout.count("strategy='ddp_notebook' starts its processes with 'fork'") == 2
    assert lines.count("chosen SingleHPUStrategy") == 2
    assert result.stderr.count("Using 1 of 8 HPUs: an interactive session drives one.") == 2


# What importing the vendor's package does, which torch may do by itself, before anybody asks.
VENDOR = """
import os
import torch
import habana_frameworks.torch
print("vendor", [os.environ.get(name) for name in ("MASTER_PORT", "HLS_MODULE_ID")])
import lightning.pytorch as pl
trainer = pl.Trainer(accelerator="hpu", devices=[4, 5], logger=False, enable_checkpointing=False)
assert not torch.distributed.is_initialized()
assert not torch.hpu.is_initialized()
print("ours", [os.environ.get(name) for name in ("MASTER_PORT", "HLS_MODULE_ID")])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "vendor", "ours"),
    [
        # In the process that starts the others.
        ({}, ["12345", None], [None, None]),
        # In one that was started.
        (
            {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "12345"},
            ["12345", "1"],
            # What uses the HPU before training is bound to it; training may choose another.
            ["12345", "1"],
        ),
        # What the environment says is kept.
        (
            {"MASTER_PORT": "12345", "HLS_MODULE_ID": "5"},
            ["12345", "5"],
            ["12345", "5"],
        ),
    ],
    ids=["starts", "was started", "was told"],
)
def test_what_the_vendors_package_guesses_is_undone(
    env: dict[str, str], vendor: list[str | None], ours: list[str | None]
) -> None:
    lines = run_python(VENDOR, env=EIGHT | env).stdout.splitlines()
    assert f"vendor {vendor}" in lines
    assert f"ours {ours}" in lines
