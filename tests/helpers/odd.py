"""Loaders and optimizers as people write them, for whatever of ours looks into them.

Modules stand in `tests/compilation/test_odd_modules.py`.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.utils import data

NUM_BATCHES, BATCH_SIZE, NUM_FEATURES = 4, 4, 8

LOADERS: dict[str, Callable[[], Any]] = {}
"""What makes the loader of a fit, by name: its batches are tensors (B, 8), four an epoch."""

OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {}
"""What `configure_optimizers` returns for a module, by name."""


def _loader(make: Callable[[], Any]) -> Callable[[], Any]:
    LOADERS[make.__name__.strip("_")] = make
    return make


def _optimizer(make: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    OPTIMIZERS[make.__name__.strip("_")] = make
    return make


def samples() -> list[Tensor]:
    """The same ones each time."""
    generator = torch.Generator().manual_seed(1)
    return [*torch.randn(NUM_BATCHES * BATCH_SIZE, NUM_FEATURES, generator=generator)]


def tensors() -> list[Tensor]:
    """Batches of them."""
    return [*torch.stack(samples()).split(BATCH_SIZE)]


class OnlyItems:
    """A data set by Python's protocol, with no class of torch's."""

    def __getitem__(self, index: int) -> Tensor:
        return samples()[index]

    def __len__(self) -> int:
        return NUM_BATCHES * BATCH_SIZE


class Fresh:
    """Iterable, and nothing else."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from tensors()


class Streamed(data.IterableDataset[Tensor]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(samples())


@_loader
def _list_of_batches() -> Any:
    return tensors()


@_loader
def _tuple_of_batches() -> Any:
    return tuple(tensors())


@_loader
def _data_set_by_protocol() -> Any:
    return data.DataLoader(OnlyItems(), BATCH_SIZE, shuffle=True)  # type: ignore[arg-type]


@_loader
def _data_set_that_is_a_list() -> Any:
    return data.DataLoader(samples(), BATCH_SIZE, shuffle=True)  # type: ignore[arg-type]


@_loader
def _data_set_that_is_a_dict() -> Any:
    return data.DataLoader(dict(enumerate(samples())), BATCH_SIZE)  # type: ignore[arg-type]


@_loader
def _data_set_with_attributes_that_raise() -> Any:
    class Raising(OnlyItems):
        @property
        def length(self) -> int:
            raise RuntimeError("not known")

        def __bool__(self) -> bool:
            raise TypeError("neither true nor false")

        def __eq__(self, other: object) -> bool:
            raise TypeError("not comparable")

        __hash__ = None  # type: ignore[assignment]

    return data.DataLoader(Raising(), BATCH_SIZE)  # type: ignore[arg-type]


@_loader
def _with_nothing_but_an_iterator() -> Any:
    return Fresh()


@_loader
def _length_that_raises() -> Any:
    class Unknown:
        def __iter__(self) -> Iterator[Tensor]:
            return iter(tensors())

        def __len__(self) -> int:
            raise NotImplementedError("how many is not known")

    return Unknown()


@_loader
def _iterator_of_its_own() -> Any:
    class Own:
        def __init__(self) -> None:
            self.dataset, self.sampler, self.batch_sampler = None, None, None

        def __iter__(self) -> Own:
            self.left = tensors()
            return self

        def __next__(self) -> Tensor:
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

        def __len__(self) -> int:
            return NUM_BATCHES

    return Own()


@_loader
def _wrapper_around_a_loader() -> Any:
    class Wrapper:
        def __init__(self, loader: Iterable[Tensor]) -> None:
            self.loader = loader

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["loader"], name)

        def __iter__(self) -> Iterator[Tensor]:
            return (batch * 2 for batch in self.loader)

        def __len__(self) -> int:
            return NUM_BATCHES

    return Wrapper(data.DataLoader(samples(), BATCH_SIZE, shuffle=True))  # type: ignore[arg-type]


@_loader
def _subclass_with_its_own_signature() -> Any:
    class Own(data.DataLoader[Tensor]):
        def __init__(self, count: int) -> None:
            super().__init__(samples()[:count], BATCH_SIZE, shuffle=True)  # type: ignore[arg-type]

        def __iter__(self) -> Any:
            return (batch + 1 for batch in super().__iter__())

    return Own(NUM_BATCHES * BATCH_SIZE)


