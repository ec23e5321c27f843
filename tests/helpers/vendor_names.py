"""Every name of the vendor's that this package uses, and where the vendor says what it means.

A record: `tests/core/test_vendor_names.py` compares it with the source of `vendor.py` in both
directions and with the calls made there; `tests/contract` looks each name up in the package that is
installed, the simulator's stand-in or the vendor's own.

Sources: the files are those of the Intel Gaudi PyTorch bridge, releases 1.19 to 1.24.1
(https://github.com/HabanaAI/gaudi-pytorch-bridge), below
`python_packages/habana_frameworks/torch`; the pages are those of the vendor's documentation. What
we use is alike in all of these releases: `tests/core/test_vendor_names.py` asks the list of all
names, `lightning_gaudi/simulator/vendor_names`.
"""

from __future__ import annotations

from typing import NamedTuple

API_PAGE = "https://docs.habana.ai/en/latest/PyTorch/Reference/Python_Packages.html"
"""Intel Gaudi PyTorch Python API (habana_frameworks.torch)."""
ASSIGNMENT_PAGE = (
    "https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html"
)
"""Gaudi-to-process Assignment."""
BACKEND_PAGE = (
    "https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/"
    "Distributed_Backend_Initialization.html"
)
"""Distributed Backend Initialization."""
AUTOCAST_PAGE = "https://docs.habana.ai/en/latest/PyTorch/PyTorch_Mixed_Precision/index.html"
"""Mixed Precision Training with PyTorch Autocast."""
GRAPHS_PAGE = (
    "https://docs.habana.ai/en/latest/PyTorch/Inference_on_PyTorch/Inference_Using_HPU_Graphs.html"
)
"""Run Inference Using HPU Graphs."""
INSTALLATION_PAGE = "https://docs.habana.ai/en/latest/Installation_Guide/Driver_Installation.html"
"""Driver and Software Installation, Set Environment Variables."""
RUNTIME_PAGE = "https://docs.habana.ai/en/latest/PyTorch/Reference/Runtime_Flags.html"
"""Runtime Environment Variables."""
SCALE_OUT_PAGE = (
    "https://docs.habana.ai/en/latest/API_Reference_Guides/HCCL_APIs/Scale_Out_via_Host_NIC.html"
)
"""Scale-out via Host NIC."""
PROFILING_PAGE = "https://docs.habana.ai/en/latest/Profiling/Profiling_with_PyTorch.html"
"""Profiling with PyTorch."""
CONTAINER_RUNTIME = "https://github.com/HabanaAI/habana-container-runtime"
"""README, Environment variables (OCI spec)."""


class Callable(NamedTuple):
    """A function, class or method of the vendor's that we call."""

    name: str
    """Its address below `habana_frameworks.torch`; `f().x` is x of what f returns."""
    signature: str
    """Its parameters in every release, as they stand between the parentheses of its `def`."""
    file: str
    """The bridge's file that defines it."""
    page: str = API_PAGE
    """The vendor's page on it."""
    is_lazy: bool = False
    """Whether it is for lazy mode alone: some releases have no such name in eager mode."""


class Module(NamedTuple):
    """A module of the vendor's that we import."""

    name: str
    """Its address below `habana_frameworks.torch`; empty for that package itself."""
    effect: str
    """What its import does besides defining names."""
    file: str
    """The bridge's file."""


class Variable(NamedTuple):
    """An environment variable of the vendor's that this package reads or sets."""

    name: str
    """The variable."""
    use: str
    """What we do with it."""
    source: str
    """The vendor's page, or the bridge's file where no page tells."""


MODULES = (
    Module(
        "",
        "registers torch.hpu and hccl; wraps torch.manual_seed, seed, random.fork_rng, "
        "distributed.init_process_group and new_group; in lazy mode torch.save and load",
        "__init__.py",
    ),
    Module(
        "hpex.experimental.transformer_engine",
        "imports intel_transformer_engine, whose names it has",
        "hpex/experimental/transformer_engine/__init__.py",
    ),
    Module("hpu.metrics", "starts counting", "hpu/metrics/__init__.py"),
    Module(
        "dynamo.compile_backend.config",
        "checks PT_HPU_... that are about the compiler",
        "dynamo/compile_backend/config.py",
    ),
    Module("utils.internal", "", "utils/internal.py"),
    Module(
        "distributed.hccl",
        'registers the backend "hccl"; calls initialize_distributed_hpu()',
        "distributed/hccl/__init__.py",
    ),
)
"""What `vendor.py` imports."""

