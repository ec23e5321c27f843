"""A program as users write it, which torchrun or SLURM may start again: it asks for nothing.

    python restartable.py FOLDER '{"devices": 2}'

Each start of each rank writes what it found to FOLDER. What goes wrong is in the variable FAULTS:
words such as `0:1:7`, for the start, the rank, and the step before which it kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.helpers.tiny import TinyModule, batches

FOLDER, SETTINGS = Path(sys.argv[1]), json.loads(sys.argv[2])
FAULTS = [tuple(map(int, word.split(":"))) for word in os.environ.get("FAULTS", "").split()]


class Model(TinyModule):
    """Dies where the test wants it to, before a step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (_num_starts(), self.trainer.global_rank, self.trainer.global_step) in FAULTS:
            print(f"trouble at {time.time()}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        # Where a test sends signals, training goes on until they come.
        time.sleep(float(os.environ.get("STEP_S", "0")))
        return super().training_step(batch, batch_idx)


class Found(pl.Callback):
    """Writes down at which step and when this start began to train, and what it came to."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began = {"first_step": trainer.global_step, "at": time.time()}
        self._write(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(trainer, last_step=trainer.global_step)

    def _write(self, trainer: pl.Trainer, **found: Any) -> None:
        path = FOLDER / f"start{_num_starts()}-rank{trainer.global_rank}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({**self._began, **found}))
        temporary.replace(path)


def _num_starts() -> int:
    """How often this rank was started before."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return sum(int(os.environ.get(name) or 0) for name in names)


def main() -> None:
    """Fit, with a checkpoint each 3 steps."""
    if _num_starts() and os.environ.get("RANK") == "0":
        time.sleep(3)  # the others come first, and find what is left of the start before
    trainer = pl.Trainer(
        **{"accelerator": "hpu", "max_steps": 12, "default_root_dir": FOLDER / "runs"},
        **{"enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1},
        callbacks=[ModelCheckpoint(every_n_train_steps=3, save_top_k=-1), Found()],
        **SETTINGS,
    )
    trainer.fit(Model(), batches(64), ckpt_path=os.environ.get("CKPT_PATH"))


if __name__ == "__main__":
    pl.seed_everything(1, verbose=False)
    main()
