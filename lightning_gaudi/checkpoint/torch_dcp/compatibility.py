"""Checks that a checkpoint fits a model and its optimizers before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import StorageReader

from lightning_gaudi.untrusted import printable

from ..errors import ADVICE, DamagedCheckpointError
from .load import read_values

_MAX_NAMES = 5


class CheckpointIndex:
    """The names and shapes that a checkpoint holds.

    Args:
        reader: Of the checkpoint.
        metadata: The checkpoint's.
    """

    def __init__(self, reader: StorageReader, metadata: Metadata) -> None:
        self._reader = reader
        self._metadata = metadata
        self._paths: dict[str, tuple[Any, ...]] = dict(metadata.planner_data)

    def fit_weights(
        self, model: str, weights: Mapping[str, Any], *, strict: bool
    ) -> dict[str, Any]:
        """Returns those weights of a model that the checkpoint holds.

        Args:
            model: The model's name in the checkpoint.
            weights: The model's state.
            strict: Whether to refuse a checkpoint whose names differ from the model's.

        Raises:
            ValueError: Names or shapes differ; they are listed.
        """
        # `planner_data` maps each flat key to its path, such as ("model", "layer.weight"). The flat
        # keys join paths by dots and cannot be split again, since names have dots, too.
        saved = {key for key, path in self._paths.items() if path[0] == model}
        if not saved and weights:
            names = dict.fromkeys(path[0] for path in self._paths.values())
            raise ValueError(
                f"The checkpoint has no model {model!r}: it has {_listed(map(repr, names))}."
            )
        wanted, paths = flatten_state_dict({model: dict(weights)})
        missing = {str(paths[key][1]) for key in wanted if key not in saved}
        unexpected = {str(self._paths[key][1]) for key in saved if key not in wanted}
        if strict and (missing or unexpected):
            raise ValueError(
                "The checkpoint does not fit the model."
                + (f" It lacks {_listed(missing)}." if missing else "")
                + (f" The model lacks {_listed(unexpected)}." if unexpected else "")
                + " Load it into the model that it was saved from, or set strict_loading (Trainer) "
                "or strict (Fabric) to False to load what fits."
            )
        self._check_shapes(wanted)
        return {name: value for name, value in weights.items() if name not in missing}

    def param_groups(self, optimizer: str, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the settings of each parameter group that an optimizer was saved with.

        Args:
            optimizer: The optimizer's name in the checkpoint.
            own: The groups that the optimizer has.

        Raises:
            ValueError: There is no such optimizer, or its parameters are grouped in another way.
        """
        where = (optimizer, "param_groups")
        found = read_values(self._reader, self._metadata, lambda path: path[:2] == where)
        if not found:
            raise ValueError(
                f"The checkpoint has no state of {optimizer!r}. It was saved with weights only, or "
                "with fewer optimizers. Load it without resuming, or configure the optimizers as "
                "they were."
            )
        saved: list[dict[str, Any]] = _groups(optimizer, found)
        for number, (before, now) in enumerate(_pairs(optimizer, saved, own)):
            if differing := set(before["params"]) ^ set(now["params"]):
                raise ValueError(
                    f"Group {number} of {optimizer!r} had other parameters when the checkpoint was "
                    f"saved: {_listed(differing)} are not in both. Configure the optimizer as it "
                    "was."
                )
        return saved

    def fit_optimizer(self, optimizer: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those states of an optimizer that the checkpoint holds.

        Args:
            optimizer: The optimizer's name in the checkpoint.
            own: What this run's optimizer keeps for each parameter, by name.

        Raises:
            ValueError: The checkpoint keeps something else for a parameter, or another shape.
        """
        fitting: dict[str, Any] = {}
        kept = self._kept(optimizer)
        for name, entry in own.items():
            # A parameter that was never stepped has no state in the checkpoint, and needs none.
            if name not in kept:
                continue
            if kept[name] != set(entry):
                raise ValueError(
                    f"The checkpoint's {optimizer!r} keeps {_listed(kept[name])} of "
                    f"{printable(name)}, and this run's keeps {_listed(entry) or 'nothing'}. "
                    "Resume with the optimizer and the settings that it was saved with."
                )
            fitting[name] = entry
        wanted, _ = flatten_state_dict({optimizer: {"state": fitting}})
        self._check_shapes(wanted)
        return fitting

    def _kept(self, optimizer: str) -> dict[str, set[str]]:
        kept: dict[str, set[str]] = {}
        for path in self._paths.values():
            if path[:2] == (optimizer, "state") and len(path) > 3:
                kept.setdefault(path[2], set()).add(path[3])
        return kept

    def _check_shapes(self, wanted: Mapping[str, Any]) -> None:
        for key, value in wanted.items():
            stored = self._metadata.state_dict_metadata.get(key)
            if not isinstance(stored, TensorStorageMetadata) or not hasattr(value, "size"):
                continue
            if stored.size != value.size():
                raise ValueError(
                    f"{printable(key)} has the shape {tuple(stored.size)} in the checkpoint and "
                    f"{tuple(value.size())} in this run. Load it into the model that it was "
                    "saved from."
                )


def _groups(optimizer: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the parameter groups of a checkpoint, once their form is checked."""
    groups = found[optimizer].get("param_groups") if isinstance(found[optimizer], dict) else None
    if not isinstance(groups, list) or not all(
        isinstance(group, dict)
        and isinstance(group.get("params"), (list, tuple))
        and all(isinstance(name, (str, int)) for name in group["params"])
        for group in groups
    ):
        raise DamagedCheckpointError(
            f"The checkpoint's {printable(optimizer)!r} is damaged: it has no groups of "
            f"parameters. {ADVICE}"
        )
    return groups


def _pairs(
    optimizer: str, saved: list[dict[str, Any]], own: list[dict[str, Any]]
) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    if len(saved) != len(own):
        raise ValueError(
            f"The checkpoint's {optimizer!r} has {len(saved)} groups of parameters, and this run's "
            f"has {len(own)}. Configure the optimizer as it was."
        )
    return zip(saved, own, strict=True)


def _listed(names: Iterable[str]) -> str:
    found = sorted(printable(name, max_chars=200) for name in names)
    more = f" and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
    return ", ".join(found[:_MAX_NAMES]) + more
