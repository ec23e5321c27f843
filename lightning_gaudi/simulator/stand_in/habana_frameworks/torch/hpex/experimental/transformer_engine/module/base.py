"""Has what modules in fp8 share: tables of scales, and when they are computed."""

from __future__ import annotations

import abc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ......_missing import missing
from .. import _tables
from ..distributed import is_fp8_activation_recompute_enabled
from ..fp8 import FP8GlobalStateManager, get_default_fp8_recipe

_PHASE = "in_activation_recompute_phase"
"""In `fp8_meta`: False in the first pass of a module that is checkpointed, True in the second, and
None otherwise."""


class TransformerEngineBaseModule(torch.nn.Module, abc.ABC):
    """A module that computes in fp8 inside of `fp8_autocast`.

    `fp8_meta` holds its tables ("scaling_fwd", "scaling_bwd" and, under HYBRID, "scaling_hybrid")
    and its "recipe". They are part of its state_dict, in a form of the stand-in's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fp8 = False
        self.fp8_meta: dict[str, Any] = {
            "recipe": get_default_fp8_recipe(),
            "fp8_group": None,
            "update_amax_fwd": {},
            "update_amax_bwd": {},
            "is_scale_update_required": False,
            _PHASE: None,
        }
        self.run_cnt = 0

    @abc.abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module."""

    def fp8_init(self, num_gemms: int = 1) -> None:
        """Takes over the recipe of the present `fp8_autocast`, and makes its tables."""
        self.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        is_ready = "scaling_fwd" in self.fp8_meta and recipe == self.fp8_meta["recipe"]
        if not self.fp8 or recipe is None or is_ready:
            return
        limits = recipe.fp8_format.value
        self.fp8_meta.update(
            recipe=recipe,
            num_gemms=num_gemms,
            fp8_group=FP8GlobalStateManager.get_fp8_group(),
            fp8_max_fwd=limits.max_fwd,
            fp8_max_bwd=limits.max_bwd,
        )
        _tables.prepare(self.fp8_meta, recipe)

    def get_amax_measure_state(self) -> dict[str, bool]:
        """Tells what this step notes: largest values, of which the next scales are made.

        Returns:
            Whether in the forward pass ("fwd_enabled"), in the backward pass ("bwd_enabled"), and
            whether by hand ("manual").
        """
        manual = FP8GlobalStateManager.get_manual_measurement_mode()
        recipe = self.fp8_meta["recipe"]
        position = self.run_cnt % recipe.interval
        is_last = recipe.interval == 1 or position >= recipe.interval - recipe.amax_history_len
        measures = is_last if manual is None else manual
        is_second = is_fp8_activation_recompute_enabled() and self.fp8_meta[_PHASE]
        return {
            "manual": manual is not None,
            "bwd_enabled": measures,
            "fwd_enabled": measures and not is_second,
        }

    def is_scale_update_required(self) -> bool:
        """Returns whether scales are computed in this step."""
        before = self.fp8_meta["update_amax_fwd"]
        if before.get("manual", False):
            return bool(before["bwd_enabled"])
        return bool(self.run_cnt % self.fp8_meta["recipe"].interval == 0)

    @contextmanager
    def prepare_forward(self, num_gemms: int = 1) -> Iterator[dict[str, bool]]:
        """Brings the scales up to date; under activation checkpointing, only once for both passes.

        Yields:
            What to measure, and whether to compute the backward pass's scales ("scales").
        """
        meta = self.fp8_meta
        is_checkpointed = is_fp8_activation_recompute_enabled() and self.training
        if is_checkpointed:
            self._enter_pass()
        if meta[_PHASE]:
            with self._second_pass() as measure:
                yield measure
            return
        self.run_cnt += 1
        self.fp8_init(num_gemms)
        meta["is_scale_update_required"] = self.is_scale_update_required()
        if meta["update_amax_fwd"].get("fwd_enabled", False):
            _tables.update(meta, True, meta["is_scale_update_required"])
        measure = self.get_amax_measure_state()
        meta["update_amax_fwd"] = measure if self.training else {}
        if is_checkpointed:
            FP8GlobalStateManager.copy_forward_fp8_meta_tensors_for_recompute(meta)
        yield measure | {"scales": meta["is_scale_update_required"]}

    def _enter_pass(self) -> None:
        """Notes which of the two passes this is: gradients tell them apart.

        Raises:
            RuntimeError: The first one computes gradients.
        """
        meta = self.fp8_meta
        if not torch.is_grad_enabled():
            meta[_PHASE] = False
        elif meta[_PHASE] is False:
            meta[_PHASE] = True
        if torch.is_grad_enabled() and not meta.get("kept_for_recompute"):
            raise RuntimeError(
                f"{type(self).__name__} is in activation_checkpointing, and its first pass already "
                "computes gradients. Use torch.utils.checkpoint.checkpoint with use_reentrant=True."
            )

    @contextmanager
    def _second_pass(self) -> Iterator[dict[str, bool]]:
        meta = self.fp8_meta
        FP8GlobalStateManager.get_old_fp8_meta_tensors_for_recompute(meta)
        try:
            scales = {"scales": meta["is_scale_update_required"]}
            yield self.get_amax_measure_state() | scales
        finally:
            FP8GlobalStateManager.restore_fp8_meta_tensors(meta)

    def check_passes_agree(self) -> None:
        """Checks that a pass outside of fp8 is not the second one of a pass in fp8.

        Raises:
            RuntimeError: It is.
        """
        kept = self.fp8_meta.get("kept_for_recompute")
        if kept and torch.is_grad_enabled() and self.training:
            raise RuntimeError(
                f"{type(self).__name__} computed in fp8 and is computed again outside of "
                "fp8_autocast. Enter fp8_autocast in the function that is checkpointed, or call "
                "backward() inside of it."
            )

    @staticmethod
    def prepare_backward(fp8_meta: dict[str, Any], measure: dict[str, bool]) -> None:
        """Brings the backward pass's scales up to date."""
        if fp8_meta["update_amax_bwd"].get("bwd_enabled", False):
            _tables.update(fp8_meta, False, measure["scales"])
        fp8_meta["update_amax_bwd"] = measure
        fp8_meta[_PHASE] = None

    def get_extra_state(self) -> torch.Tensor:
        """Returns the tables and counters as bytes, for the state_dict; empty if never in fp8."""
        if "scaling_fwd" not in self.fp8_meta:
            return torch.empty(0, dtype=torch.uint8)
        kinds = _tables.kinds_in(self.fp8_meta)
        tables = _tables.snapshot(self.fp8_meta, kinds)
        state = {
            "tables": [[tensor.cpu() for tensor in table] for table in tables],
            "kinds": [kind.name for kind in kinds],
            "num_gemms": self.fp8_meta["num_gemms"],
            "update": [self.fp8_meta["update_amax_fwd"], self.fp8_meta["update_amax_bwd"]],
            "run_cnt": self.run_cnt,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        """Loads the tables and counters of a state_dict."""
        if state is None or state.numel() == 0:
            return
        buffer = io.BytesIO(state.cpu().numpy().tobytes())
        saved = torch.load(buffer, weights_only=True)
        kinds = [_tables.MetaTensorType[name] for name in saved["kinds"]]
        for kind, tensors in zip(kinds, saved["tables"], strict=True):
            table = self.fp8_meta[_tables.key_of(kind)] = _tables.FP8TensorMeta()
            for name, tensor in zip(_tables.NAMES, tensors, strict=True):
                setattr(table, name, tensor.to("hpu"))
        self.fp8_meta["num_gemms"] = saved["num_gemms"]
        self.fp8_meta["update_amax_fwd"], self.fp8_meta["update_amax_bwd"] = saved["update"]
        # The next forward pass sets its recipe, and keeps these tables.
        self.fp8_meta["recipe"] = None
        self.run_cnt = saved["run_cnt"]


__getattr__ = missing(__name__)
