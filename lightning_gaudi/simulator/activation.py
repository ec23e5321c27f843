"""Gives this process a simulated HPU.

`activate` is called at the end of `import torch`, when the environment asks for the simulator, or
by `import lightning_gaudi`. It must come before anything asks torch which accelerator there is,
because torch then keeps the answer. The device is registered in lazy mode too, although the
vendor's package registers it there at its own first import only.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_gaudi.measured_card import VARIABLE, CardFileError
from lightning_gaudi.simulator import build, forks, measured
from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.rules.report import exempt, set_mode
from lightning_gaudi.simulator.settings import (
    SIMULATE,
    STAND_IN,
    Settings,
    SimulatorError,
    read_exempt,
    read_rule_mode,
    read_settings,
    read_workspace_bytes,
    server_name,
)

_VENDOR = "habana_frameworks"
_DISTRIBUTION = "habana-torch-plugin"
_ANNOUNCED = "_LIGHTNING_GAUDI_SIMULATOR_ANNOUNCED"
"""Set for the children of a process that has announced the simulator."""

_status = "off"


def is_active() -> bool:
    """Returns whether this process has a simulated HPU."""
    return _status == "on"


def activate() -> None:
    """Gives this process the simulated HPU that the environment describes, if it has none yet.

    Raises:
        SimulatorError: The simulator was not asked for, or cannot be had.
    """
    global _status
    settings = read_settings()
    importlib.import_module("torch")  # which may activate by its entry point
    if _status != "off":
        return
    # Starting imports modules that call `activate` again, as `lightning_gaudi` does: they return at
    # the check above.
    _status = "starting"
    try:
        refuse_vendor(f"{SIMULATE}={settings.num_cards}")
        _start(settings)
    except BaseException:
        _status = "off"
        raise
    _status = "on"
    _announce(settings)


def set_memory_limit(limit_bytes: int) -> None:
    """Changes the memory of the simulated card, to see what a model needs or how it fails.

    Args:
        limit_bytes: What may be in use at a time; at first the card's memory.

    Raises:
        ValueError: The limit is not positive.
        SimulatorError: The simulator is not active.
    """
    if limit_bytes <= 0:
        raise ValueError(f"A memory limit must be positive, got {limit_bytes} bytes.")
    if not is_active():
        raise SimulatorError(
            f"The simulated HPU is not active, so it has no memory limit. Set {SIMULATE} before "
            "torch is imported, or start the program with `lightning-gaudi simulate -- command`."
        )
    sys.modules[build.MODULE].set_memory_limit(limit_bytes)


def refuse_vendor(asking: str) -> None:
    """Checks that the vendor's own package is not installed beside the simulator.

    Args:
        asking: What asks for the simulator, as the user typed it.

    Raises:
        SimulatorError: The vendor's package is installed.
    """
    if (place := _find_vendor()) is not None:
        raise SimulatorError(
            f"{asking} asks for the simulated HPU, but the vendor's {_VENDOR} is installed in "
            f"{place}. Do not ask for it, to use the Gaudi cards, or use an environment without "
            f"{_VENDOR}."
        )


def _find_vendor() -> str | None:
    """Returns the folder of a `habana_frameworks` that is not ours."""
    spec = PathFinder.find_spec(_VENDOR, [entry for entry in sys.path if not _is_stand_in(entry)])
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or [str(spec.origin)]), _VENDOR)


def _is_stand_in(entry: str) -> bool:
    """Returns whether an entry of `sys.path` is the stand-in of any copy of the package.

    There are two where the package is installed and the program runs in a clone of it.
    """
    return Path(entry or ".").resolve().parts[-3:] == STAND_IN.parts[-3:]


def _start(settings: Settings) -> None:
    import torch

    set_mode(read_rule_mode())
    # The variables of the rules are checked before the build, so that a misspelt one is refused in
    # a moment and not after a minute of compiling.
    exempted = read_exempt()
    table.check_exempt(exempted)
    exempt(exempted)
    device = build.load()
    try:
        device.hide_accelerators()
        hooks = device.install_hooks()
        of_card = measured.load(settings.card.key, settings.release.software)
        # Operators look up the rules, which therefore are there before any operator is.
        table.install(device, settings, of_card)
        device.install()
        if settings.is_dry:
            _make_dry(device)
    except (RuntimeError, CardFileError) as error:
        raise SimulatorError(f"The simulated HPU cannot start: {error}") from error
    device.set_device_count(settings.num_cards)
    device.set_memory_limit(settings.card.memory_bytes)
    device.compose_attention(not settings.card.has_fused_attention)
    device.set_workspace_bytes(read_workspace_bytes())
    if of_card is not None:
        measured.set_memory(device, of_card)
        device.before_first_use(lambda: measured.end_as_measured(of_card))
    device.set_server(server_name())
    sys.meta_path.append(_Installed(settings.release.version))
    # torch has one accelerator a process. Where hiding the others was not enough, this says so now,
    # and not at the first tensor.
    accelerator: Any = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "hpu":
        raise SimulatorError(
            f"torch {torch.__version__} keeps {accelerator} as its accelerator, so the simulated "
            "HPU cannot be used. Install a CPU build of torch."
        )
    # Before the stand-in's own, so that it runs after them: it uses the device.
    atexit.register(_end_cleanly, device, os.getpid())
    _import_stand_in()
    forks.watch(device)
    _keep_backward_on_its_thread(has_queue=hooks != "installed-late" or _has_queue(device))


class _Installed(importlib.metadata.Distribution):
    """The vendor's package as `importlib.metadata` knows it: libraries ask for its version.

    bitsandbytes 0.50 does (backends/utils.py): until 1.22 the halves of a byte are the other way.
    """

    def __init__(self, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {version}\n"

    def find_spec(self, *args: object) -> None:
        """Finds no modules."""

    def find_distributions(self, context: Any) -> Iterator[importlib.metadata.Distribution]:
        """Yields it to those who ask for it by name; it is not in a list of what is installed."""
        if (context.name or "").replace("_", "-") == _DISTRIBUTION:
            yield self

    def read_text(self, filename: str) -> str | None:
        """Returns the metadata, and no other file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Returns where a file of it would be."""
        return Path(STAND_IN, path)


def _make_dry(device: ModuleType) -> None:
    """Stops the card from computing and shows its tensors without values, as torch does "meta"."""
    import torch._tensor_str as shown

    device.set_dry()
    # The memory of a dry card holds no values that could be printed.
    show_values: Any = shown._tensor_str

    def show(tensor: Any, indent: int) -> str:
        text: str = "..." if tensor.device.type == "hpu" else show_values(tensor, indent)
        return text

    shown._tensor_str = show


def _import_stand_in() -> ModuleType:
    """Imports `habana_frameworks.torch.core`, which registers `torch.hpu`."""
    # A parent process of another copy of the package may have put its stand-in into PYTHONPATH:
    # that one would be found first.
    sys.path[:] = [entry for entry in sys.path if not _is_stand_in(entry)] + [str(STAND_IN)]
    return importlib.import_module(f"{_VENDOR}.torch.core")


def _keep_backward_on_its_thread(*, has_queue: bool) -> None:
    """Lets this thread run its backwards itself, instead of waking autograd's thread for the card.

    torch gives every accelerator a thread, which waits for the card while the caller works on. Here
    there is nothing to wait for, and waking that thread costs a small model half of its step.
    Backwards that other threads start still go there.
    """
    import torch

    if not has_queue:
        warnings.warn(
            "The simulated HPU came after this process's first backward(), so backward() works in "
            f"the thread that started it alone. Set {SIMULATE} before torch is imported, or import "
            "lightning_gaudi first.",
            stacklevel=2,
        )
    torch.autograd.set_multithreading_enabled(False)


def _has_queue(device: ModuleType) -> bool:
    """Returns whether torch's engine, which counts accelerators at the first backward, has ours.

    A forked child tries it, because a process in which the engine has started its threads can fork
    no ranks any more.
    """
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside other threads; the child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            device.drain_autograd()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _end_cleanly(device: ModuleType, pid: int) -> None:
    """Keeps other threads from needing the interpreter when it has ended, which would abort."""
    import torch

    # A forked child has no such thread, and a process that has used no card must not take one now.
    if os.getpid() == pid and device.holds_card():
        # Autograd's thread lets go of the Python objects that it holds. A RuntimeError says that
        # torch has no queue for the card, so nothing waits in it.
        with torch.autograd.set_multithreading_enabled(True), contextlib.suppress(RuntimeError):
            device.drain_autograd()
        # torch reads the limit at exit: with 0 it does not wake the thread to end itself.
        os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "0"
        # gloo's threads may still end collectives that nobody waited for. Their tensors are never
        # freed, because freeing them needs the interpreter.
        device.keep_pending_collectives()


def _announce(settings: Settings) -> None:
    """Says that nothing here is a Gaudi, in the first process of a run and not in its children."""
    if os.environ.get(_ANNOUNCED):
        return
    os.environ[_ANNOUNCED] = "1"
    card = settings.card
    cards = "card" if settings.num_cards == 1 else "cards"
    source = os.environ.get(VARIABLE)
    as_measured = f" Rules and memory are as {source} says." if source else ""
    print(
        f"lightning-gaudi: HPU is simulated: {settings.num_cards} {card.title} {cards} of "
        f"{card.memory_gib} GiB on this CPU; results are real, speed is not a "
        f"Gaudi's.{as_measured}",
        file=sys.stderr,
        flush=True,
    )
