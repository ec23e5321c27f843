"""Finds the places where a run leaves its files, and writes them there."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, cast

from lightning.pytorch import Trainer

from lightning_gaudi.untrusted import parse_json, why_untrusted
from recipes.common.errors import UserError, first_line

_CHECKPOINTS = "checkpoints"  # Lightning's name for their folder, below that of the run


def run_folder(trainer: Trainer) -> Path:
    """Returns the folder of checkpoints, configuration and logs: the first logger's, or the root.

    It is right on the first rank. `trainer.log_dir` would ask the other ranks, and wait for them.
    """
    logger = trainer.loggers[0] if trainer.loggers else None
    names = ("log_dir", "save_dir")
    found = next((path for name in names if (path := getattr(logger, name, None))), None)
    return place_of(found or trainer.default_root_dir)


def place_of(path: str | Path) -> Path:
    """Returns a path; for an address, such as s3://bucket/run, an object with its methods."""
    if "://" not in str(path):
        return Path(path).expanduser()
    from upath import UPath  # imported only if there is an address

    return cast("Path", UPath(path))


def is_remote(path: Path) -> bool:
    """Returns whether a path is an address, where objects appear only when they are whole."""
    return not isinstance(path, PurePath)


@contextmanager
def folder_to_fill(output: Path) -> Iterator[Path]:
    """Yields a folder of this machine to write to, and sends what is in it to an address.

    Args:
        output: that folder, or the address; of `place_of`.

    Raises:
        UserError: if the address cannot be written.
    """
    if not is_remote(output):
        yield output
        return
    store: Any = output
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
        try:
            store.fs.put(f"{name}/", store.path, recursive=True)
        except Exception as error:  # each store has its own types of errors
            raise UserError(f"{output} cannot be written: {first_line(error)}") from error


def prediction_path(trainer: Trainer, name: str, given: str | None = None) -> Path:
    """Returns where to write predictions, the same place on every rank.

    Unless it is given, it is in the folder of the run that the checkpoint is from. If another user
    may have written to that folder, or there is a symbolic link of that name, it is in the folder
    of this run.
    """
    if given:
        return place_of(given)
    found = run_folder(trainer)
    if trainer.ckpt_path:
        folder = place_of(trainer.ckpt_path).parent
        theirs = folder.parent if folder.name == _CHECKPOINTS else folder
        # A store itself decides who may write to it.
        is_own = is_remote(theirs) or (theirs.is_dir() and why_untrusted(theirs) is None)
        found = theirs if is_own and not (theirs / name).is_symlink() else found
    path: Path = trainer.strategy.broadcast(found / name)
    return path


def write_new(path: Path, content: str | bytes) -> None:
    """Writes a file in place of any that has its name; a symbolic link is not followed."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(data)
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_predictions(
    trainer: Trainer, path: Path, rows: Iterable[tuple[int, str]], header: str = ""
) -> None:
    """Writes the lines of all ranks to one file, in the order of their numbers, and prints where.

    Each rank writes its part; the first puts them together, so all must see the same folder.

    Args:
        trainer: knows the ranks.
        path: the file, of `place_of`; its folder is made.
        rows: of this rank: the number of a row and its text. Where several ranks have the same
            row, as under tensor parallelism, one is taken.
        header: the first line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [path.with_name(f"{path.name}.{rank}") for rank in range(trainer.world_size)]
    write_new(parts[trainer.global_rank], json.dumps(list(rows)))
    trainer.strategy.barrier("predictions")
    if trainer.is_global_zero:
        merged = {number: line for part in parts for number, line in _read(part)}
        lines = [*([header] if header else []), *(merged[number] for number in sorted(merged))]
        write_new(path, "".join(f"{line}\n" for line in lines))
        for part in parts:
            part.unlink()
        print(f"\n{len(merged)} predictions written to {path}", flush=True)


def _read(part: Path) -> list[tuple[int, str]]:
    """Returns the rows that a rank has written."""
    try:
        rows = parse_json(part.read_bytes())
        if not all(type(number) is int and isinstance(line, str) for number, line in rows):
            raise ValueError("its rows are no numbers and texts")
        for _, line in rows:
            line.encode()  # raises for half of a surrogate pair, which is not text
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{part} is not what a rank has written: {first_line(error)} Does another run predict "
            "into this folder? Give each one of its own."
        ) from error
    return [(number, line) for number, line in rows]
