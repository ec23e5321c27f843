"""The Trainer's launchers, whose ranks end together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers import (
    _MultiProcessingLauncher,
    _SubprocessScriptLauncher,
)
from lightning.pytorch.trainer.call import _interrupt
from typing_extensions import override

from lightning_gaudi._core import processes

from ..distributed.launchers import ScriptMixin, SpawnMixin, check_spawn, launch_script


class HPUScriptLauncher(ScriptMixin, _SubprocessScriptLauncher):
    """Runs the script again for each further rank, unless a scheduler has started them."""

    @override
    def launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        trainer: pl.Trainer | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts the other ranks if they are not running, and calls the function in this one."""
        return launch_script(self, functools.partial(function, *args, **kwargs))


class HPUSpawnLauncher(SpawnMixin, _MultiProcessingLauncher):
    """Runs a function in new processes, one for each rank, and waits for them."""

    @override
    def launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        trainer: pl.Trainer | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the function on all ranks, and returns the result of rank 0."""
        check_spawn(self._strategy)
        with processes.joined(lambda: self.procs):
            return super().launch(function, *args, trainer=trainer, **kwargs)

    @override
    def _wrapping_function(
        self,
        process_idx: int,
        trainer: pl.Trainer | None,
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # Lightning calls `on_exception` in the process that waits for the ranks, which has no model
        # to save.
        if trainer is not None:
            function = functools.partial(_telling_of_exceptions, trainer, function)
        super()._wrapping_function(process_idx, trainer, function, *args, **kwargs)


def _telling_of_exceptions(
    trainer: pl.Trainer, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    try:
        return function(*args, **kwargs)
    except BaseException as exception:
        _interrupt(trainer, exception)
        raise
