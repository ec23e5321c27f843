"""A typed facade over `habana_frameworks.torch`, and the only module that imports it.

Callers write `from lightning_gaudi import vendor` and `vendor.mark_step()`. The package, real or
simulated, is imported at the first call and never before.
Source: Intel Gaudi PyTorch bridge 1.19 to 1.24.1, `python_packages/habana_frameworks/torch`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from _lightning_gaudi_autoload import CLAIMED, claim_only_module
from lightning_gaudi.hardware import Gaudi, find_gaudi, refuses_number

from . import importing

if TYPE_CHECKING:
    import torch
    from torch.utils._config_module import ConfigModule

_NAME = "habana_frameworks.torch"
_VISIBLE_MODULES = "HABANA_VISIBLE_MODULES"
_NUM_MODULES = 8
"""The modules of a Gaudi server, 0 to 7."""
_package: Any = None
_import_error: Exception | None = None
_seed_is_due = False
_guessed_module: str | None = None
_bound_module: str | None = None

COMPILE_BACKEND = "hpu_backend"
"""The name under which the vendor registers its compiler with torch."""


def package() -> Any:
    """Returns the vendor's package, imported on the first call.

    Raises:
        ImportError: There is no such package, or it does not import here.
    """
    global _package, _seed_is_due, _guessed_module
    if _package is None:
        # The vendor wraps torch.manual_seed when it is imported: see `seed_if_due`.
        _seed_is_due = _NAME not in sys.modules
        given = importing.given_variables(is_new=_seed_is_due)
        # Before the import, during which the vendor's package may choose a card.
        claim_only_module()
        with importing.explained():
            import habana_frameworks.torch  # noqa: TID251
            import habana_frameworks.torch.hpu.metrics  # noqa: TID251
            import habana_frameworks.torch.utils.internal  # noqa: TID251

        # The import has set variables and a signal handler that this process does not want.
        visible = os.environ.get(_VISIBLE_MODULES)
        _guessed_module = importing.forget_defaults(given, visible.split(",") if visible else None)
        importing.restore_sigint()
        _package = habana_frameworks.torch
    return _package


def is_installed() -> bool:
    """Returns whether the vendor's package is installed, without importing it."""
    if "habana_frameworks" in sys.modules:
        return True
    return importlib.util.find_spec("habana_frameworks") is not None


def is_available() -> bool:
    """Returns whether this machine has a card; never raises, and acquires nothing."""
    return device_count() > 0


def device_count() -> int:
    """Returns the number of cards of this machine; 0 if the package is absent or broken."""
    global _import_error
    if not is_installed():
        return 0
    try:
        return int(package().hpu.device_count())
    # A broken installation may raise anything, and must read as no card; `unavailable_reason` tells
    # it.
    except Exception as error:
        _import_error = error
        return 0


def unavailable_reason() -> str:
    """Returns why `is_available` is false: what was looked for, and what was found instead."""
    if not is_installed():
        return f"the vendor's package {_NAME} is not installed"
    if _import_error is not None:
        reason = f"{type(_import_error).__name__}: {_import_error}"
        return f"the vendor's package {_NAME} does not work here ({reason})"
    return f"{_NAME} is installed, but its driver reports no card"


def num_visible_cards() -> int:
    """Returns the number of cards that this job may use, by HABANA_VISIBLE_MODULES if it is set.

    Raises:
        ValueError: That variable is no list of modules.
    """
    modules = _visible_modules()
    return device_count() if modules is None else min(len(modules), device_count())


def module_id(index: int) -> str:
    """Returns the module, a card's slot in the server, at a position among the visible ones."""
    modules = _visible_modules()
    return str(index) if modules is None else modules[index]


def _visible_modules() -> list[str] | None:
    """Returns what the variable names, None where it is not set."""
    value = os.environ.get(_VISIBLE_MODULES)
    return None if value is None else parse_modules(value)