CALLABLES = (
    Callable("core.mark_step", 'device_str="", sync=False', "core/step_closure.py"),
    Callable(
        "distributed.hccl.initialize_distributed_hpu",
        "world_size=None, rank=None, local_rank=None",
        "distributed/hccl/__init__.py",
        BACKEND_PAGE,
    ),
    Callable("hpex.kernels.FusedSDPA", "", "hpex/kernels/FusedSDPA.py"),
    Callable(
        "hpex.optimizers.FusedAdamW",
        "params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, bias_correction=True, "
        "moments_dtype=None",
        "hpex/optimizers/FusedAdamW.py",
    ),
    Callable(
        "hpex.optimizers.FusedLamb",
        "params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, "
        "amsgrad=False, adam_w_mode=True, grad_averaging=True, set_grad_none=True, "
        "max_grad_norm=1.0, use_lamb=False, fused=False, dtype=None",
        "hpex/optimizers/FusedLamb.py",
    ),
    Callable("hpu.Event", "enable_timing=False", "hpu/events.py"),
    Callable("hpu.Event().record", "stream=None", "hpu/events.py"),
    Callable("hpu.HPUGraph", "", "hpu/graphs.py", GRAPHS_PAGE, is_lazy=True),
    Callable("hpu.device_count", "", "hpu/__init__.py"),
    Callable("hpu.get_device_name", "device=None", "hpu/__init__.py"),
    Callable(
        "hpu.graph",
        "hpu_graph, stream=None, dry_run=False",
        "hpu/graphs.py",
        GRAPHS_PAGE,
        is_lazy=True,
    ),
    Callable("hpu.init", "", "hpu/__init__.py"),
    Callable("hpu.is_initialized", "", "hpu/__init__.py"),
    Callable("hpu.memory_stats", "device=None", "hpu/memory.py"),
    Callable("hpu.metrics.metric_global", "name", "hpu/metrics/metrics.py"),
    Callable("hpu.metrics.metric_global().stats", "", "hpu/metrics/metrics.py"),
    Callable("hpu.random.get_rng_state", 'device="hpu"', "hpu/random.py"),
    Callable("hpu.random.manual_seed_all", "seed", "hpu/random.py"),
    Callable("hpu.random.set_rng_state", 'new_state, device="hpu"', "hpu/random.py"),
    Callable("hpu.reset_peak_memory_stats", "device=None", "hpu/memory.py"),
    Callable("hpu.synchronize", "", "hpu/__init__.py"),
    Callable("utils.experimental._get_device_type", "", "utils/experimental/__init__.py"),
    Callable("utils.experimental._is_fp16_supported", "", "utils/experimental/__init__.py"),
    Callable("utils.internal.is_lazy", "", "utils/internal.py"),
)
"""What `vendor.py` calls or hands on."""

VARIABLES = (
    *(
        Variable(name, "the doctor looks whether the installation has set it", INSTALLATION_PAGE)
        for name in (
            *("GC_KERNEL_PATH", "HABANA_LOGS", "HABANA_PLUGINS_LIB_PATH"),
            "HABANA_SCAL_BIN_PATH",
        )
    ),
    *(
        Variable(name, "the doctor says what it does to a run", RUNTIME_PAGE)
        for name in (
            *("PT_COMPILE_ONLY_MODE", "PT_HPU_GPU_MIGRATION", "PT_HPU_LAZY_MODE"),
            "PT_HPU_RECIPE_CACHE_CONFIG",
        )
    ),
    *(
        Variable(name, "the doctor looks at how servers are connected", SCALE_OUT_PAGE)
        for name in ("HCCL_OVER_OFI", "HCCL_SOCKET_IFNAME")
    ),
    Variable(
        "HABANA_VISIBLE_DEVICES",
        "the doctor knows that it is each server's own",
        ASSIGNMENT_PAGE,
    ),
    Variable(
        "HABANA_PROFILE",
        "a profiler of the vendor's that ours cannot run beside is refused; its import sets one",
        PROFILING_PAGE,
    ),
    Variable(
        "HABANA_RUNTIME_ERROR",
        "the doctor says what the container's runtime could not prepare",
        CONTAINER_RUNTIME,
    ),
    Variable("HABANA_VISIBLE_MODULES", "which modules our ranks may take", ASSIGNMENT_PAGE),
    Variable(
        "HLS_MODULE_ID", "set to the rank's module; kept if a launcher set it", ASSIGNMENT_PAGE
    ),
    Variable(
        "PT_HPU_AUTOCAST_FP32_OPS_LIST",
        "its file is checked for names autocast lacks",
        AUTOCAST_PAGE,
    ),
    Variable(
        "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST",
        "its file is checked for names autocast lacks",
        AUTOCAST_PAGE,
    ),
    Variable(
        "PT_HPU_ENABLE_LAZY_COLLECTIVES",
        "graphs of models on several cards are refused without it",
        GRAPHS_PAGE,
    ),
)
"""What this package reads and sets in the environment, besides torch's and Lightning's own."""

MEMORY_STATS = (
    "Limit",
    "InUse",
    "MaxInUse",
    "NumAllocs",
    "NumFrees",
    "ActiveAllocs",
    "MaxAllocSize",
    "TotalSystemAllocs",
    "TotalSystemFrees",
    "TotalActiveAllocs",
)
"""The keys of `hpu.memory_stats()`. Source: hpu/memory.py."""

METRICS = {
    "graph_compilation": ("TotalNumber", "TotalTime", "AvgTime"),
    "cpu_fallback": ("TotalNumber", "FallbackOps"),
    "memory_defragmentation": ("TotalNumber", "TotalSuccessful", "AvgTime", "MaxTime"),
}
"""The metrics that are always there, and their keys. Source: hpu/metrics/metrics.py."""

DEVICE_TYPE = "hpu"
"""The name of the device in torch: of tensors, of `torch.autocast`, of `torch.hpu`."""

BACKEND = "hccl"
"""The name of the backend in `torch.distributed`. Source: distributed/hccl/__init__.py."""

COMPILE_BACKEND = "hpu_backend"
"""The name of the compiler in `torch.compile`. Source: dynamo/compile_backend/backends.py."""

PROFILER_ACTIVITY = "HPU"
"""The device's name in `torch.profiler.ProfilerActivity`. Source: Profiling with PyTorch."""
