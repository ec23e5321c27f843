"""Collectives between the ranks of a run.

Tensors on the card go over HCCL, the vendor's library. Barriers, objects and decisions concern the
host alone and go over a second group on the CPU (gloo), so that no host waits for its card because
of them. If one rank fails, all are told (`on_rank_zero`, `raise_together`), so that none waits for
a rank that has raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import progress

_Value = TypeVar("_Value")

_has_been_connected = False
"""Whether this process has ever been one of several connected ranks."""

_cpu_group: tuple[Any, Any] = (None, None)
"""The process group of all ranks, and the one on the CPU beside it."""

_apart: ContextVar[Any] = ContextVar("_apart", default=None)
"""The group of a background thread that communicates by itself; None in other threads."""


def is_connected() -> bool:
    """Returns whether torch has a process group, which may be of one rank."""
    return dist.is_available() and dist.is_initialized()


def has_been_connected() -> bool:
    """Returns whether this process has ever been one of several connected ranks."""
    return _has_been_connected


def note_connected() -> None:
    """Remembers that the ranks have been connected, if they are several."""
    global _has_been_connected
    _has_been_connected |= dist.get_world_size() > 1


def cpu_group(timeout: timedelta | None = None) -> Any:
    """Returns the group of all ranks on the CPU; the first call makes it, so all ranks must call.

    Args:
        timeout: How long the first call lets an operation in it take.
    """
    global _cpu_group
    if (own := _apart.get()) is not None:
        return own
    world = dist.group.WORLD
    # A program may destroy its process group and make another one.
    # `new_group` is a collective, so only a change of the default group, which all ranks see, makes
    # one.
    if _cpu_group[0] is not world:
        _cpu_group = (world, _new_group(timeout))
    return _cpu_group[1]


_LAZY = "TORCH_GLOO_LAZY_INIT"
"""Torch's variable, since 2.8, which it reads as a group is made."""

_MESH_RANKS = 32
"""Up to so many ranks all connect with all when they meet."""


def _new_group(timeout: timedelta | None) -> Any:
    """Makes a group of all ranks on the CPU.

    Gloo connects each rank with each: of 4,096 ranks the store would be asked 16 million times for
    35 KB, and a server of eight would have 32,000 connections. So a large group connects those
    that speak with one another, when they first do: in a ring, for most.
    """
    with _lazily() if dist.get_world_size() > _MESH_RANKS else nullcontext():
        return dist.new_group(timeout=timeout, backend="gloo")


@contextmanager
def _lazily() -> Iterator[None]:
    before = os.environ.get(_LAZY)
    os.environ[_LAZY] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LAZY]


def forget_cpu_group() -> None:
    """Drops the group of ranks that have ended; rank 0 keeps its port while the group is held."""
    global _cpu_group
    _cpu_group = (None, None)


def group_apart(timeout: timedelta | None = None) -> Any:
    """Makes one more group of all ranks on the CPU; all ranks call. None for a single rank.

    Args:
        timeout: How long an operation in it may take; None for torch's.
    """
    return _new_group(timeout) if is_connected() else None


def leave(group: Any) -> None:
    """Destroys a group of `group_apart` that is not in use any more."""
    if group is not None and is_connected():
        dist.destroy_process_group(group)


@contextmanager
def apart(group: Any) -> Iterator[None]:
    """Lets this thread communicate over a group of its own in the block.

    The watchdog follows the training thread only, so waits in the block are not noted.

    Args:
        group: Of `group_apart`.
    """
    token = _apart.set(group)
    try:
        yield
    finally:
        _apart.reset(token)


def waiting(collective: str) -> AbstractContextManager[None]:
    """Notes that the training thread waits for other ranks in the block."""
    return progress.waiting(collective) if _apart.get() is None else nullcontext()


_STEP, _VALIDATION, _DECISION, _BARRIER, _BROADCAST, _GATHER = range(1, 7)
_DOES = {
    _STEP: "begins another step of training",
    _VALIDATION: "begins a validation",
    _DECISION: "wants a decision of all ranks, as at the end of an epoch",
    _BARRIER: "waits at a barrier",
    _BROADCAST: "wants what one rank sends to all",
    _GATHER: "wants something of each rank",
}
"""The collectives on the CPU, and the words for each in an error message."""


class _Vote:
    """Reduces a value to the largest of all ranks, and checks that all ranks do the same.

    gloo itself would mix up the values of different collectives, or end the process.

    Args:
        kind: One of `_DOES`.
        value: This rank's.
        is_async: Whether this rank goes on at once.
    """

    def __init__(self, kind: int, value: int = 0, *, is_async: bool = False) -> None:
        self._kind = kind
        # The maximum of `kind` and of `-kind` are the highest and the lowest kind. They are equal
        # if all ranks do the same, and one reduction tells that along with the value.
        self._votes = torch.tensor([kind, -kind, value])
        self._work = dist.all_reduce(
            self._votes, dist.ReduceOp.MAX, group=cpu_group(), async_op=is_async
        )

    def result(self) -> int:
        """Returns the largest value; waits for it.

        Raises:
            RuntimeError: Another rank does something else.
        """
        if self._work is not None:
            self._work.wait()
        highest, lowest, value = self._votes.tolist()
        if highest != -lowest:
            raise RuntimeError(self._explain(-lowest if highest == self._kind else highest))
        return int(value)

    def _explain(self, other: int) -> str:
        does = _DOES.get(other, "does something else")
        told = (
            f"The ranks do not do the same: rank {dist.get_rank()}, in {progress.here()}, "
            f"{_DOES[self._kind]}, but another rank {does}. "
        )
        if _STEP in (self._kind, other):
            return told + (
                "Have all ranks get as many batches: an IterableDataset must yield as many on each "
                "rank. Trainer(limit_train_batches=...) cuts all to one number."
            )
        return told + "Have all ranks call it, and not some of them within an `if`."


