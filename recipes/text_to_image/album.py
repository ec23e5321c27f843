"""Writes pictures to files: each as a PNG, and all of them with their prompts on one.

Shapes: B pictures, H x W pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from recipes.common.errors import UserError, first_line
from recipes.common.folders import write_new
from recipes.text_to_image.requests import Request

GRID = "grid.png"
_MAX_IN_GRID = 100
_SMALLEST, _LARGEST = 64, 256
"""Pixels of a picture's longer side in the grid: smaller ones are enlarged, larger ones shrunk."""
_FONT_SIZE, _LINE, _MARGIN = 11, 14, 6
_MAX_LINES = 2


def file_name(index: int) -> str:
    """Returns the file name of the picture with that number."""
    return f"{index:05d}.png"


def save(folder: Path, requests: Sequence[Request], pictures: NDArray[np.float32]) -> None:
    """Writes pictures [B, 3, H, W], from 0 to 1, under the numbers of their requests."""
    folder.mkdir(parents=True, exist_ok=True)
    levels = (pictures * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    for request, each in zip(requests, levels, strict=True):
        _save(Image.fromarray(each), folder / file_name(request.index))


def save_grid(folder: Path, requests: Sequence[Request]) -> Path:
    """Puts the first pictures of a folder side by side, each above its prompt.

    Returns:
        The file, grid.png.
    """
    shown = requests[:_MAX_IN_GRID]
    pictures = [_resized(folder / file_name(each.index)) for each in shown]
    columns = _num_columns(len(shown))
    rows = math.ceil(len(shown) / columns)
    width = max(each.width for each in pictures) + _MARGIN
    height = max(each.height for each in pictures) + _MAX_LINES * _LINE + _MARGIN
    grid = Image.new("RGB", (columns * width + _MARGIN, rows * height + _MARGIN), "white")
    draw, font = ImageDraw.Draw(grid), ImageFont.load_default(_FONT_SIZE)
    for place, (request, picture) in enumerate(zip(shown, pictures, strict=True)):
        left = _MARGIN + place % columns * width
        top = _MARGIN + place // columns * height
        grid.paste(picture, (left, top))
        lines = _wrapped(request.prompt, width - _MARGIN, font)
        below = top + picture.height + 1
        draw.multiline_text((left, below), "\n".join(lines), "black", font, spacing=1)
    path = folder / GRID
    _save(grid, path)
    return path


def _save(picture: Image.Image, path: Path) -> None:
    """Writes a picture; a symbolic link at its name is replaced, not followed."""
    content = io.BytesIO()
    picture.save(content, "png")
    write_new(path, content.getvalue())


def _num_columns(count: int) -> int:
    """Returns ten columns if that fills all rows, as with digits; otherwise nearly a square."""
    return 10 if count % 10 == 0 else min(count, max(1, round(math.sqrt(count * 1.5))))


def _resized(path: Path) -> Image.Image:
    try:
        with Image.open(io.BytesIO(path.read_bytes())) as opened:
            picture = opened.convert("RGB")
    except Exception as error:  # Pillow has no type for a picture that is damaged
        raise UserError(
            f"{path} is no picture any more: {first_line(error)} Does another program write there?"
        ) from error
    longest = max(picture.size)
    if longest < _SMALLEST:  # nearest neighbour, so that pixels stay sharp
        scale = math.ceil(_SMALLEST / longest)
        return picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    picture.thumbnail((_LARGEST, _LARGEST))
    return picture


def _wrapped(
    text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[str]:
    """Returns as many lines as there is room for, with an ellipsis if some are left out."""
    lines: list[str] = []
    words = text.split()
    while words and len(lines) < _MAX_LINES:
        line = words.pop(0)
        while words and font.getlength(f"{line} {words[0]}") <= width:
            line += f" {words.pop(0)}"
        lines.append(_cut(line, width, font, is_short=bool(words) and len(lines) == _MAX_LINES - 1))
    return lines


def _cut(
    line: str,
    width: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    *,
    is_short: bool,
) -> str:
    if not is_short and font.getlength(line) <= width:
        return line
    while line and font.getlength(f"{line}...") > width:
        line = line[:-1]
    return f"{line}..."
