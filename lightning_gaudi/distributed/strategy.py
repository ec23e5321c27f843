"""What the strategies of the Trainer and of Fabric do alike, on one card and on several."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core import collectives, progress, vendor
from lightning_gaudi._core.rank_monitor import say
from lightning_gaudi.compilation import model as compiled_model, settings
from lightning_gaudi.compilation.foreach import stepping_at_once
from lightning_gaudi.compilation.launches import LaunchAdvice
from lightning_gaudi.compilation.regions import declared_regions, has_compiled_parts
from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.reliability import settings as reliability_settings
from lightning_gaudi.reliability.finite import (
    NUM_LEFT_OUT,
    BadLoss,
    FiniteLosses,
    left_out,
    not_finite,
)
from lightning_gaudi.reliability.settings import ReliabilitySettings
from lightning_gaudi.reliability.trust import as_told

from . import watching
from .devices import DEVICE, select_card
from .launchers import check_start_method
from .loaders import start_workers_safely
from .process_group import BACKEND, checked_backend, init_process_group

_Value = TypeVar("_Value")

_STEPS_PER_LOOK = 50
"""After how many steps losses are looked at where nobody says; in the Trainer it is when it logs,
by default as often."""

# Beside each of these mixins stands a strategy of Lightning's, the Trainer's or Fabric's, and an
# instance of that may become one of ours: Python allows it if both extend ABC, and not if a mixin
# extends `object`. For the type checker it is anything, since it has what either has.
_Base: Any = ABC


class HPUMixin(_Base):  # type: ignore[misc]
    """What a strategy of ours is.

    In the vendor's lazy mode a training step is two graphs, cut after backward and after the
    optimizer's step. In eager mode nothing is cut.
    """

    strategy_name: str
    """The name for `strategy`."""

    old_names: tuple[str, ...] = ()
    """Names of older projects for this class; a class derived from it does not inherit them."""

    takes_declared_regions = True
    """Whether a model's `compile_regions` holds. Not where its parts are sharded or gathered
    one by one: what does that must stay outside graphs."""

    compile_callback: Compilation | None = None
    """What a callback of the Trainer asks for; the argument `compile` comes first."""

    reliability_callback: ReliabilitySettings | None = None
    """The same for the argument `reliability`."""

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _compile_argument: Compilation | None = None
    _reliability_argument: ReliabilitySettings | None = None
    _compiled: tuple[Any, ...] = ()
    _steps_at_once: bool | None = None
    _advice: LaunchAdvice | None = None
    _losses: FiniteLosses | None = None
    _watches_losses = False
    _has_said_left_out = False
    _num_steps = 0
    _is_trial = False
    _first_step = 0

    def __init__(
        self, *args: Any, compile: Any = None, reliability: Any = None, **kwargs: Any
    ) -> None:
        """Makes one; see Lightning's strategy for the other arguments.

        Args:
            args: Lightning's.
            compile: What is compiled in eager mode: "none", "model", "regions", a `Compilation`, or
                a mapping of its fields.
            reliability: What keeps the run when something fails: "on", "off", "name=off" with
                commas, `ReliabilitySettings`, or a mapping of its fields.
            kwargs: Lightning's.

        Raises:
            ValueError: `compile` or `reliability` is none of these.
        """
        name = type(self).__name__
        self._compile_argument = settings.parse(compile, f"{name}(compile=...)")
        self._reliability_argument = reliability_settings.parse(
            reliability, f"{name}(reliability=...)"
        )
        super().__init__(*args, **kwargs)

    @classmethod
    def check_installed(cls) -> None:
        """Raises if a library is absent or too old; called before one is made for a name."""

    def validate_for_hpu(self, typed: str) -> None:
        """Checks the arguments of what Lightning or the user has made, before it is used on an HPU.

        Args:
            typed: The strategy as the user typed it.

        Raises:
            MisconfigurationException: An HPU cannot honour one.
            ValueError: The environment says nothing that we know of what to compile or to keep.
        """
        _ = self.reliability
        choice = self._choice()
        if choice.compilation.options:
            compiled_model.check_options(choice.compilation.options)

    @override
    def optimizer_step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Steps the optimizer, then cuts the graph."""
        with self._stepping(optimizer):
            result = super().optimizer_step(optimizer, *args, **kwargs)
        self._end_of_graph()
        self._note_step()
        return result

    @override
    @as_told
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Loads a checkpoint, of which nothing runs unless this strategy trusts it."""
        return super().load_checkpoint(*args, **kwargs)

    @override
    def process_dataloader(self, dataloader: Any) -> Any:
        """Makes its workers, if any, start without a fork of this process, which holds a card."""
        start_workers_safely(dataloader)
        return super().process_dataloader(dataloader)

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Makes the names known to a registry; Lightning's own have them, and keep them."""
        for name in (cls.strategy_name, *vars(cls).get("old_names", ())):
            if name not in strategy_registry or strategy_registry[name]["strategy"] is not cls:
                strategy_registry.register(name, cls, description=cls.__name__)

    @property
    def reliability(self) -> ReliabilitySettings:
        """What keeps the run when something fails.

        Raises:
            ValueError: The environment says nothing that we know.
        """
        return reliability_settings.choose(self._reliability_argument, self.reliability_callback)

    def _choice(self) -> settings.Choice:
        """Returns what is to be compiled, and who says so."""
        return settings.choose(self._compile_argument, self.compile_callback)

    def _compile(self, module: Module, *, with_root: bool) -> None:
        """Compiles what the user, or nobody, has asked to be compiled of a module.

        Args:
            module: The model, before or after it has been wrapped.
            with_root: Whether its user calls it, and not other methods.
        """
        choice, self._steps_at_once = self._choice(), None
        try:
            self._compile_as_chosen(choice, module, with_root=with_root)
        except Exception as error:
            # By default it is a convenience, which must not end a fit; a user's own error, in what
            # the module names or somebody has asked for, does.
            if choice.origin is not None or isinstance(error, ValueError):
                raise
            rank_zero_warn(
                f"Nothing of {type(module).__name__} is compiled, since looking into it raises "
                f"{type(error).__name__}: {error}. Each operator is a launch of its own. Name the "
                "classes of its blocks, as compile={'regions': ['Block']} in the strategy, or pass "
                "compile='none' to leave it so."
            )

    def _compile_as_chosen(
        self, choice: settings.Choice, module: Module, *, with_root: bool
    ) -> None:
        if not compiled_model.is_wanted(choice, module):
            self._advise(module, choice)
        elif choice.compilation.mode == "model":
            self._compiled += (self._compile_whole(module, choice.compilation),)
        else:
            compilation = choice.compilation
            if compilation.regions is None and self.takes_declared_regions:
                names = declared_regions(module)
                compilation = replace(compilation, regions=names or None)
            regions = compiled_model.CompiledRegions(module, compilation, with_root=with_root)
            self._compiled += (regions,)
            if not regions.modules:
                self._advice = LaunchAdvice(rank_zero_warn)

    def _compile_whole(self, module: Module, compilation: Compilation) -> Any:
        """Compiles all of a module; the result has a `remove`."""
        return compiled_model.CompiledWhole(module, compilation)

    def _uncompile(self) -> None:
        """Leaves the models as they were."""
        compiled, self._compiled = self._compiled, ()
        for each in compiled:
            each.remove()

    def _advise(self, module: Module, choice: settings.Choice) -> None:
        # Who has asked for it knows; a line is enough.
        is_compiled = vendor.is_lazy() or has_compiled_parts(module)
        if choice.compilation.mode == "none" and not is_compiled:
            self._advice = LaunchAdvice(rank_zero_info)

    def _note_place(self, place: str, step: int | None = None, *, new_batch: bool = False) -> None:
        """Notes for the watchdog where this rank is; its first step may compile for long."""
        is_training = self._num_steps > self._first_step
        progress.enter(place, step, is_training=is_training, new_batch=new_batch)

    def _note_step(self) -> None:
        self._num_steps += 1
        self._note_place("between two steps", self._num_steps)
        if self._advice is not None:
            self._advice.note_step()
        if self._losses is not None and self._reads_losses():
            self._check_losses(ends_interval=True)

    def _note_loss(self, loss: Tensor) -> None:
        """Remembers a loss, before backward, to be looked at later."""
        if self._losses is None:
            self._losses = FiniteLosses(NUM_LEFT_OUT if self._leaves_steps_out() else 0)
            self._watches_losses = self.reliability.stop_on_nan
        if self._watches_losses and not self._is_trial:
            self._losses.note(loss, self._num_steps + 1)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Lets no loss end the run in this block: its steps are tried and taken back."""
        self._is_trial = True
        try:
            yield
        finally:
            self._is_trial = False

    def _leaves_steps_out(self) -> bool:
        """Whether a step whose gradients are not finite is left out, as where losses are scaled."""
        plugin = getattr(self, "precision_plugin", None) or self.precision
        scaler = getattr(plugin, "scaler", None)
        return scaler is not None and scaler.is_enabled()

    def _reads_losses(self) -> bool:
        """Returns whether the step that ends is one after which losses are looked at."""
        return self._num_steps % _STEPS_PER_LOOK == 0

    def _check_losses(self, *, ends_interval: bool = False) -> None:
        """Raises on all ranks if a loss of any was not finite; waits for the device.

        Args:
            ends_interval: Whether this is where they are always looked at.

        Raises:
            LossNotFiniteError: One was not.
        """
        if self._is_trial or not self.reliability.stop_on_nan:
            return
        losses = self._losses or FiniteLosses()
        bad = losses.first_bad(ends_interval=ends_interval, is_lazy=vendor.is_lazy())
        found = self._of_all(bad)
        if any(found):
            raise not_finite(found, self._num_steps)
        if losses.left_out is not None and not self._has_said_left_out:
            self._has_said_left_out = True
            say(f"[rank: {getattr(self, 'global_rank', 0)}] {left_out(losses.left_out)}")

    def _of_all(self, bad: BadLoss | None) -> list[BadLoss | None]:
        """Returns what each rank has found."""
        return [bad]

    def _stepping(self, optimizer: Any) -> AbstractContextManager[None]:
        if self._steps_at_once is None:  # asked once a setup, not in each step
            compilation = self._choice().compilation
            self._steps_at_once = (
                compilation.mode != "none" and compilation.foreach and not vendor.is_lazy()
            )
        return stepping_at_once(optimizer) if self._steps_at_once else nullcontext()

    def _end_of_graph(self) -> None:
        if vendor.is_lazy():
            vendor.mark_step()


class SingleMixin(HPUMixin):
    """One process with one card."""

    strategy_name = "hpu_single"

    card = DEVICE
    """Which of the machine's cards this process drives; it sees it as `hpu:0`."""

    # Lightning sets it where it finds it.
    cluster_environment: Any = None

    def validate_for_hpu(self, typed: str) -> None:
        """Puts it on the HPU: Lightning's may be on the CPU by default."""
        super().validate_for_hpu(typed)
        self._root_device = DEVICE

    def choose_card(self, card: torch.device) -> None:
        """Says which of the machine's cards this process is to drive."""
        self.card = card


