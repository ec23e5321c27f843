"""Prompts as they are given: in a list, or in a text file with one a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recipes.common.errors import UserError
from recipes.common.tables import lines


def given_prompts(prompts: Sequence[str] | None, file: str | None) -> list[str] | None:
    """Returns the prompts of the settings `data.prompts` and `data.prompts_file`.

    Args:
        prompts: as set, or None.
        file: a text file in UTF-8; its blank lines are no prompts.

    Returns:
        The prompts as they are written, at least one; None where neither is set.

    Raises:
        UserError: naming the setting, if both are set, or there is no prompt, or an empty one, or
            no such file.
    """
    if prompts is not None and file is not None:
        raise UserError(
            "data.prompts and data.prompts_file are both set, and prompts come from one place. "
            "Leave out one of them."
        )
    if file is not None:
        return _read(file)
    if prompts is None:
        return None
    if not prompts:
        raise UserError(
            "data.prompts is an empty list. Give texts: --data.prompts '[\"Once upon a time\"]'."
        )
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise UserError(
                f"data.prompts: prompt {number} of {len(prompts)} is empty. Write something, or "
                "remove it."
            )
    return list(prompts)


def _read(file: str) -> list[str]:
    path = Path(file).expanduser()
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(
            f"data.prompts_file={file} {kind}. Name a text file with one prompt a line."
        )
    try:
        found = [line.rstrip("\r\n") for line in lines(path)]
    except UserError as error:  # it calls the file data.path, as it does others
        raise UserError(str(error).replace("data.path=", "data.prompts_file=")) from error
    if found := [prompt for prompt in found if prompt.strip()]:
        return found
    raise UserError(f"data.prompts_file={file} has no prompt: write one a line.")
