"""Offers debugging hooks that training code calls; most others need the vendor's compiler."""

from __future__ import annotations

import torch

from ...._missing import missing
from ..._binding import C
from ...internal import bridge_config
from .logger import Logger

__all__ = ["Logger"]
_log = Logger("PT_BRIDGE")


def _get_fallback_op_count() -> dict[str, int]:
    """Returns how often the device sent each operation to the CPU."""
    return dict(C.fallback_stats())


def _set_module_name(name: str = "") -> None:
    """Does nothing; on a card it names the module that runs, for dumps of graphs."""


def _is_enabled_lazy_collectives() -> bool:
    """Returns whether collectives are part of lazy graphs."""
    return bridge_config.get_pt_hpu_enable_lazy_collectives()


def _is_enabled_weight_permute_pass() -> bool:
    """Returns whether weights are stored in another order of dimensions: not since 1.19."""
    return False


def _is_enabled_synapse_layout_handling() -> bool:
    """Returns whether the compiler chooses the order of dimensions, which no result shows."""
    return True


def _hb_print(msg: str) -> None:
    """Logs a message."""
    _log.info(msg)


def _hg_print(msg: str) -> None:
    """Logs a message about graph capture."""
    _log.debug(msg)


def _mem_log(msg: str) -> bool:
    """Logs a message with the memory in use.

    Returns:
        Whether it was logged.
    """
    _log.info(f"{msg}: {C.memory_stats()['InUse']} bytes in use")
    return True


def get_tensor_info(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns address and bytes of a tensor's memory; None for one that is not on the HPU."""
    if tensor.device.type != "hpu":
        return None
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def clear_dynamic_bucket_recipe_info() -> None:
    """Does nothing: no recipes were made for ranges of sizes."""


def get_permute_cache_size() -> int:
    """Returns the number of weights stored in another order of dimensions: none are."""
    return 0


def is_permute_cache_empty() -> bool:
    """Returns whether no weight is stored in another order: always."""
    return True


def flush_permute_cache() -> None:
    """Does nothing: no weight is stored in another order of dimensions."""


def _switch(flag: bool) -> None:
    """Does nothing: operations run one by one, without the compiler whose pass this switches."""


_enable_bn_param_recalculation = _switch
_enable_constant_pooling = _switch
_enable_eliminate_common_subexpression = _switch
_enable_eliminate_dead_code = _switch
_enable_fuse_bn_relu_optimization = _switch
_enable_fuse_conv_bn_optimization = _switch
_enable_fuse_t_mm_optimization = _switch
_enable_peephole_optimization = _switch
_enable_permute_pass = _switch
_enable_replace_inplace_ops = _switch
_enable_replace_views = _switch

__getattr__ = missing(__name__)