def parse_modules(value: str) -> list[str]:
    """Returns the modules that a value of HABANA_VISIBLE_MODULES names.

    The vendor's package takes it apart into integers, and would hand anything else to the driver as
    a module's number (1.24.0, `hpu/_utils.py` and `distributed/hccl/__init__.py`).

    Raises:
        ValueError: It is no list of modules.
    """
    modules = [module.strip() for module in value.split(",")]
    wrong = [m for m in modules if not (m.isdecimal() and len(m) < 4 and int(m) < _NUM_MODULES)]
    if wrong or len(set(modules)) < len(modules):
        what = "names a module twice" if not wrong else f"has {wrong[0]!r}, which is no module"
        raise ValueError(
            f"{_VISIBLE_MODULES}={value!r} {what}. Write the numbers of the modules, each from 0 "
            f"to {_NUM_MODULES - 1} and once, with commas: 0,1,2,3. Unset it for all."
        )
    return modules


def selected_module() -> str | None:
    """Returns the module that this process was told to drive, or None if it was not told.

    A choice that a parent made for itself is ignored if this process was left other cards.
    """
    told, visible = os.environ.get("HLS_MODULE_ID") or None, _visible_modules()
    # CLAIMED is set along with HLS_MODULE_ID when a process of ours selects its card itself, so
    # that a child can tell an inherited choice from a launcher's.
    is_of_parent = told == os.environ.get(CLAIMED) and visible is not None and told not in visible
    return None if is_of_parent else told


def bound_module() -> str:
    """Returns the module that an HPU in use is bound to, even if HLS_MODULE_ID is gone.

    A program that restores the environment after a fit, as tests do, removes the variable.
    """
    return selected_module() or _bound_module or module_id(0)


def is_guess(module: str) -> bool:
    """Returns whether a module was selected by the vendor's package and not by anybody else.

    The package takes the module of the local rank, before it is known which cards the run is for.
    """
    return module == _guessed_module


def selected_position() -> int:
    """Returns the position of `selected_module` among the visible ones; 0 if none is selected."""
    module, modules = selected_module(), _visible_modules()
    if module is None or is_guess(module) or (modules is not None and module not in modules):
        return 0
    return int(module) if modules is None else modules.index(module)


def select_module(module: str) -> None:
    """Tells the driver which module to drive; it reads that once, when the device starts."""
    global _guessed_module, _bound_module
    # The driver reads the environment of the process, not an argument.
    os.environ["HLS_MODULE_ID"] = os.environ[CLAIMED] = _bound_module = module
    _guessed_module = None


def init() -> None:
    """Starts the device of this process.

    Operations do that, too, but without telling torch. Activation checkpointing would then not keep
    the device's random state, and recompute with other dropout (torch 2.13,
    `torch/utils/checkpoint.py`).
    """
    package().hpu.init()


def is_initialized() -> bool:
    """Returns whether this process has called `init`, or a function of the vendor's that does.

    A card may be in use without it, since an operation on a tensor acquires the card directly.
    """
    return bool(package().hpu.is_initialized())


def init_hccl(world_size: int, rank: int, local_rank: int) -> None:
    """Tells the vendor's communication library the ranks, and registers its backend with torch.

    It sets HLS_MODULE_ID where that is missing, so the card must be chosen by now.
    """
    from habana_frameworks.torch.distributed import hccl  # noqa: TID251

    hccl.initialize_distributed_hpu(world_size=world_size, rank=rank, local_rank=local_rank)


def is_lazy() -> bool:
    """Returns whether operators collect in a graph until `mark_step`, in lazy mode."""
    return bool(package().utils.internal.is_lazy())


def has_lazy_collectives() -> bool:
    """Returns whether collectives become part of lazy mode's graphs; by default each ends one.

    Source: Intel Gaudi documentation, "Run Inference Using HPU Graphs"; PyTorch bridge 1.24.0,
    distributed/hccl/process_group_lazy_hccl.cpp: waiting for one ends the graph so far.
    """
    value = os.environ.get("PT_HPU_ENABLE_LAZY_COLLECTIVES", "")
    return is_lazy() and value.lower() in ("1", "true")


def mark_step() -> None:
    """Compiles and launches the graph collected since the last call; does nothing in eager mode."""
    package().core.mark_step()


def end_graph() -> None:
    """Calls `mark_step` in lazy mode, and nothing in eager mode."""
    if is_lazy():
        mark_step()


def synchronize() -> None:
    """Waits until the device has done all the work it was given."""
    package().hpu.synchronize()


def record_event() -> Any:
    """Returns an event that is timed, put behind what the card was given so far; nobody waits."""
    event = package().hpu.Event(enable_timing=True)
    event.record()
    return event


