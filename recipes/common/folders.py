"""Where a run leaves what it writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch import Trainer

_CHECKPOINTS = "checkpoints"  # Lightning's name for the folder of them, below that of the run


def run_folder(trainer: Trainer) -> Path:
    """That of checkpoints, configuration and logs: the first logger's, or the root.

    `trainer.log_dir` asks the other ranks, who may be elsewhere; this is right on the first one.
    """
    logger = trainer.loggers[0] if trainer.loggers else None
    names = ("log_dir", "save_dir")
    found = next((path for name in names if (path := getattr(logger, name, None))), None)
    return Path(found or trainer.default_root_dir)


def prediction_path(trainer: Trainer, name: str) -> Path:
    """In the folder of the run that the checkpoint is from; the same on every rank."""
    if trainer.ckpt_path:
        folder = Path(trainer.ckpt_path).expanduser().parent
        found = folder.parent if folder.name == _CHECKPOINTS else folder
    else:
        found = run_folder(trainer)
    path: Path = trainer.strategy.broadcast(found / name)
    return path


def write_predictions(
    trainer: Trainer, path: Path, rows: Iterable[tuple[int, str]], header: str = ""
) -> None:
    """Write the lines of all ranks to one file, in the order of their numbers; say where.

    Each rank writes its part; the first puts them together, so all must see the same folder.

    Args:
        trainer: knows the ranks.
        path: the file; its folder is made.
        rows: of this rank: the number of a row and its text. Where several ranks have the same
            row, as under tensor parallelism, one is taken.
        header: the first line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [path.with_name(f"{path.name}.{rank}") for rank in range(trainer.world_size)]
    parts[trainer.global_rank].write_text(json.dumps(list(rows)), "utf-8")
    trainer.strategy.barrier("predictions")
    if trainer.is_global_zero:
        merged = dict(row for part in parts for row in json.loads(part.read_text("utf-8")))
        lines = [*([header] if header else []), *(merged[number] for number in sorted(merged))]
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        for part in parts:
            part.unlink()
        print(f"\n{len(merged)} predictions written to {path}", flush=True)