class RankedMixin(HPUMixin):
    """One of several processes, each with its card: HCCL between the cards, gloo between hosts.

    It comes before the strategy of Lightning's that it is combined with: what it overrides holds
    for all of them. In a training step it synchronizes nothing with the host: reductions go without
    a barrier.
    """

    script_launcher: type[Any]
    """What starts the other ranks by running the script again."""
    spawn_launcher: type[Any]
    """What starts them by running a function."""

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _start_method: Any = "popen"
    _process_group_backend: Any = None

    @property
    @override
    def process_group_backend(self) -> str:
        """HCCL for tensors on an HPU, and what the user has for others."""
        return self._process_group_backend or BACKEND

    def validate_for_hpu(self, typed: str) -> None:
        """Checks what the user passed: the backend, and how processes are started."""
        super().validate_for_hpu(typed)
        self._process_group_backend = checked_backend(self._process_group_backend)
        check_start_method(self._start_method, typed)

    @property
    @override
    def root_device(self) -> torch.device:
        """This process's card, which it sees as `hpu:0`; `parallel_devices` tells which it is."""
        return DEVICE

    @override
    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if self._start_method == "popen":
            self._launcher = self.script_launcher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )
        else:
            self._launcher = self.spawn_launcher(self, start_method=self._start_method)

    @override
    def setup_environment(self) -> None:
        """Chooses this rank's card, prepares it, then connects all ranks."""
        self._select_card()
        super().setup_environment()

    def _select_card(self) -> None:
        assert self.parallel_devices is not None
        select_card(self.parallel_devices, self.local_rank)

    def _connect(self) -> None:
        """Connects all ranks over HCCL, now that they are numbered."""
        assert self.cluster_environment is not None
        # As a user may have made it, and used it without the Trainer's checks.
        self._process_group_backend = checked_backend(self._process_group_backend)
        init_process_group(self.cluster_environment, self._process_group_backend, self._timeout)
        watching.watch_ranks(self.reliability, self._timeout)

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits until all ranks are here; the devices work on."""
        collectives.barrier()

    @override
    def broadcast(self, obj: _Value, src: int = 0) -> _Value:
        """Returns what rank `src` has; the devices work on."""
        value: _Value = collectives.broadcast_object(obj, src)
        return value

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns what all ranks (or any of them) decided; the devices work on."""
        return collectives.decide(decision, all_ranks=all)

    @override
    def _of_all(self, bad: BadLoss | None) -> list[BadLoss | None]:
        if collectives.decide(bad is not None, all_ranks=False):
            return collectives.gather_objects(bad)
        return [None]

    @staticmethod
    def _reduce(tensor: Any, group: Any, reduce_op: dist.ReduceOp | str | None) -> Any:
        """Reduces a tensor over the ranks; see `collectives.reduce`. Anything else stays."""
        if not isinstance(tensor, Tensor):
            return tensor
        return collectives.reduce(tensor, group, reduce_op)
