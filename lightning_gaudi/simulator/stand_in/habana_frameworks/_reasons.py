"""Says why names of the vendor's refuse to work here."""

from __future__ import annotations

_COMPILER = "It is part of the vendor's graph compiler, and the simulated HPU compiles no recipes."
_PT2E = "Quantized graphs need the vendor's graph compiler."
_GRAPHS = "The simulated HPU does not capture graphs."
_FP8 = "The simulated HPU has fp8, but not this part of it."
_PROFILER = (
    "It drives the profiler of the vendor's driver, which a CPU does not have. torch.profiler "
    "records the host's part."
)
_MEMORY_LOG = (
    "It logs the pools of the vendor's allocator, which are not simulated. Use "
    "torch.hpu.memory_stats."
)
_RECIPES = "It concerns compiled recipes, and the simulated HPU compiles none."
_SYNAPSE = "It needs the vendor's driver."
_WRITERS = "Files of metrics are written by the simulator itself. Use metrics_dump."

_REASONS = {
    "activity_profiler": _PROFILER,
    "core": "It is part of how the vendor's package is loaded.",
    "core.observer": _PT2E,
    "core.pattern_matcher": _PT2E,
    "core.quantize_kvcache": _PT2E,
    "core.quantize_pt2e": _PT2E,
    "core.quantizer": _PT2E,
    "core.overwrite_capture_pre_autograd_graph": _PT2E,
    "core.overwrite_export_functions": _PT2E,
    "core.overwrite_native_pt2e_quantization_interface": _PT2E,
    "core.torch_overwrites": _PT2E,
    "core.weight_sharing": "Parameters stay shared here without it: torch's Module.to keeps them.",
    "distributed.tensor": (
        "It registers how DTensor shards hpu::linear and hpu::matmul, operators that the "
        "simulated HPU lacks: it runs aten's, whose strategies are torch's."
    ),
    "dynamo": _COMPILER,
    "dynamo.debug_utils": "It draws graphs of the vendor's compiler.",
    "hpex": "It is a kernel of the vendor's that is not simulated.",
    "hpex.experimental.transformer_engine": _FP8,
    "hpex.kernels.Fp8FusedSDPA": _FP8,
    "hpex.kernels.fp8_fused_sdpa": _FP8,
    "hpu": _GRAPHS,
    "hpu.graphs": _GRAPHS,
    "hpu.metrics.metrics": _WRITERS,
    "hpu.metrics.saver": _WRITERS,
    "hpu.random": "It is how the vendor's DTensor mixes seeds. Use set_rng_ctx.",
    "hpu.utilization": "A CPU has no load of a card's to tell.",
    "hw_utilization_metric": "A CPU has no load of a card's to tell.",
    "internal.synrec_helper": "It records what the vendor's driver is sent.",
    "low_overhead_profiler": _PROFILER,
    "media_pyt_bridge": "It decodes media on the card, with the vendor's media libraries.",
    "profiler": _PROFILER,
    "utils.debug": _SYNAPSE,
    "utils.debug.dsa_debugger": "It compares dumps of the vendor's compiler.",
    "utils.debug.load_ds_checkpoint": _RECIPES,
    "utils.debug.save_ds_checkpoint": _RECIPES,
    "utils.debug.utils": "It stops a card and dumps its state.",
    "utils.git_info": "It tells the commits that the vendor's binaries were built from.",
    "utils.lib_utils": "There are no headers or libraries of the vendor's here.",
    "utils.profiler": _PROFILER,
    "utils.visualization": "It draws graphs of the vendor's compiler.",
}
_BEGINNINGS = {
    "utils.experimental._set_scale_attributes": (
        "It has graphs take other scales of fp8 without being compiled again, and the simulated "
        "HPU's take them anyway."
    ),
    "utils.experimental.detect_recompilation.": "It is how the vendor's builds its report.",
    "utils.debug._dump_": _RECIPES,
    "utils.debug._memstat_": _MEMORY_LOG,
    "utils.debug._towl_": _MEMORY_LOG,
    "utils.experimental._record_": "It tells the vendor's profiler which memory is a parameter's.",
}
GPU_MIGRATION = "the simulated HPU does not turn calls of torch.cuda into those of torch.hpu."
"""The reason for which `PT_HPU_GPU_MIGRATION` and the package that it loads do nothing."""
_DEFAULT = "It needs the vendor's libraries."


def reason_for(name: str) -> str:
    """Returns why a name cannot work, as a sentence.

    Args:
        name: Its full address, `habana_frameworks.torch...`.
    """
    short = name.removeprefix("habana_frameworks.").removeprefix("torch.")
    # The beginnings of names first, then the longest address that has a reason.
    for beginning, reason in _BEGINNINGS.items():
        if short.startswith(beginning):
            return reason
    while short:
        if short in _REASONS:
            return _REASONS[short]
        short = short.rpartition(".")[0]
    return _DEFAULT
