"""`torch.hpu`: the device, its memory, generator, streams and switches.

One device a process, index 0, whatever the number of cards: the vendor's rule.
"""

from lightning_gaudi.simulator.settings import read_release

from ..._missing import missing
from ..utils.internal import is_lazy
from . import graphs, metrics, random
from ._lifecycle import (
    _lazy_init,  # noqa: F401 (torch asks for it)
    current_device,
    device_count,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    synchronize,
)
from ._utils import HABANA_VISIBLE_MODULES_VAR, HLS_MODULE_ID_VAR
from .autocast import (
    get_amp_supported_dtype,
    get_autocast_hpu_dtype,
    is_autocast_hpu_enabled,
    set_autocast_hpu_dtype,
    set_autocast_hpu_enabled,
)
from .devices import device, device_of, set_device
from .events import Event
from .memory import (
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_summary,
    memory_usage,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .metrics import metric_global, metric_localcontext, metrics_dump
from .properties import (
    can_device_access_peer,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
)
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_ctx,
    set_rng_state,
    set_rng_state_all,
    unset_rng_ctx,
)
from .streams import (
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    record_stream,
    set_stream,
    stream,
)
from .switches import (
    disable_dynamic_shape,
    disable_inference_mode,
    disable_matmul3d_2d_reshape,
    disable_optim_output_sif,
    enable_dynamic_shape,
    enable_inference_mode,
    enable_matmul3d_2d_reshape,
    enable_optim_output_sif,
    enable_recompute_sdp,
    get_dynamic_shape_status,
    getDeterministic,
    recompute_sdp_enabled,
    sdp_kernel,
    setDeterministic,
)

__all__ = [
    "HABANA_VISIBLE_MODULES_VAR",
    "HLS_MODULE_ID_VAR",
    "Event",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "disable_dynamic_shape",
    "disable_inference_mode",
    "disable_matmul3d_2d_reshape",
    "disable_optim_output_sif",
    "enable_dynamic_shape",
    "enable_inference_mode",
    "enable_matmul3d_2d_reshape",
    "enable_optim_output_sif",
    "enable_recompute_sdp",
    "getDeterministic",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_autocast_hpu_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamic_shape_status",
    "get_gencode_flags",
    "get_rng_state",
    "get_rng_state_all",
    "graphs",
    "init",
    "initial_seed",
    "is_autocast_hpu_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "memory_usage",
    "metric_global",
    "metric_localcontext",
    "metrics",
    "metrics_dump",
    "random",
    "recompute_sdp_enabled",
    "record_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "sdp_kernel",
    "seed",
    "seed_all",
    "setDeterministic",
    "set_autocast_hpu_dtype",
    "set_autocast_hpu_enabled",
    "set_device",
    "set_rng_ctx",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "unset_rng_ctx",
]
# Before 1.24 eager mode has no names of graph capture at all; since then they raise when used.
if is_lazy() or read_release().number >= 124:
    from .graphs import *  # noqa: F403

    __all__ += graphs.__all__
_missing = missing(__name__)


def __getattr__(name: str) -> bool:
    # Activation checkpointing keeps the generator's state only where this is true.
    return is_initialized() if name == "_initialized" else _missing(name)
