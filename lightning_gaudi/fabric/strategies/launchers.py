"""Fabric's launchers, whose ranks end together."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch.multiprocessing
from lightning.fabric.strategies.launchers.multiprocessing import (
    _check_missing_main_guard,
    _GlobalStateSnapshot,
    _MultiProcessingLauncher,
)
from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from typing_extensions import override

from lightning_gaudi._core import processes

from ...distributed.launchers import ScriptMixin, SpawnMixin, check_spawn, launch_script


class HPUScriptLauncher(ScriptMixin, _SubprocessScriptLauncher):
    """Runs the script again for each further rank, unless a scheduler has started them."""

    @override
    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Starts the other ranks if they are not running, and calls the function in this one."""
        return launch_script(self, functools.partial(function, *args, **kwargs))


class HPUSpawnLauncher(SpawnMixin, _MultiProcessingLauncher):
    """Runs a function in new processes, one for each rank, and waits for them."""

    @override
    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function on all ranks, and returns the result of rank 0."""
        # A copy of Lightning's method, which keeps the processes to itself while it waits for them
        # (2.6, `_MultiProcessingLauncher.launch`); here `joined` needs them.
        strategy: Any = self._strategy
        check_spawn(strategy)
        _check_missing_main_guard()
        os.environ["MASTER_PORT"] = str(strategy.cluster_environment.main_port)
        results = torch.multiprocessing.get_context(self._start_method).SimpleQueue()
        context = torch.multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
            self._wrapping_function,
            args=(function, args, kwargs, results, _GlobalStateSnapshot.capture()),
            nprocs=strategy.num_processes,
            join=False,
            start_method=self._start_method,
        )
        with processes.joined(lambda: context.processes):
            while not context.join():
                pass
        return results.get()
