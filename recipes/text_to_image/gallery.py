"""Writes the pictures of `predict`: a PNG each, a list of them, and a grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from numpy.typing import NDArray

from recipes.common.folders import write_predictions
from recipes.text_to_image import album
from recipes.text_to_image.requests import Request

_LIST = "pictures.jsonl"


class Gallery:
    """Keeps the pictures of all cards in one folder.

    Args:
        folder: all cards must see it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hung: list[Request] = []

    def hang(self, requests: Sequence[Request], pictures: NDArray[np.float32]) -> None:
        """Writes the pictures [B, 3, H, W], from 0 to 1, of a batch of this card."""
        album.save(self.folder, requests, pictures)
        self._hung += requests

    def close(self, trainer: Trainer, requests: Sequence[Request]) -> Path | None:
        """Lists the pictures of all cards in pictures.jsonl, and puts them on a grid.

        Args:
            trainer: knows the cards.
            requests: all that there are, of which some may have been left out.

        Returns:
            The grid, on the first card; None if there is no picture.
        """
        lines = [(each.index, json.dumps(_row(each), ensure_ascii=False)) for each in self._hung]
        path = self.folder / _LIST
        write_predictions(trainer, path, lines)
        if not trainer.is_global_zero:
            return None
        listed = {json.loads(line)["index"] for line in path.read_text("utf-8").splitlines()}
        shown = [each for each in requests if each.index in listed]
        return album.save_grid(self.folder, shown) if shown else None


def _row(request: Request) -> dict[str, Any]:
    has_negative = request.negative_prompt is not None
    negative = {"negative_prompt": request.negative_prompt} if has_negative else {}
    return {
        "index": request.index,
        "prompt": request.prompt,
        **negative,
        "seed": request.seed,
        "file": album.file_name(request.index),
    }
