"""Rehearses a user's loop without Lightning, written with torch, accelerate or transformers.

The program is forked right before it first uses its card. Its modules are those that have weights
on the card, and its steps are those of torch's optimizers. If it runs Lightning after all, the fork
goes on as a rehearsal of that.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_gaudi._core import hooks
from lightning_gaudi.tools.plan import dry_run, model_changes
from lightning_gaudi.tools.plan.forks import Fork, GoOn, Teller
from lightning_gaudi.tools.plan.loop import LoopRun
from lightning_gaudi.tools.plan.measurement import Watch
from lightning_gaudi.tools.plan.request import Request
from lightning_gaudi.tools.plan.run import Run

_MOST_STEPS_ON_THE_HOST = 100
"""The steps after which a program that trains without a card is ended; it may train for hours."""

_run: _PlainRun | None = None
"""The run that this process rehearses, if it is a fork."""
_num_steps_on_the_host = 0


def this_run() -> _PlainRun | None:
    """Returns the run of this process, if it is a fork that rehearses such a loop."""
    return _run


def rehearse() -> None:
    """Measures what this program takes from here on, and ends it; the forks that measure return.

    The simulator calls it right before the program takes its card.
    """
    if dry_run.is_playing():
        return
    request = dry_run.read_request()
    if not _is_first(request):  # another rank of the program, which a rehearsal does without
        _leave(0)

    def start(make_watch: Callable[[Run], Watch], batch_size: int | None) -> Fork:
        def go_on(teller: Teller) -> NoReturn:
            global _run
            dry_run.begin_fork()
            _run = _PlainRun(request, dry_run.Played(teller, make_watch, batch_size))
            raise GoOn

        return Fork(go_on)

    try:
        dry_run.measure(request, start, None)
    except GoOn:
        return
    except SystemExit as end:
        _leave(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        _leave(1)


def _is_first(request: Request) -> bool:
    """Returns whether no other process of the program has used a card before this one."""
    try:
        Path(f"{request.result}.claimed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _leave(status: int) -> NoReturn:
    # Not by an exception, which the caller may catch to go on without a card.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def note_step_on_the_host(optimizer: Optimizer) -> None:
    """Ends a program that trains without a card, since its plan would wait for hours.

    Raises:
        SystemExit: The program has done so for long enough.
    """
    global _num_steps_on_the_host
    _num_steps_on_the_host += not dry_run.is_playing()
    if _num_steps_on_the_host == _MOST_STEPS_ON_THE_HOST:
        dry_run.refuse(
            f"The program trains on the CPU: its {type(optimizer).__name__} has taken "
            f'{_MOST_STEPS_ON_THE_HOST} steps, and no card was used. Move the model to "hpu", or '
            "give the program the option that does."
        )


class _PlainRun(LoopRun):
    """Follows what the program does from here on, as torch reports it.

    Args:
        request: What is asked for.
        played: What this process has to find out.
    """

    has_strategy = False

    def __init__(self, request: Request, played: dry_run.Played) -> None:
        super().__init__(request, played)
        self._modules: list[Any] = []
        self._optimizers: list[Any] = []
        self._num_backwards = 0
        self._calls = register_module_forward_pre_hook(self._note_call)
        register_optimizer_step_pre_hook(self._begin_step)
        register_optimizer_step_post_hook(lambda optimizer, *_: self.note_step(optimizer))
        dry_run.offer(played._replace(make_watch=self._follow), self._give_up)

    def _follow(self, run: Run) -> Watch:
        self._watch.follow(run)
        return self._watch

    def _give_up(self) -> None:
        """Leaves the program to a rehearsal of Lightning."""
        global _run
        _run = None
        self._calls.remove()
        self.forget_exit()

    def note_moved(self, module: Any) -> None:
        """Notes that a module is about to be moved to the card."""
        self._change(module)
        self._watch.note_made(module)

    def _change(self, module: Any) -> None:
        if self._request.checkpointing is not None:
            model_changes.set_checkpointing(module, is_on=self._request.checkpointing)

    def note_backward_call(self) -> None:
        """Notes that `Tensor.backward` is called."""
        self._num_backwards += not self._num_steps

    @override
    def batches(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        self._look()
        is_training = torch.is_grad_enabled() and any(each.training for each in self._modules)
        if is_training and not self.is_trained:  # the program only looks at its data
            return iterate(loader)
        if is_training:
            self._check_request()
        return super().batches(iterate, loader)

    def _check_request(self) -> None:
        asked = {"--strategy": self._request.strategy, "--precision": self._request.precision}
        if name := next((name for name, value in asked.items() if value is not None), None):
            raise ValueError(
                f"{name} sets what Lightning's Trainer and Fabric have, and this program has "
                "neither. Leave it out, and give the program its own option."
            )
        num_cards, asked_cards = self.num_cards, self._request.devices
        if asked_cards is not None and num_cards != asked_cards:
            raise ValueError(
                f"--devices {asked_cards} asks for {asked_cards} ranks, and the program's process "
                f"group has {num_cards}. Have it begin one as WORLD_SIZE says (torch.distributed."
                "init_process_group), or leave --devices out and plan its launcher's command "
                "(torchrun, accelerate launch)."
            )

    def _look(self) -> None:
        """Finds the modules and optimizers that have weights on the card now."""
        gc.unfreeze()  # otherwise objects from before the fork are not listed
        objects = gc.get_objects()
        gc.freeze()
        modules = [each for each in objects if issubclass(type(each), nn.Module)]
        parts = {id(part) for each in modules for part in vars(each).get("_modules", {}).values()}
        self._modules = [each for each in modules if id(each) not in parts and _is_on_card(each)]
        for each in self._modules:
            self._change(each)
            self._watch.note_made(each)
        self._optimizers = [
            each
            for each in objects
            if issubclass(type(each), Optimizer)
            and _any_on_card(
                p for group in vars(each).get("param_groups", ()) for p in group["params"]
            )
        ]
        # DeepSpeed's optimizers are no optimizers of torch.
        engines = [vars(each).get("optimizer") for each in self._modules]
        self._optimizers += [each for each in engines if hasattr(each, "zero_grad")]

    def _note_call(self, module: Any, args: Any) -> None:
        """Notes the first batch of a program that takes its batches from no loader."""
        if self._num_batches or not (torch.is_grad_enabled() and module.training):
            return
        if not any(p.requires_grad for p in module.parameters()) or not _is_on_card(module):
            return
        self._look()
        if self.is_trained and any(each is module for each in self._modules):
            # Removed before torch compiles the module, which would see the hook.
            self._calls.remove()
            self._check_request()
            if self.batch_size is not None:
                raise ValueError(
                    "The program takes its batches from no torch DataLoader, so that other sizes "
                    "cannot be tried. Give it a DataLoader, or plan it with its own option for "
                    "the size of a batch."
                )
            model_changes.fill_weights()
            self.has_loader = False
            self._num_batches = 1
            self._watch.note_batch(0, args)

    def _begin_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if _run is not self:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.note_backward()
            return None

        def closed() -> Any:
            found = closure()
            self.note_backward()
            return found

        if len(args) > 1:
            return (args[0], closed, *args[2:]), kwargs
        return args, {**kwargs, "closure": closed}

    @override
    def note_step(self, optimizer: Any) -> None:
        if _run is not self:
            return
        super().note_step(optimizer)
        if self._num_steps == 1:  # backwards are counted, since a loader may be some batches ahead
            self._num_micro_batches = max(1, self._num_backwards)
        if not self.has_loader:
            self._watch.note_batch(self._num_steps, None)

    @property
    @override
    def modules(self) -> Sequence[Any]:
        return self._modules

    @property
    @override
    def optimizers(self) -> list[Any]:
        return self._optimizers

    @property
    @override
    def num_replicas(self) -> int:
        return self.num_cards

    @property
    @override
    def saves_shards(self) -> bool:
        return True

    @override
    def save(self, path: Path, *, weights_only: bool) -> None:
        states = [each.state_dict() for each in self._modules]
        if not weights_only:
            states += [each.state_dict() for each in self._optimizers]
        leaves = [each for each in tree_leaves(states) if isinstance(each, torch.Tensor)]
        storages = {each._cdata: each for each in map(torch.Tensor.untyped_storage, leaves)}
        num_bytes = sum(each.nbytes() for each in storages.values())
        hooks.before_write(lambda: (num_bytes, num_bytes))


def _is_on_card(module: Any) -> bool:
    return _any_on_card(module.parameters())


def _any_on_card(tensors: Any) -> bool:
    return any(each.device.type == "hpu" for each in tensors if isinstance(each, torch.Tensor))
