"""Wraps modules in DistributedDataParallel with the vendor's settings, and syncs their buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lightning_gaudi._core import vendor

DDP_DEFAULTS: dict[str, Any] = {
    "bucket_cap_mb": 230,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": True,
}
"""The vendor's settings of DistributedDataParallel, used where the user gives none.

With a `bucket_cap_mb` of its own DistributedDataParallel makes the first bucket as large as the
others, so that `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES` (1 MiB), which the vendor's scripts
raise to 200 or 230 MiB, plays no part. Nor are buffers sent before each forward, but before each
evaluation: see `sync_buffers`.
Source: Intel Gaudi documentation, "Distributed Training with PyTorch"; Model-References 1.23
(`torchvision/utils.py`, `yolox/tools/train.py`); torch 2.13 `nn/parallel/distributed.py`.
"""


_NUM_NAMES = 5
_UNFROZEN = "_lightning_gaudi_unfrozen"
"""The attribute of a wrapped module that holds its `Unfrozen`."""


def wrap(module: Module, settings: dict[str, Any]) -> DistributedDataParallel:
    """Wraps a module so that backward averages its gradients over the ranks.

    Args:
        module: A module on the HPU.
        settings: The user's arguments of DistributedDataParallel.
    """
    defaults = dict(DDP_DEFAULTS)
    if "broadcast_buffers" not in settings:
        # torch 2.13 renamed the argument. Under the old name torch also skips the copy of the
        # buffers when it wraps the module, which is made up for below.
        is_renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        defaults["forward_sync_buffers" if is_renamed else "broadcast_buffers"] = False
    wrapped = DistributedDataParallel(module, **(defaults | settings))
    if defaults.get("broadcast_buffers") is False:
        sync_buffers(wrapped)
    Unfrozen(wrapped)
    return wrapped


def sync_buffers(module: Module) -> None:
    """Gives all ranks the buffers of rank 0, such as the running statistics of a batch norm."""
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)


def sync_buffers_before_evaluation(wrapped: DistributedDataParallel) -> None:
    """Lets a wrapped module sync its buffers at the first forward of each evaluation."""
    is_stale = True
    # Compiled code must not contain a collective that runs only sometimes.
    sync = torch.compiler.disable(sync_buffers)  # type: ignore[no-untyped-call]

    def before_forward(module: Module, args: Any) -> None:
        nonlocal is_stale
        if is_stale and not module.training:
            sync(module)
        is_stale = module.training

    if any(True for _ in wrapped.buffers()):
        wrapped.register_forward_pre_hook(before_forward)


class Unfrozen:
    """Keeps DistributedDataParallel averaging the gradients of those weights that train now.

    DistributedDataParallel averages the weights that required a gradient when it wrapped the
    module. It ignores a weight that is unfrozen later, so the ranks would drift apart, and it waits
    for one that was frozen later until the run fails. So before each forward with gradients its
    reducer is made anew if other weights train.

    Args:
        wrapped: The module.
    """

    def __init__(self, wrapped: DistributedDataParallel) -> None:
        self._num_stepped: dict[int, int] = {}
        self._note(wrapped)
        wrapped.register_forward_pre_hook(self._before_forward)
        setattr(wrapped, _UNFROZEN, self)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_forward(self, wrapped: DistributedDataParallel, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        ddp: Any = wrapped
        names = [name for name, each in self._frozen.items() if each.requires_grad]
        # With `find_unused_parameters` it does not wait for frozen weights.
        if not ddp.find_unused_parameters:
            frozen = [name for name, each in self.averaged.items() if not each.requires_grad]
            # Nor does it if all are frozen, since no gradient comes then, as in a GAN's
            # discriminator while the generator trains.
            names += frozen if names or len(frozen) < len(self.averaged) else []
        if not names:
            return
        # Hooks are registered with the reducer, and torch has no way to hand them to a new one.
        if ddp._comm_hooks:
            raise RuntimeError(
                f"{_listed(names)} were frozen or unfrozen in a fit whose gradients a "
                "hook of DistributedDataParallel (ddp_comm_hook) exchanges, which knows the "
                "weights that were to be trained at its start. Leave out the hook, or freeze "
                "nothing."
            )
        parameters, is_sparse = ddp._build_params_for_reducer()
        _set_reducer(ddp, parameters, is_sparse)
        self._note(wrapped)

    def _note(self, wrapped: DistributedDataParallel) -> None:
        """Notes which weights are averaged, and which are frozen."""
        self._frozen, self.averaged = _frozen(wrapped), _trained(wrapped)
        frozen = {id(each) for each in self._frozen.values()}
        self._known = {id(each) for each in wrapped.module.parameters()} - frozen

    def check(self, wrapped: DistributedDataParallel, optimizer: Any) -> None:
        """Refuses gradients that have not been averaged.

        Args:
            wrapped: The module.
            optimizer: It will step.

        Raises:
            RuntimeError: A weight with a gradient was unfrozen, or added, behind the forward.
        """
        groups = getattr(optimizer, "param_groups", ())
        num = sum(len(group["params"]) for group in groups)
        # Called in each step, so the usual case looks at frozen weights alone, and reads nothing
        # from a card.
        late = [name for name, each in self._frozen.items() if each.grad is not None]
        if not late and self._num_stepped.get(id(optimizer)) == num:
            return
        self._num_stepped[id(optimizer)] = num
        names = {id(each): name for name, each in wrapped.module.named_parameters()}
        stepped = [each for group in groups for each in group["params"]]
        late = [
            names.get(id(each), "a weight outside of the module")
            for each in stepped
            if id(each) not in self._known and each.grad is not None
        ]
        if late:
            raise RuntimeError(
                f"The optimizer is about to step {_listed(late)}, whose gradients were "
                "not averaged over the ranks: each rank would go on with other weights. Unfreeze "
                "weights before training_step, as in on_train_batch_start, and make all weights "
                "that will be trained in configure_model or __init__."
            )


def _listed(names: Sequence[str]) -> str:
    from lightning_gaudi._core.wording import listed  # needed by messages of errors alone

    return listed(names, _NUM_NAMES)


def check_averaged(wrapped: Any, optimizers: Iterable[Any]) -> None:
    """Raises if an optimizer would step a weight whose gradient was not averaged.

    Args:
        wrapped: A module; nothing is looked at where it was not wrapped here.
        optimizers: All that step it.

    Raises:
        RuntimeError: A weight with a gradient was unfrozen, or added, behind the forward.
    """
    unfrozen = vars(wrapped).get(_UNFROZEN)
    if unfrozen is not None:
        for optimizer in optimizers:
            unfrozen.check(wrapped, optimizer)


class OneBucket:
    """Averages all gradients together behind a backward, where they fit into one bucket.

    DistributedDataParallel copies each gradient into its bucket, a launch of the card for each
    weight, so that buckets can be reduced while backward goes on. A single bucket is reduced at the
    end in any case; here it is filled by one launch. The values are the same: each rank's gradients
    are divided by the number of ranks, and added. It costs the memory of DistributedDataParallel's
    own bucket, which is there and stays unused: 230 MiB at most.

    Args:
        wrapped: The module; see `fits`.
    """

    def __init__(self, wrapped: DistributedDataParallel) -> None:
        self._wrapped = wrapped
        self._unfrozen: Unfrozen = getattr(wrapped, _UNFROZEN)

    @staticmethod
    def fits(wrapped: DistributedDataParallel) -> bool:
        """Returns whether nothing but one bucket is asked of it: in eager mode, on several cards.

        In lazy mode the copies are parts of a graph.
        """
        ddp: Any = wrapped
        weights = [*_trained(wrapped).values()]
        is_plain = not (
            ddp.find_unused_parameters
            or ddp.static_graph
            or ddp._comm_hooks
            or ddp._delay_all_reduce_params
            or ddp.mixed_precision
            or (ddp.broadcast_buffers and any(True for _ in ddp.buffers()))
        )
        return (
            is_plain
            and ddp.gradient_as_bucket_view
            and not vendor.is_lazy()
            and len({(weight.dtype, weight.device) for weight in weights}) == 1
            and sum(weight.nbytes for weight in weights) <= ddp.bucket_bytes_cap
            and not any(map(_is_sparse_embedding, wrapped.modules()))
        )

    def average_after_backward(self, loss: Tensor) -> None:
        """Averages the gradients over the ranks when the next backward of a loss has ended.

        Raises:
            RuntimeError: In that backward, if a weight has got no gradient.
        """

        def queue(gradient: Tensor) -> None:
            # As DistributedDataParallel: `backward` returns with averaged gradients.
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

        loss.register_hook(queue)  # type: ignore[no-untyped-call]

    def _average(self) -> None:
        trained = {n: each for n, each in self._unfrozen.averaged.items() if each.requires_grad}
        if not trained:  # a gradient that passes through alone
            return
        names, weights = zip(*trained.items(), strict=True)
        gradients = [weight.grad for weight in weights]
        if missing := [name for name, each in zip(names, gradients, strict=True) if each is None]:
            raise RuntimeError(
                f"{_listed(missing)} got no gradient in this step, and the ranks wait for one of "
                "each weight that is trained. Pass HPUDDPStrategy(find_unused_parameters=True), or "
                "freeze what the loss does not depend on (requires_grad_(False))."
            )
        with torch.no_grad():
            bucket = torch.cat([each.detach().reshape(-1) for each in gradients])
            group = self._wrapped.process_group
            dist.all_reduce(bucket.mul_(1 / group.size()), group=group)
            sizes = [weight.numel() for weight in weights]
            parts = torch.split(bucket, sizes)
            for weight, part in zip(weights, parts, strict=True):
                weight.grad = part.view(weight.shape)


def _is_sparse_embedding(module: Module) -> bool:
    return bool(getattr(module, "sparse", False))


class GradientOrder:
    """Records the order in which gradients arrive in a module's first backward.

    After that DistributedDataParallel fills its buckets in this order. The position of a gradient
    in its bucket decides in which order the ranks are summed, and so the last bits with more than
    two ranks. A run that resumes exactly has to begin with these buckets.

    Source: torch 2.13, `csrc/distributed/c10d/reducer.cpp` (`autograd_hook`, `rebuild_buckets`).

    Args:
        wrapped: The module, before its first backward.
        names: The order, where it is known.
    """

    def __init__(
        self, wrapped: DistributedDataParallel, names: Sequence[str] | None = None
    ) -> None:
        self.names = None if names is None else [*names]
        """The names of the parameters in order; None until the order is known."""
        self._wrapped = wrapped
        self._seen: list[str] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))
            for name, parameter in _trained(wrapped).items()
            if names is None
        ]

    def end_of_backward(self) -> None:
        """Notes that a backward has ended."""
        if self._wrapped.require_backward_grad_sync and self._handles:
            # A backward in which some weights had no gradient does not give a whole order.
            is_whole = sorted(self._seen) == sorted(_trained(self._wrapped))
            self.names = self._seen if is_whole else None
            self.release()
        self._seen = []

    def release(self) -> None:
        """Stops recording."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _note(self, name: str, parameter: Any) -> None:
        self._seen.append(name)