def meet_for_validation() -> None:
    """Waits until all ranks begin a validation.

    Raises:
        RuntimeError: A rank does something else, since it has other batches.
    """
    if is_connected():
        with waiting("validation"):
            _Vote(_VALIDATION).result()


def barrier() -> None:
    """Waits until all ranks are here, but not for the cards."""
    if is_connected():
        with waiting("barrier"):
            _Vote(_BARRIER).result()


def broadcast_object(value: Any, src: int = 0) -> Any:
    """Returns the value of rank `src` on all ranks; the cards are not waited for."""
    if not is_connected():
        return value
    values = [value]
    with waiting("broadcast_object"):
        _Vote(_BROADCAST).result()
        # The vote comes first: with other ranks in another collective gloo would read their bytes
        # as a pickle.
        dist.broadcast_object_list(values, src, group=cpu_group())
    return values[0]


def gather_objects(value: Any) -> list[Any]:
    """Returns the values of all ranks, by rank; the cards are not waited for."""
    if not is_connected():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    with waiting("gather_objects"):
        _Vote(_GATHER).result()
        dist.all_gather_object(values, value, group=cpu_group())
    return values


def decide(decision: bool, *, all_ranks: bool) -> bool:
    """Returns whether all ranks, or any of them, decided so; the cards are not waited for."""
    if not is_connected():
        return decision
    with waiting("all_reduce of a decision"):
        # One reduction to a maximum serves for both: "all" is true if no rank is against, "any" if
        # one is for.
        is_one_against = _Vote(_DECISION, int(bool(decision) is not all_ranks)).result() > 0
    return is_one_against is not all_ranks


def reduce(
    tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
) -> Tensor:
    """Reduces a tensor over the ranks, in place, and without a barrier before it.

    Args:
        tensor: Of any shape; one on the CPU is reduced there.
        group: All ranks by default.
        reduce_op: `"mean"` or `"avg"`, `"sum"` (as is None), or another operation's name.

    Returns:
        `tensor`, reduced. The mean of integers is rounded toward zero.
    """
    if not is_connected():
        return tensor
    if group is None:
        group = cpu_group() if tensor.device.type == "cpu" else dist.group.WORLD
    is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
    # Gaudi's HCCL has no average.
    op = "sum" if is_mean or reduce_op is None else reduce_op
    op = getattr(dist.ReduceOp, op.upper()) if isinstance(op, str) else op
    with waiting("all_reduce"):
        dist.all_reduce(tensor, op, group=group)
    # Divided after the sum, on the device: the host does not wait.
    return tensor.copy_(tensor / dist.get_world_size(group)) if is_mean else tensor


class StopAgreement:
    """Lets all ranks stop at the same step if one was asked to, without waiting in a step.

    Each step starts one reduction on the CPU and reads that of the step before.
    """

    def __init__(self) -> None:
        self._vote: _Vote | None = None

    def agree(self, reason: int) -> int:
        """Returns the largest reason to stop that a rank had one step ago; all ranks call it.

        Args:
            reason: This rank's, or 0 to go on.

        Raises:
            RuntimeError: Another rank has ended its epoch, or does something else.
        """
        # The reduction had a whole step of time to finish, so this does not wait as a rule.
        if (found := self.finish()) > 0:
            return found
        self._vote = _Vote(_STEP, reason, is_async=True)
        return 0

    def finish(self) -> int:
        """Waits for the pending reduction, and returns the largest reason to stop."""
        vote, self._vote = self._vote, None
        if vote is None:
            return 0
        with waiting("all_reduce of signals"):
            return vote.result()


def on_rank_zero(function: Callable[[], _Value]) -> _Value:
    """Calls a function on rank 0, and returns its result or raises its error on all ranks.

    The cards are not waited for.
    """
    value, error = None, None
    # The error travels with the value, so that the other ranks neither wait nor go on without it.
    if not is_connected() or dist.get_rank() == 0:
        try:
            value = function()
        except Exception as caught:
            error = caught
    value, failure = broadcast_object((value, error and _portable(error)))
    if failure is not None:
        raise error or failure
    return value  # type: ignore[no-any-return]


def raise_together(error: Exception | None) -> None:
    """Raises on all ranks if any has an error: its own, or else that of the first rank.

    The cards are not waited for.
    """
    failures = gather_objects(error and _portable(error))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise type(failure)(f"Rank {rank} failed: {failure}")


def _portable(error: Exception) -> Exception:
    """Returns an error with the same message that any process can unpickle."""
    for kind in (FileNotFoundError, FileExistsError, OSError, ValueError, TypeError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")
