"""Adds LoRA adapters by peft, selects their weights, and identifies the base they belong to."""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lightning_gaudi.untrusted import printable
from recipes.common.errors import UserError, first_line

ALL_LINEAR = "all-linear"
"""peft's word for all linear layers except the one that computes the logits."""
BASE_KEY = "base_fingerprint"
"""The key of a checkpoint under which the fingerprint of the frozen weights is kept."""
_OF_ADAPTER = ("lora_", "modules_to_save")
_ZERO = "deepspeed.runtime.zero.partition_parameters"
"""DeepSpeed's module that cuts weights up; it is in `sys.modules` wherever ZeRO-3 is used."""
_NUM_SAMPLED = 4096
"""About how many values of each weight enter the fingerprint."""


def add_lora(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    targets: str | Sequence[str],
    base_name: str | None,
    method: str = "lora",
) -> None:
    """Freezes a model, and puts low-rank adapters beside its linear layers, in place.

    The adapters are kept in float32, whatever the model's dtype is, because they are trained.

    Args:
        model: a model of transformers.
        rank: the rank of the adapters.
        alpha: the output of the adapters is multiplied by alpha / rank.
        dropout: the dropout of the adapters' input.
        targets: `all-linear`, or names of layers, such as ["q_proj", "v_proj"].
        base_name: the model's name or folder, which an exported adapter names.
        method: lora or qlora, for messages.

    Raises:
        UserError: No layer has one of the names, or peft is not installed.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise UserError(
            f"model.method={method} needs the package peft, which is not installed. Run: "
            "pip install 'lightning-gaudi[recipes,llm]'"
        ) from error
    if rank < 1:
        raise UserError(f"model.lora_rank={rank} must be at least 1.")
    names = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=names if isinstance(names, list) or names == ALL_LINEAR else [names],
        base_model_name_or_path=base_name,
    )
    if names != ALL_LINEAR and (missing := _missing(model, config.target_modules)):
        raise UserError(_no_such_layer(model, targets, missing))
    # peft asks Neural Compressor, where that is installed, whether a layer is one of its own. None
    # is here, and it raises on a Gaudi 1 (neural_compressor_pt 3.10, `auto_accelerator.py`).
    os.environ.setdefault("INC_TARGET_DEVICE", "cpu")
    try:
        model.add_adapter(config)
    except ValueError as error:  # it has none for a layer of this kind, or is too old
        raise UserError(
            f"peft adds no adapter for model.lora_targets={targets}: {first_line(error)}"
        ) from error
    for name, parameter in model.named_parameters():
        is_adapter = is_of_adapter(name)
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            parameter.data = parameter.data.float()


def is_of_adapter(name: str) -> bool:
    """Returns whether a weight with that name belongs to an adapter."""
    return any(part in name for part in _OF_ADAPTER)


def adapter_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a state dict that belong to adapters."""
    return {name: value for name, value in state.items() if is_of_adapter(name)}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Computes with the base alone inside the context, and changes nothing else."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    # peft's public `enable_adapters(False)` would also set `requires_grad` of the adapters.
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def merge(model: PreTrainedModel) -> None:
    """Adds the product of each adapter's matrices to the weight beside it, in place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer) and not module.merged:
            module.merge()


def base_fingerprint(model: nn.Module) -> str:
    """Returns a fingerprint by which a base model is recognized, quickly even if it is large.

    It is the SHA-256 of the names and shapes of all weights, and of some values of each weight,
    evenly spaced, in bfloat16. Some values are enough, because further training changes all.

    Args:
        model: a model without adapters, whose weights are whole, or partitioned by ZeRO-3.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        with _whole(weight):
            values = weight.detach().flatten()[:: max(1, weight.numel() // _NUM_SAMPLED)]
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            digest.update(values.bfloat16().contiguous().cpu().view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def _whole(weight: nn.Parameter) -> Iterator[None]:
    """Gathers a weight that ZeRO-3 has partitioned; all ranks have to call this together."""
    if not hasattr(weight, "ds_id"):
        yield
        return
    with sys.modules[_ZERO].GatheredParameters([weight]):
        yield


@contextmanager
def whole_weights() -> Iterator[None]:
    """Creates modules with whole weights inside the context, even under ZeRO-3.

    peft initializes an adapter's weights after it has created them. If ZeRO-3 had partitioned them
    before, there would be nothing left to initialize, and a new adapter would change the model.
    """
    partition = sys.modules.get(_ZERO)
    if partition is None or partition.top_level_context is None:
        yield
        return
    partition.shutdown_init_context()
    try:
        yield
    finally:
        partition.restore_init_context()


def check_base(checkpoint: Mapping[str, Any], ours: str, name: object) -> None:
    """Refuses an adapter that was trained beside other weights.

    Args:
        checkpoint: the checkpoint that a fit wrote.
        ours: the fingerprint of the configured base model.
        name: the name of the configured base model.

    Raises:
        UserError: The fingerprints differ.
    """
    theirs = checkpoint.get(BASE_KEY)
    if theirs is not None and theirs != ours:
        raise UserError(
            f"The checkpoint holds an adapter that was trained beside other weights than those of "
            f"model.name={name}: their fingerprint begins with {printable(theirs, max_chars=12)}. "
            "Set model.name to the base of that training (see config.yaml in the run's folder)."
        )


def _missing(model: nn.Module, targets: Iterable[str]) -> str | None:
    """Returns a target that matches no layer; peft complains only if none of them matches one."""
    layers = [name for name, _ in model.named_modules()]
    return next(
        (
            each
            for each in sorted(targets)
            if not any(name == each or name.endswith(f".{each}") for name in layers)
        ),
        None,
    )


def _no_such_layer(model: nn.Module, targets: object, missing: str) -> str:
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    near = difflib.get_close_matches(missing, sorted(linear), 1, 0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    names = ", ".join(sorted(linear))
    return (
        f"model.lora_targets={targets}: no layer has the name {missing!r}.{hint} The model's "
        f"linear layers are {names}; {ALL_LINEAR} takes all but the one that computes the logits."
    )
