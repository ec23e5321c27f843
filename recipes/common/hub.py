"""Models and data sets by hub name, with errors that say what to do without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from recipes.common.errors import UserError

Model = TypeVar("Model")


def load_pretrained(cls: type[Model], setting: str, name_or_path: str, **options: Any) -> Model:
    """`cls.from_pretrained(name_or_path)`.

    Args:
        cls: a class of transformers, AutoTokenizer for example.
        setting: what names it, as the user types it: `model.name`.
        name_or_path: name on the hub or in its cache, or a folder that `save_pretrained` wrote.
        options: of `from_pretrained`.

    Raises:
        UserError: if there is no such model, or it cannot be read.
    """
    path = Path(name_or_path).expanduser()
    try:
        return cls.from_pretrained(str(path) if path.is_dir() else name_or_path, **options)  # type: ignore[attr-defined,no-any-return]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{setting}={name_or_path} could not be loaded as {cls.__name__}: {lines[0]} "
            "Check the name and the network. Without a network, download it where there is one "
            f"(`hf download {name_or_path} --local-dir FOLDER`) and set {setting}=FOLDER."
        ) from error


def load_hub_dataset(
    name: str, subset: str | None, split: str | None, revision: str | None = None
) -> Any:
    """Returns a data set of the hub, as a `datasets.Dataset`, or all of its splits by name.

    Args:
        name: of the data set, for example `abisee/cnn_dailymail`.
        subset: its configuration, for example `3.0.0`.
        split: train, validation or test; None for all that there are.
        revision: branch, tag or commit; None for the newest.

    Raises:
        UserError: if it cannot be had.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"data.source=hub reads {name!r} with the `datasets` package, which is not installed. "
            "Install it with: pip install 'lightning-gaudi[recipes]'"
        ) from error
    try:
        return datasets.load_dataset(name, subset, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"data.path={name} with data.subset={subset} could not be loaded: {error} Check the "
            "name, the subset and the network, or take local files with data.source=path."
        ) from error