def rebuilds_buckets(wrapped: DistributedDataParallel) -> bool:
    """Returns whether a wrapped module makes new buckets after its first backward."""
    return not wrapped.find_unused_parameters and not wrapped.static_graph


def begin_with_order(
    wrapped: DistributedDataParallel, names: Sequence[str]
) -> GradientOrder | None:
    """Gives a wrapped module from the start the buckets that it would have after a backward.

    Args:
        wrapped: A module before its first backward; all ranks do this.
        names: What `GradientOrder` found.

    Returns:
        The order; None if the module has other parameters.
    """
    trained = _trained(wrapped)
    if sorted(names) != sorted(trained):
        return None
    number = {id(trained[name]): index for index, name in enumerate(names)}
    ddp: Any = wrapped
    pairs = [*zip(*ddp._build_params_for_reducer(), strict=True)]
    pairs.sort(key=lambda pair: number[id(pair[0])])
    parameters, is_sparse = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    _set_reducer(ddp, parameters, is_sparse)
    # What the first backward would do (torch 2.13, `reducer.cpp`).
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    return GradientOrder(wrapped, names)


def _set_reducer(ddp: Any, parameters: Any, is_sparse: Any) -> None:
    """Makes a new reducer for these parameters; to be called between two backwards."""
    # The old reducer's hooks would reduce each gradient a second time.
    ddp.reducer._remove_autograd_hooks()
    shown = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, is_sparse, shown, ddp.static_graph)


def _frozen(wrapped: DistributedDataParallel) -> dict[str, Any]:
    """Returns the frozen parameters that it would average if they trained, by name."""
    ignored = wrapped.parameters_to_ignore
    return {
        name: parameter
        for name, parameter in wrapped.module.named_parameters()
        if not parameter.requires_grad and name not in ignored
    }


def _trained(wrapped: DistributedDataParallel) -> dict[str, Any]:
    """Returns the parameters whose gradients it averages, by name."""
    ignored = wrapped.parameters_to_ignore
    return {
        name: parameter
        for name, parameter in wrapped.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
