"""A program as users write it, with the trouble that a test asks for.

    python program.py FOLDER '{"devices": 2}'

Each rank writes what it found to FOLDER. The trouble is in the variable TROUBLE: words such as
`step:1:raise`, for the place, the local rank, and what happens there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any


def trouble(place: str) -> float:
    """What the test wants to happen here: raise, hang, be late, a signal, or none.

    Returns:
        What a loss is to be multiplied by: 1, unless it is to be nan or inf.
    """
    for word in os.environ.get("TROUBLE", "").split():
        where, rank, what = word.split(":")
        if where == place and rank == os.environ.get("LOCAL_RANK", "0"):
            print(f"trouble at {time.time()}", file=sys.stderr, flush=True)
            if what == "raise":
                raise ValueError(f"trouble at {place} on purpose")
            if what == "hang":
                time.sleep(600)
            elif what == "late":
                time.sleep(float(os.environ["LATE_S"]))
            elif what == "spin":
                _hold_the_interpreter()
            elif what == "card":
                _wait_for_the_card()
            elif what == "compile":
                _compile(float(os.environ["LATE_S"]))
            elif what in ("nan", "inf"):
                return float(what)
            elif what != "none":
                os.kill(os.getpid(), signal.Signals[what])
    return 1.0


def _hold_the_interpreter() -> None:
    """Wait without letting other threads of Python run, as bad native code does.

    For what nobody writes: unlike a sleep, that goes on behind the handler of a signal.
    """
    never, _ = os.pipe()
    ctypes.PyDLL(None).read(never, ctypes.create_string_buffer(1), 1)


def _wait_for_the_card() -> None:
    """Queue a collective, which the others may not come to, and wait for the card."""
    import torch

    work = torch.distributed.all_reduce(torch.ones(1, device="hpu"), async_op=True)
    torch.hpu.synchronize()
    del work


def _compile(seconds: float) -> None:
    """Compute in one call of C, which lets no thread run, where the vendor waits for a card."""
    from habana_frameworks.torch.hpu import _lifecycle  # noqa: TID251

    begin = time.process_time()
    sum(itertools.repeat(0, 10**7))
    number = int(10**7 * seconds / (time.process_time() - begin))
    binding, _lifecycle.C = (
        _lifecycle.C,
        types.SimpleNamespace(synchronize=functools.partial(sum, itertools.repeat(0, number))),
    )
    _lifecycle.synchronize()
    _lifecycle.C = binding


trouble("import")
GIVEN = set(os.environ)

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.plugins.io import TorchCheckpointIO  # noqa: E402
from lightning.pytorch.utilities.exceptions import SIGTERMException  # noqa: E402

from tests.helpers.tiny import QUIET, TinyModule, batches  # noqa: E402

# What nobody may settle before the ranks are there. In a rank the vendor has guessed its module.
CHOSEN = {"MASTER_ADDR", "MASTER_PORT"} | ({"HLS_MODULE_ID"} - {*os.environ})

if "EARLY" in os.environ:
    import habana_frameworks.torch  # noqa: F401, TID251

    torch.ones(1).to("hpu")


class Model(TinyModule):
    def setup(self, stage: str) -> None:
        trouble("setup")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        folder = Path(sys.argv[1])
        if batch_idx == 3:
            (folder / f"step3-{os.environ.get('LOCAL_RANK', '0')}").touch()
            trouble("step")
        # Where a test sends signals, training goes on until they come.
        if "SLOW" in os.environ:
            time.sleep(0.05)
        loss = super().training_step(batch, batch_idx)
        return loss * trouble("loss") if batch_idx == 5 else loss


class ValidatedModel(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        trouble("validation")


class SlowIO(TorchCheckpointIO):
    """Takes long to write, if a test wants that."""

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        trouble("save")
        super().save_checkpoint(*args, **kwargs)


class Found(pl.Callback):
    """Writes what this rank found, from within it, since ddp_spawn ends there."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(trainer, pl_module, None)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, SIGTERMException):
            self._write(trainer, pl_module, type(exception).__name__)

    def _write(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: str | None
    ) -> None:
        found = {
            "world_size": trainer.world_size,
            "local_rank": trainer.local_rank,
            "node_rank": trainer.node_rank,
            "environment": type(trainer._accelerator_connector.cluster_environment).__name__,
            "module": os.environ.get("HLS_MODULE_ID"),
            "id": os.environ.get("ID"),
            "steps": trainer.global_step,
            "exception": exception,
            "weights": [w.detach().cpu().double().sum().item() for w in pl_module.parameters()],
        }
        path = Path(sys.argv[1]) / f"rank{trainer.global_rank}.json"
        path.write_text(json.dumps(found))


def main() -> None:
    settings = json.loads(sys.argv[2])
    trouble("main")
    timeout_s = settings.pop("timeout_s", None)
    if timeout_s is not None:
        from datetime import timedelta

        settings["strategy"] = pl.strategies.DDPStrategy(timeout=timedelta(seconds=timeout_s))
    num_batches, callbacks = settings.pop("num_batches", 16), [Found()]
    if (every := settings.pop("save_every", None)) is not None:
        callbacks += [pl.callbacks.ModelCheckpoint(every_n_train_steps=every, save_top_k=-1)]
        settings["enable_checkpointing"] = True
    if validates := settings.pop("validates", False):
        settings["plugins"] = [SlowIO()]
    options = {"accelerator": "hpu", "max_epochs": 1, **QUIET, **settings}
    trainer = pl.Trainer(callbacks=callbacks, **options)
    assert not CHOSEN & os.environ.keys() - GIVEN
    trouble("fit")
    trainer.fit(
        ValidatedModel() if validates else Model(),
        batches(num_batches),
        batches(1) if validates else None,
    )
    trouble("end")


if __name__ == "__main__":
    pl.seed_everything(1, verbose=False)
    main()
