"""Mixins for all strategies of the Trainer and of Fabric, on one card and on several."""

from __future__ import annotations

import multiprocessing
from abc import ABC
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core import collectives, vendor
from lightning_gaudi.compilation.compiler import Compiler
from lightning_gaudi.compilation.model import CompiledWhole, check_options
from lightning_gaudi.compilation.settings import SETTING as COMPILATION, Choice, Compilation
from lightning_gaudi.reliability import watchdog
from lightning_gaudi.reliability.guard import RunGuard
from lightning_gaudi.reliability.settings import SETTING as RELIABILITY, ReliabilitySettings
from lightning_gaudi.strategy_table import names_of

from . import process_group
from .devices import DEVICE, select_card
from .launchers import check_start_method
from .process_group import BACKEND, checked_backend, init_process_group

_Value = TypeVar("_Value")

# Beside each of these mixins stands a strategy of Lightning's, the Trainer's or Fabric's, and an
# instance of that may become one of ours: Python allows it if both extend ABC, and not if a mixin
# extends `object`. For the type checker it is anything, since it has what either has.
_Base: Any = ABC


class HPUMixin(_Base):  # type: ignore[misc]
    """The base of all strategies of ours, each of which has a `guard` and a compiler.

    In the vendor's lazy mode a training step is two graphs, which end after backward and after the
    optimizer's step.
    """

    strategy_name: str
    """The name for `strategy`."""

    is_ranked = False
    """Whether this process is one of several that train together."""

    why_not_whole: str | None = None
    """Why no model can be compiled whole, and what to do instead; None where it can be."""

    has_whole_weights = True
    """Whether each rank holds all of a weight all the time."""

    mixes_weights = False
    """Whether an optimizer's group may have DTensors and plain weights, and be stepped at once."""

    compile_whole: Callable[[Module, Compilation], Any] = CompiledWhole
    """Compiles a whole model; the object that it returns has a `remove` to undo that."""

    steps_per_look = 50
    """After how many steps losses are checked; the Trainer's strategies do so when it logs."""

    compile_callback: Compilation | None = None
    """The setting of a callback of the Trainer; the argument `compile` has precedence."""

    reliability_callback: ReliabilitySettings | None = None
    """The same for the argument `reliability`."""

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _compile_argument: Compilation | None = None
    _reliability_argument: ReliabilitySettings | None = None

    def __init__(
        self, *args: Any, compile: Any = None, reliability: Any = None, **kwargs: Any
    ) -> None:
        """Creates the strategy; see Lightning's strategy for the other arguments.

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
        self._compile_argument = COMPILATION.parse(compile, f"{name}(compile=...)")
        self._reliability_argument = RELIABILITY.parse(reliability, f"{name}(reliability=...)")
        super().__init__(*args, **kwargs)

    @classmethod
    def check_installed(cls) -> None:
        """Raises if a library is absent or too old; called before a strategy is made by name."""

    def validate_for_hpu(self, typed: str) -> None:
        """Checks the arguments of the strategy before it is used on an HPU.

        Args:
            typed: The strategy as the user typed it.

        Raises:
            MisconfigurationException: An HPU cannot honour one.
            ValueError: The environment has a value for one of them that is not known.
        """
        _ = self.reliability
        check_options(self.compile_choice().compilation.options)

    @cached_property
    def guard(self) -> RunGuard:
        """The object that is told the events of the run.

        `_parts` returns what the Trainer and Fabric have beside the check of the losses.
        """
        return RunGuard(self, self._parts())

    @cached_property
    def compiler(self) -> Compiler:
        """The object that compiles the models and steps their optimizers."""
        return Compiler(self)

    @override
    def optimizer_step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Steps the optimizer, then cuts the graph."""
        with self.compiler.stepping(optimizer):
            result = super().optimizer_step(optimizer, *args, **kwargs)
        self._end_step()
        return result

    def _end_step(self) -> None:
        vendor.end_graph()
        self.compiler.note_step()
        self.guard.step()

    @override
    def process_dataloader(self, dataloader: Any) -> Any:
        """Sets the loader's workers to start without a fork of this process, which holds a card."""
        start_workers_safely(dataloader)
        loader = super().process_dataloader(dataloader)
        self.guard.loader(loader)
        return loader

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Registers the strategy's names; Lightning's own registrations stay."""
        for name in names_of(cls) or (cls.strategy_name,):
            if name not in strategy_registry or strategy_registry[name]["strategy"] is not cls:
                strategy_registry.register(name, cls, description=cls.__name__)

    @property
    def reliability(self) -> ReliabilitySettings:
        """What keeps the run when something fails.

        Raises:
            ValueError: The environment has a value that is not known.
        """
        return RELIABILITY.choose(self._reliability_argument, self.reliability_callback)[0]

    def compile_choice(self) -> Choice:
        """Returns what is to be compiled, and who says so.

        Raises:
            MisconfigurationException: Its user asks for more than can be compiled.
            ValueError: The environment has a value that is not known.
        """
        choice = Choice(*COMPILATION.choose(self._compile_argument, self.compile_callback))
        if choice.compilation.mode == "model" and self.why_not_whole is not None:
            raise MisconfigurationException(
                f"{choice.origin} asks for 'model' to be compiled, {self.why_not_whole}"
            )
        return choice

    def takes_declared_regions(self, module: Module) -> bool:
        """Returns whether a model's `compile_regions` holds.

        Not where its parts are sharded or gathered one by one: what does that must stay outside
        graphs.
        """
        return True

    def prepare_regions(self, modules: Sequence[Module]) -> Any:
        """Prepares compiled modules where their strategy has hooks in them; here it has none.

        Args:
            modules: The regions, and those in them that may be called in their place.

        Returns:
            None, or what takes it back in its `remove`.
        """

    @property
    def leaves_steps_out(self) -> bool:
        """Whether steps with gradients that are not finite are skipped, as with loss scaling."""
        plugin = getattr(self, "precision_plugin", None) or self.precision
        scaler = getattr(plugin, "scaler", None)
        return scaler is not None and scaler.is_enabled()

    def of_all_ranks(self, value: _Value) -> list[_Value]:
        """Returns the values of all ranks, by rank; the cards are not waited for."""
        return collectives.gather_objects(value) if self.is_ranked else [value]


class SingleMixin(HPUMixin):
    """One process with one card."""

    strategy_name = "hpu_single"

    card = DEVICE
    """Which of the machine's cards this process drives, which it sees as `hpu:0`."""

    # Lightning's connector sets it if a launcher is found.
    cluster_environment: Any = None

    def validate_for_hpu(self, typed: str) -> None:
        """Sets the device to the HPU, since Lightning's strategy may have the CPU by default."""
        super().validate_for_hpu(typed)
        self._root_device = DEVICE

    def choose_card(self, card: torch.device) -> None:
        """Sets which of the machine's cards this process is to drive."""
        self.card = card