@_loader
def _batches_drawn_by_the_user() -> Any:
    order = [[0, 5, 2, 7], [1, 4], [3, 6, 8, 9], [10, 11, 12]]
    return data.DataLoader(samples(), batch_sampler=order)  # type: ignore[arg-type]


@_loader
def _sampler_that_is_a_list() -> Any:
    return data.DataLoader(samples(), BATCH_SIZE, sampler=[*range(15, -1, -1)])  # type: ignore[arg-type]


@_loader
def _sampler_without_a_length() -> Any:
    class Endless(data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.cycle(range(NUM_BATCHES * BATCH_SIZE))

    return data.DataLoader(samples(), BATCH_SIZE, sampler=Endless())  # type: ignore[arg-type]


@_loader
def _drawn_with_weights() -> Any:
    sampler = data.WeightedRandomSampler([1.0, 2.0] * 8, NUM_BATCHES * BATCH_SIZE)
    return data.DataLoader(samples(), BATCH_SIZE, sampler=sampler)  # type: ignore[arg-type]


@_loader
def _data_set_that_batches() -> Any:
    return data.DataLoader(tensors(), batch_size=None)  # type: ignore[arg-type]


@_loader
def _stream() -> Any:
    return data.DataLoader(Streamed(), BATCH_SIZE)


@_loader
def _stream_of_streams() -> Any:
    return data.DataLoader(data.ChainDataset([Streamed(), Streamed()]), 2 * BATCH_SIZE)


@_loader
def _stream_without_end() -> Any:
    class Endless(Streamed):
        def __iter__(self) -> Iterator[Tensor]:
            return itertools.cycle(samples())

    return data.DataLoader(Endless(), BATCH_SIZE)


@_loader
def _subset_of_subsets() -> Any:
    both = data.ConcatDataset([samples()[:8], samples()[8:]])  # type: ignore[list-item]
    return data.DataLoader(data.Subset(data.Subset(both, range(16)), range(16)), BATCH_SIZE)


@_loader
def _several_in_a_dict() -> Any:
    return {"a": tensors(), "b": data.DataLoader(samples(), BATCH_SIZE)}  # type: ignore[arg-type]


@_loader
def _combined_by_the_user() -> Any:
    loader = data.DataLoader(samples()[:8], BATCH_SIZE, shuffle=True)  # type: ignore[arg-type]
    return CombinedLoader([loader, Fresh()], "max_size")


@_loader
def _lists_of_loaders() -> Any:
    return [Fresh(), [Fresh(), Fresh()]]


@_loader
def _batches_of_the_users_class() -> Any:
    class Batch:
        def __init__(self, rows: list[Tensor]) -> None:
            self.rows = torch.stack(rows)

        def to(self, device: Any, **how: Any) -> Batch:
            self.rows = self.rows.to(device)
            return self

    return data.DataLoader(samples(), BATCH_SIZE, collate_fn=Batch)  # type: ignore[arg-type]


@_loader
def _batches_with_all_sorts_of_things() -> Any:
    Pair = collections.namedtuple("Pair", ["x", "rest"])
    rest = {"text": ["a"], "none": None, "number": 1.5, "set": {1}}

    def collate(rows: list[Tensor]) -> Any:
        return Pair(torch.stack(rows), rest)

    return data.DataLoader(samples(), BATCH_SIZE, collate_fn=collate)  # type: ignore[arg-type]


@_loader
def _that_changes_its_length() -> Any:
    class Growing:
        def __init__(self) -> None:
            self.epochs = 0

        def __iter__(self) -> Iterator[Tensor]:
            self.epochs += 1
            return iter(tensors()[: 2 + self.epochs])

        def __len__(self) -> int:
            return 2 + self.epochs

    return Growing()


def tensor_of(batch: Any) -> Tensor:
    """The values of a batch of any of these loaders."""
    if isinstance(batch, Tensor):
        return batch
    if hasattr(batch, "rows"):
        rows: Tensor = batch.rows
        return rows
    if isinstance(batch, dict):
        return sum(tensor_of(each) for each in batch.values())  # type: ignore[return-value]
    found = [tensor_of(each) for each in batch if isinstance(each, (Tensor, list, tuple))]
    return sum(found) / len(found)  # type: ignore[return-value]


class _Wrapper(torch.optim.Optimizer):
    """Holds another one, and never calls the constructor of its class."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state["inner"])


class _Lookahead(torch.optim.Optimizer):
    """Keeps slow weights beside another optimizer's, and shares its groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        super().__init__([each for group in inner.param_groups for each in group["params"]], {})
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        loss = self.inner.step(closure)
        for each in (each for group in self.param_groups for each in group["params"]):
            slow = self.state[each].setdefault("slow", each.detach().clone())
            slow.lerp_(each.detach(), 0.5)
            each.data.copy_(slow)
        return loss


class _Sharpness(torch.optim.Optimizer):
    """Runs the closure twice a step, from two places (arXiv 2010.01412)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2, "rho": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        pairs = [
            (each, each.grad.clone()) for group in self.param_groups for each in group["params"]
        ]
        for each, grad in pairs:
            each.add_(grad, alpha=0.05)
        with torch.enable_grad():
            closure()
        for each, grad in pairs:
            each.sub_(grad, alpha=0.05)
            each.sub_(each.grad, alpha=1e-2)
        return loss


class _Several(torch.optim.Optimizer):
    """Steps several in turn, and counts; has no state of its own."""

    def __init__(self, inner: list[torch.optim.Optimizer]) -> None:
        super().__init__([each for one in inner for each in one.param_groups], {})
        self.inner, self.count = inner, 0

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        self.inner[self.count % 2].step()
        self.count += 1
        return loss


class _Plain(torch.optim.Optimizer):
    """Keeps objects that are no tensors in its state, and attributes that raise."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2, "note": "a text", "betas": [0.9]})

    @property
    def optimizer(self) -> Any:
        raise RuntimeError("not an optimizer of optimizers")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure and closure()
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                state["history"] = [*state.get("history", ()), 1][-3:]
                state["how"] = None
                if each.grad is not None:
                    each.sub_(each.grad, alpha=group["lr"])
        return loss


@_optimizer
def _wrapper_that_calls_no_constructor(module: nn.Module) -> Any:
    return _Wrapper(torch.optim.AdamW(module.parameters(), lr=1e-2))


@_optimizer
def _lookahead(module: nn.Module) -> Any:
    return _Lookahead(torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9))


