"""Makes one file of a checkpoint in shards, and puts DeepSpeed's weights together in fp32.

No HPU is needed.
"""

from __future__ import annotations

import io
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi.untrusted import printable

from ...checkpoint.errors import ADVICE, DamagedCheckpointError
from ...checkpoint.single_file import check_output, write_single_file
from ...checkpoint.stored_shards import fetched
from ...checkpoint.torch_dcp import load as _dcp
from ...checkpoint.torch_dcp.layout import is_sharded_folder
from ...checkpoint.verify import check_folder
from .. import library
from . import shards as _shards, versions
from .shards import Shards

MODEL_NAME = "lightning_gaudi_model_name"
"""The key of a checkpoint of Fabric's for the name that the user gave the model."""

_LIGHTNING = "pytorch-lightning_version"
_DEEPSPEED = frozenset(
    {
        "buffer_names",
        "checkpoint_parallel_dimensions",
        "data_sampler",
        "dp_world_size",
        "ds_config",
        "ds_version",
        "frozen_param_fragments",
        "frozen_param_shapes",
        "global_samples",
        "global_steps",
        "lr_scheduler",
        "module",
        "mp_world_size",
        "optimizer",
        "param_shapes",
        "random_ltd",
        "shared_params",
        "skipped_steps",
        "sparse_tensor_module_names",
    }
)
"""DeepSpeed's own keys in a file of a model's state. Source: deepspeed 0.19.8, engine.py."""


class Weights(UserDict[str, Any]):
    """A state dict whose tensors are put together in fp32 when they are read.

    Tied weights are one tensor with several names.
    """

    def __getitem__(self, name: str) -> Any:
        found: Any = self.data[name]
        # With `lazy_mode` DeepSpeed gives a placeholder, whose `contiguous` reads the shards.
        if hasattr(found, "contiguous"):
            try:
                found = found.contiguous()
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                raise DamagedCheckpointError(
                    f"The checkpoint has no whole {printable(name)}: {printable(error)}. {ADVICE}"
                ) from error
        is_low = isinstance(found, Tensor) and found.dtype in (torch.bfloat16, torch.float16)
        return found.float() if is_low else found


def reserved(names: Mapping[str, Any]) -> list[str]:
    """Returns the names that DeepSpeed needs for itself."""
    return sorted(_DEEPSPEED & names.keys())


def extras(shards: Shards) -> dict[str, Any]:
    """Returns what Lightning, callbacks and the user have saved beside model and optimizer."""
    return _extras(_shards.load(shards.model_files[0]))


def weights(shards: Shards) -> Weights:
    """Returns the whole model's state in fp32, from master weights if there are any.

    Args:
        shards: The files of a version, of any stage.

    Raises:
        ValueError: The shards do not have all of it.
    """
    with _shards.as_damage(shards.folder):
        names = _shards.load(shards.model_files[0])["module"]
        if not shards.optimizer_files or names is None:
            return Weights(names)
        masters = _masters(shards)
        if not shards.is_stage_3:
            # DeepSpeed's tool leaves out frozen parameters in stage 1, but there the model's state
            # has all of them.
            masters = {**names, **masters}
    missing = [name for name in names if name not in masters]
    if missing:
        raise ValueError(
            f"The checkpoint {printable(shards.folder)} has no values of "
            f"{printable(', '.join(map(str, missing)))}. They were left "
            "out when it was saved (exclude_frozen_parameters), or it is not of a Lightning model."
        )
    return Weights({name: masters[name] for name in names})


def _masters(shards: Shards) -> Mapping[str, Any]:
    from deepspeed.utils import zero_to_fp32

    with quiet(), _shards.read_by_deepspeed():
        found: Mapping[str, Any] = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(
            str(shards.folder), shards.tag, lazy_mode=True
        )
    return found


def consolidated(folder: Path) -> tuple[dict[str, Any], str]:
    """Returns a checkpoint as an unsharded strategy would have saved it, without optimizers.

    Args:
        folder: A checkpoint that the Trainer or Fabric has saved with DeepSpeed.

    Returns:
        The checkpoint, in memory, and the key of the weights in it.

    Raises:
        FileNotFoundError: A file is missing.
        ImportError: DeepSpeed is not installed.
        ValueError: A file is damaged.
    """
    check_folder(folder / versions.latest(folder))
    library.check_installed(f"The checkpoint {folder}")
    shards = _shards.find(folder)
    checkpoint = extras(shards)
    name = checkpoint.pop(MODEL_NAME, "model")
    key = "state_dict" if _LIGHTNING in checkpoint else name
    with _shards.as_damage(folder):
        return {key: _materialized(weights(shards)), **checkpoint}, key


def consolidate(folder: str | Path, output: Path) -> None:
    """Writes a checkpoint in shards to one file, which takes the place of `output` when complete.

    Args:
        folder: The folder or address to which DeepSpeed, FSDP or tensor parallel has saved.
        output: The file to write. It ends with `.safetensors` for the weights alone, or with
            `.ckpt` or `.pt` for all that was saved but DeepSpeed's optimizer.

    Raises:
        ImportError: DeepSpeed has saved it, and is not installed.
        OSError: There is no such checkpoint, a file of it is missing, or `output` cannot be
            written.
        ValueError: A file is damaged or not trusted, or `output` has another suffix.
    """
    check_output(output)
    with fetched(folder, is_alone=True) as found:
        if "://" in str(found):
            raise FileNotFoundError(
                f"There is no checkpoint in shards at {folder}. Pass the address that it was saved "
                "to."
            )
        path = Path(found)
        if not is_sharded_folder(path):
            write_single_file(*consolidated(path), output)
        elif output.suffix == ".safetensors":
            write_single_file({"model": _dcp.load_full_state(path)}, "model", output)
        else:
            write_single_file(_dcp.load_full_checkpoint(path), "state_dict", output)


def _extras(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in _DEEPSPEED}


def _materialized(weights: Weights) -> dict[str, Any]:
    """Returns all weights in memory of their own; tied weights stay tied."""
    made: dict[int, Any] = {}
    for name, lazy in weights.data.items():
        if id(lazy) not in made:
            value = weights[name]
            made[id(lazy)] = value.detach().clone() if isinstance(value, Tensor) else value
    return {name: made[id(lazy)] for name, lazy in weights.data.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the progress output of DeepSpeed's tools."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