class RankedMixin(HPUMixin):
    """The base of strategies for several processes with a card each.

    Cards communicate over HCCL, and hosts over gloo. The mixin comes before the strategy of
    Lightning's that it is combined with, so that what it overrides holds for all of them.
    """

    is_ranked = True

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
        """HCCL for tensors on an HPU, and the user's backend for others."""
        return self._process_group_backend or BACKEND

    @property
    def slow_ranks(self) -> list[str]:
        """On rank 0, what the watchdog has said of ranks that are slower than the others."""
        return watchdog.slow_ranks()

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
        assert self.parallel_devices is not None
        select_card(self.parallel_devices, self.local_rank)
        super().setup_environment()

    @override
    def setup_distributed(self) -> None:
        """Numbers the ranks, and connects them over HCCL."""
        assert self.cluster_environment is not None
        self._number_ranks()
        # Checked once more, since a strategy may be used without the Trainer's and Fabric's checks.
        self._process_group_backend = checked_backend(self._process_group_backend)
        init_process_group(self.cluster_environment, self._process_group_backend, self._timeout)
        process_group.watch_ranks(self.reliability, self._timeout)

    # The Trainer's DDP and DeepSpeed call it by the name above; Fabric, and the Trainer's
    # `ModelParallelStrategy`, by this one.
    _setup_distributed = setup_distributed

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits until all ranks are here, but not for the cards."""
        collectives.barrier()

    @override
    def broadcast(self, obj: _Value, src: int = 0) -> _Value:
        """Returns the object of rank `src`; the cards are not waited for."""
        value: _Value = collectives.broadcast_object(obj, src)
        return value

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns whether all ranks, or any, decided so; the cards are not waited for."""
        return collectives.decide(decision, all_ranks=all)

    def all_reduce(
        self, tensor: Any, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Any:
        """Reduces a tensor over the ranks (see `collectives.reduce`); returns other objects as is.

        There is no barrier before it, on which a training step would wait.
        """
        is_tensor = isinstance(tensor, Tensor)
        return collectives.reduce(tensor, group, reduce_op) if is_tensor else tensor

    reduce = all_reduce
    """The name in the Trainer; Fabric's is `all_reduce`."""


_SAFE = ("spawn", "forkserver")


def start_workers_safely(loader: Any) -> None:
    """Makes a loader start its workers without a fork of this process, which holds a card.

    Nothing is changed where it has none, or the user has chosen "spawn" or "forkserver".

    Args:
        loader: A DataLoader, or another that has its `num_workers` and `multiprocessing_context`.

    Raises:
        MisconfigurationException: The user wants workers to be forked.
    """
    if not getattr(loader, "num_workers", 0) or not hasattr(loader, "multiprocessing_context"):
        return
    context = loader.multiprocessing_context
    if context is None:
        # The program may have called `set_start_method`. `allow_none` asks without fixing Python's
        # default, after which the program could not choose any more.
        chosen = set(_SAFE) - {multiprocessing.get_all_start_methods()[0]}
        if multiprocessing.get_start_method(allow_none=True) in chosen:
            return
        from lightning_gaudi._core.workers import start as worker_start

        loader.multiprocessing_context = worker_start.WorkerContext()
        names = ("dataset", "collate_fn", "worker_init_fn")
        worker_start.start_server_ahead(getattr(loader, name, None) for name in names)
    elif context.get_start_method() == "fork":
        raise MisconfigurationException(
            f"A DataLoader has num_workers={loader.num_workers} and multiprocessing_context='fork',"
            " but a process that holds a card must not be forked: the driver does not survive it. "
            "Leave multiprocessing_context out: workers then start about as fast, from a process "
            "without a card. Or pass 'spawn' or 'forkserver'."
        )