@_optimizer
def _several_in_turn(module: nn.Module) -> Any:
    first = torch.optim.Adam([*module.parameters()][:2], lr=1e-2)
    second = torch.optim.SGD([*module.parameters()][2:], lr=1e-2, momentum=0.9)
    return _Several([first, second])


@_optimizer
def _sharpness_aware(module: nn.Module) -> Any:
    return _Sharpness(module.parameters())


@_optimizer
def _state_that_is_no_tensor(module: nn.Module) -> Any:
    return _Plain(module.parameters())


@_optimizer
def _many_evaluations_a_step(module: nn.Module) -> Any:
    return torch.optim.LBFGS(module.parameters(), lr=1e-2, max_iter=3)


@_optimizer
def _group_that_is_empty(module: nn.Module) -> Any:
    groups = [{"params": [*module.parameters()]}, {"params": []}]
    return torch.optim.AdamW(groups, lr=1e-2)


@_optimizer
def _names_in_groups(module: nn.Module) -> Any:
    return torch.optim.AdamW(module.named_parameters(), lr=1e-2)


@_optimizer
def _weights_that_get_no_gradient(module: nn.Module) -> Any:
    idle = nn.Parameter(torch.ones(3))
    return torch.optim.AdamW([*module.parameters(), idle], lr=1e-2)


@_optimizer
def _rate_that_is_a_tensor(module: nn.Module) -> Any:
    return torch.optim.AdamW(module.parameters(), lr=torch.tensor(1e-2), foreach=False)


@_optimizer
def _one_of_the_matrices(module: nn.Module) -> Any:
    matrices = [each for each in module.parameters() if each.ndim == 2]
    rest = [each for each in module.parameters() if each.ndim != 2]
    return torch.optim.Adafactor([{"params": matrices}, {"params": rest, "lr": 1e-3}], lr=1e-2)


@_optimizer
def _schedule_with_state_of_its_own(module: nn.Module) -> Any:
    optimizer = torch.optim.RMSprop(module.parameters(), lr=1e-2, centered=True)
    first = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
    second = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[3])
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@_optimizer
def _hooks_on_the_optimizer(module: nn.Module) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    optimizer.register_step_pre_hook(lambda *args: None)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": object})
    return optimizer


@_optimizer
def _none(module: nn.Module) -> Any:
    return None
