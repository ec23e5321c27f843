"""Starts the ranks of a node: what the launchers of the Trainer and of Fabric do alike.

Lightning starts them itself (`"ddp"` runs the script again, `"ddp_spawn"` a function), unless a
launcher such as torchrun, SLURM or Open MPI has. Ours raise early if the ranks could not meet, and
let all ranks end together.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_gaudi._core import launched, processes, vendor
from lightning_gaudi._core.processes.rank_monitor import INTERRUPTED

from .cluster import check_port, check_world_size

# The mixins stand beside a launcher of the Trainer's or of Fabric's, which have what they call.
_Base: Any = object


def launch_script(launcher: Any, function: Callable[[], Any]) -> Any:
    """Starts the other ranks by running the script again unless they run, and calls the function.

    Args:
        launcher: A `_SubprocessScriptLauncher` of Lightning's.
        function: What this rank does.

    Raises:
        MisconfigurationException: The ranks could not meet, or would share a card.
    """
    environment = launcher.cluster_environment
    check_world_size(environment, launcher.num_processes, launcher.num_nodes)
    # SLURM's check compares the tasks of a node with `num_devices`, which is 1 if each rank sees
    # only its own card.
    if not launched.is_pinned():
        environment.validate_settings(
            num_devices=launcher.num_processes, num_nodes=launcher.num_nodes
        )
    if not environment.creates_processes_externally:
        _start_ranks(launcher)
    _set_num_threads_if_needed(num_processes=launcher.num_processes)
    with processes.rank(environment.global_rank()):
        return function()


def _start_ranks(launcher: Any) -> None:
    environment = launcher.cluster_environment
    _check_start(environment, launcher.num_processes)
    # Lightning does not tell its children how many of them a node has; torchrun does, by this
    # variable.
    os.environ["LOCAL_WORLD_SIZE"] = str(launcher.num_processes)
    try:
        with processes.as_parent():
            launcher._call_children_scripts()
    finally:
        processes.start(launcher.procs)


class ScriptMixin(_Base):  # type: ignore[misc]
    """A launcher that has run the script again for the other ranks."""

    @override
    def kill(self, signum: Any) -> None:
        """Sends a signal to the other ranks; after Ctrl-C, for which Lightning uses SIGKILL, exits.

        Raises:
            SystemExit: For SIGKILL, with the exit status of a program that Ctrl-C has ended, where
                Lightning would exit with 1.
        """
        if signum != signal.SIGKILL:
            super().kill(signum)
            return
        processes.interrupt_started()
        sys.exit(INTERRUPTED)


class SpawnMixin(_Base):  # type: ignore[misc]
    """A launcher that runs a function in new processes, which end when this one does."""

    @override
    def _wrapping_function(self, process_idx: int, *args: Any, **kwargs: Any) -> None:
        processes.watch_parent(os.getppid())
        try:
            with processes.rank(process_idx):
                super()._wrapping_function(process_idx, *args, **kwargs)
        # `torch.multiprocessing` swallows KeyboardInterrupt and ends the process with status 0.
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def check_spawn(strategy: Any) -> None:
    """Refuses to start processes if they have been started.

    Args:
        strategy: One of ours for several cards, which is about to start them.

    Raises:
        MisconfigurationException: It has been, or the ranks could not meet, or would share a card.
    """
    environment = strategy.cluster_environment
    if environment.creates_processes_externally:
        raise MisconfigurationException(
            "strategy='ddp_spawn' starts processes, but this process is one of several that have "
            f"been started already, as {type(environment).__name__} finds. Pass strategy='ddp'."
        )
    check_world_size(environment, strategy.num_processes, strategy.num_nodes)
    _check_start(environment, strategy.num_processes)
    if vendor.is_initialized():
        raise MisconfigurationException(
            f"strategy='ddp_spawn' starts a process for each of {strategy.num_processes} cards, "
            "but this one has used its HPU and holds it. Use no hpu tensor before Trainer.fit or "
            "Fabric.launch, or pass strategy='ddp', where this process is one of the ranks."
        )


def check_start_method(start_method: str, typed: str) -> None:
    """Refuses start methods that fork, which a card does not survive.

    Args:
        start_method: `"popen"`, `"spawn"`, `"fork"` or `"forkserver"`.
        typed: The strategy as the user typed it.

    Raises:
        MisconfigurationException: It forks.
    """
    if start_method in ("fork", "forkserver"):
        raise MisconfigurationException(
            f"strategy={typed} starts its processes with {start_method!r}, which the driver of an "
            "HPU does not survive. In a script pass strategy='ddp' or 'ddp_spawn'; in a notebook "
            "train on one card (devices=1), or start a script from it."
        )


def _check_start(environment: ClusterEnvironment, num_processes: int) -> None:
    """Checks that this process may start others."""
    if dist.is_available() and dist.is_initialized():
        raise MisconfigurationException(
            f"torch.distributed is initialized with {dist.get_world_size()} processes, but this "
            "one is to start others. Start them with torchrun, or let the strategy initialize it."
        )
    module = vendor.selected_module()
    if num_processes > 1 and module is not None:
        raise MisconfigurationException(
            f"HLS_MODULE_ID={module} would have each of {num_processes} processes drive the module "
            f"{module}. Unset it: each process then takes a card of its own. If a Trainer of this "
            "program has set it, with devices=[...] for one card, use several in another program."
        )
    if environment.node_rank() == 0:
        check_port(environment)