def device_name() -> str:
    """Returns `"GAUDI"`, `"GAUDI2"` or `"GAUDI3"`; acquires the card."""
    return str(package().hpu.get_device_name())


def generation() -> Gaudi | None:
    """Returns the data of this card's generation, or None if it is unknown; acquires the card."""
    return find_gaudi(device_name())


def refuses_together(num_cards: int) -> bool:
    """Returns whether this kind of card cannot be used in such a number; acquires none."""
    from habana_frameworks.torch.utils.experimental import _get_device_type  # noqa: TID251

    # It returns a member of the vendor's `synDeviceType`.
    generation = 3 if "Gaudi3" in str(_get_device_type()) else 0
    return refuses_number(num_cards, generation, _release())


def _release() -> tuple[int, ...]:
    """Returns the first two numbers of the installed release."""
    version = str(vars(package()).get("__version__", "")).split(".")
    return tuple(int(part) for part in version[:2] if part.isdecimal())


def is_fp16_supported() -> bool:
    """Returns whether the card computes in float16, as all but the first Gaudi; acquires it."""
    from habana_frameworks.torch.utils.experimental import _is_fp16_supported  # noqa: TID251

    return bool(_is_fp16_supported())


def memory_stats() -> dict[str, int]:
    """Returns the allocator's figures under the vendor's names, in bytes where they are sizes.

    Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs, MaxAllocSize, TotalSystemAllocs,
    TotalSystemFrees, TotalActiveAllocs.
    """
    return dict(package().hpu.memory_stats())


def reset_peak_memory_stats() -> None:
    """Resets `MaxInUse` of `memory_stats` to what is in use."""
    package().hpu.reset_peak_memory_stats()


def manual_seed(seed: int) -> None:
    """Seeds the device's generator; the vendor's `torch.manual_seed` does so too."""
    package().hpu.random.manual_seed_all(seed)


def seed_if_due() -> None:
    """Gives the device the CPU's seed if that was set before the vendor's package was imported.

    `torch.manual_seed` reaches the device only once the vendor has wrapped it. A script that seeds
    first and lets Lightning find the card later would start with an unseeded device.
    """
    global _seed_is_due
    if not _seed_is_due:
        return
    import torch

    manual_seed(torch.initial_seed())
    _seed_is_due = False


def get_rng_state() -> torch.Tensor:
    """Returns the state of the device's generator, a CPU tensor of bytes."""
    state: torch.Tensor = package().hpu.random.get_rng_state()
    return state


def set_rng_state(state: torch.Tensor) -> None:
    """Sets the state of the device's generator to one that `get_rng_state` gave."""
    package().hpu.random.set_rng_state(state)


def metric(name: str) -> dict[str, Any] | None:
    """Returns a metric's figures since the start of the process; None if there is no such.

    Args:
        name: `graph_compilation`, `cpu_fallback`, `memory_defragmentation`, `recipe_cache`; or
            `host_sync`, `launch`, `recompilation`, `simulation`, which a simulated device alone
            has.
    """
    found = package().hpu.metrics.metric_global(name)
    return None if found is None else dict(found.stats())


def fused_adamw() -> type[torch.optim.Optimizer]:
    """Returns the vendor's AdamW, one kernel for all weights; empty parameter groups crash it."""
    from habana_frameworks.torch.hpex.optimizers import FusedAdamW  # noqa: TID251

    optimizer: type[torch.optim.Optimizer] = FusedAdamW
    return optimizer


def fused_lamb() -> type[torch.optim.Optimizer]:
    """Returns the vendor's LAMB, which clips by the global norm; empty groups crash it."""
    from habana_frameworks.torch.hpex.optimizers import FusedLamb  # noqa: TID251

    optimizer: type[torch.optim.Optimizer] = FusedLamb
    return optimizer


def transformer_engine() -> Any:
    """Returns the vendor's Transformer Engine, whose layers compute in fp8.

    Raises:
        ImportError: This release has none.
    """
    from habana_frameworks.torch.hpex.experimental import transformer_engine  # noqa: TID251

    return transformer_engine


def cast_to_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiplies by a scale and rounds to e4m3; what is too large becomes its largest number.

    Args:
        x: fp32 or bf16, on the card.
        scale: fp32 of shape ().
    """
    import torch

    package()
    rounded: torch.Tensor = torch.ops.hpu.cast_to_fp8_v2(
        x, scale, False, False, torch.float8_e4m3fn
    )[0]
    return rounded


def fp8_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    units: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns `x @ weight.T + bias` of fp8 matrices, (B, O).

    Args:
        x: (B, I), fp8.
        weight: (O, I), fp8.
        units: What one unit of either means, fp32 of shape ().
        bias: (O,), bf16.
        dtype: Of the result: fp32 or bf16.

    Source: Gaudi PyTorch bridge 1.19, hpu_ops/backend/fp8_ops.cpp; Neural Compressor 3.10 calls it.
    """
    import torch

    product: torch.Tensor = torch.ops.hpu.fp8_gemm_v2(
        x, False, weight, True, None, dtype, *units, bias, False
    )
    return product


def fused_sdpa() -> Any:
    """Returns the vendor's attention, an autograd function of one kernel."""
    from habana_frameworks.torch.hpex.kernels import FusedSDPA  # noqa: TID251

    return FusedSDPA


def fused_clip_norm(gradients: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scales gradients down in place to a 2-norm of at most `max_norm`; for eager mode only.

    It launches the kernel of the vendor's `FusedClipNorm`, which would also copy two numbers from
    the host to the card in each step.

    Args:
        gradients: At least one; whole, on the card, of one dtype.
        max_norm: In units of the gradients.

    Returns:
        The norm before, of shape (), in the dtype of the gradients; nobody waits for it.
    """
    import torch

    package()
    # The kernel writes the norm into the last tensor of the list, and returns it.
    held = [*gradients, gradients[0].new_empty(1)]
    with torch.no_grad():
        norm: torch.Tensor = torch.ops.hpu.fused_clip_norm(
            held, _limit(gradients[0], max_norm), 2.0
        )
    return norm.reshape(())


_limits: dict[tuple[torch.device, torch.dtype, float], torch.Tensor] = {}
"""Tensors of shape (1,) that the kernel reads: to fill one in each step would be a launch."""


def _limit(gradient: torch.Tensor, max_norm: float) -> torch.Tensor:
    key = (gradient.device, gradient.dtype, float(max_norm))
    if key not in _limits:
        _limits.clear()  # a limit that changes in each step must not fill the card
        _limits[key] = gradient.new_full((1,), max_norm)
    return _limits[key]


_SMALL = 2.0**-64
"""Below every norm whose square is a number in float32; a power of two, by which nothing rounds."""


def total_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the 2-norm of all elements of tensors together; for eager mode only.

    It launches the kernel by which the vendor's FusedLamb finds what to divide gradients by, the
    norm over a limit and at least 1, with a limit that every norm exceeds. So 2^-64, which is
    5e-20, stands for all norms below it.

    Args:
        tensors: At least one, none of them empty; on the card, in float32.

    Returns:
        The norm, of shape (); nobody waits for it.

    Source: Gaudi PyTorch bridge 1.19, `hpu_ops/backend/optimizer_lamb_gen.cpp`.
    """
    import torch

    package()
    norm: torch.Tensor = torch.ops.hpu.optimizer_lamb_fused_norm(tensors, _SMALL)
    return norm.reshape(()).mul_(_SMALL)


def has_adam_kernel() -> bool:
    """Returns whether a card steps lists of weights by torch's `_fused_adam_` and `_fused_adamw_`.

    Source: Gaudi PyTorch bridge, `scripts/hpu_op.yaml` of 1.24.0, which has both, and of 1.19.
    """
    return not is_lazy() and _release() >= (1, 24)


def hpu_graph() -> Any:
    """Returns a graph to `capture` into and to `replay()`; lazy mode alone."""
    return package().hpu.HPUGraph()


def capture(graph: Any) -> AbstractContextManager[None]:
    """Captures what runs in a block into a graph, and runs it; waits for the device first."""
    context: AbstractContextManager[None] = package().hpu.graph(graph)
    return context


def compiler_config() -> ConfigModule:
    """Returns the settings of the vendor's compiler, which are options of `torch.compile`."""
    from habana_frameworks.torch.dynamo.compile_backend import config  # noqa: TID251

    found: ConfigModule = config
    return found
