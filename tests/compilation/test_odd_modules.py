"""Trees of modules as people build them: they train compiled by default as they do as written."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_gaudi import HPUProfiler
from lightning_gaudi.compilation.graph_breaks import GraphBreakReporter
from lightning_gaudi.compilation.method import CompiledMethod
from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.tiny import batches, hpu_trainer

pytestmark = pytest.mark.filterwarnings("default")


class Block(nn.Module):
    """Two layers and what is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class InTurn(nn.Module):
    """Calls its members, of whatever container, one after the other."""

    def __init__(self, members: Any) -> None:
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        members = self.members
        for each in members.values() if isinstance(members, nn.ModuleDict) else members:
            x = x if each is None else each(x)
        return x


Odd = Callable[[], nn.Module]
ZOO: dict[str, Odd] = {}


def odd(make: Odd) -> Odd:
    """List an odd module, which takes and gives (B, 8)."""
    ZOO[make.__name__.strip("_")] = make
    return make


@odd
def _member_that_is_none() -> nn.Module:
    layers = nn.Sequential(Block(), None, Block())  # type: ignore[arg-type]
    return InTurn(layers)


@odd
def _list_with_none() -> nn.Module:
    return InTurn(nn.ModuleList([Block(), None, Block()]))  # type: ignore[list-item]


@odd
def _attribute_that_is_none() -> nn.Module:
    block = Block()
    block.register_module("norm", None)
    block.register_parameter("scale", None)
    block.register_buffer("mean", None)
    return nn.Sequential(block, nn.Linear(8, 8, bias=False))


@odd
def _one_block_many_times() -> nn.Module:
    return InTurn(nn.ModuleList([Block()] * 3))


@odd
def _blocks_by_name() -> nn.Module:
    return InTurn(nn.ModuleDict({"a": Block(), "b": Block()}))


@odd
def _lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(8))


@odd
def _parametrized() -> nn.Module:
    block = Block()
    parametrizations.weight_norm(block.net[0])
    parametrizations.orthogonal(block.net[2])
    return nn.Sequential(block, Block())


@odd
def _scripted() -> nn.Module:
    return InTurn(nn.ModuleList([torch.jit.script(Block()), Block(), Block()]))


@odd
def _traced() -> nn.Module:
    return InTurn(nn.ModuleList([torch.jit.trace(Block(), torch.ones(1, 8)), Block()]))


@odd
def _empty_containers() -> nn.Module:
    module = InTurn(nn.Sequential())
    module.nothing, module.none = nn.ModuleList(), nn.ModuleDict()
    return nn.Sequential(module, Block())


@odd
def _container_with_a_forward() -> nn.Module:
    class Twice(nn.ModuleList):
        def forward(self, x: Tensor) -> Tensor:
            for each in self:
                x = each(each(x))
            return x

    return Twice([Block(), Block()])


@odd
def _forward_of_the_object() -> nn.Module:
    block = Block()
    block.forward = lambda x: 2 * block.net(x)  # type: ignore[method-assign]
    return nn.Sequential(block, Block())


@odd
def _forward_that_is_a_partial() -> nn.Module:
    block = Block()
    block.forward = functools.partial(Block.forward, block)  # type: ignore[method-assign]
    return nn.Sequential(block, Block())


@odd
def _forward_of_the_class_that_is_an_object() -> nn.Module:
    class Half:
        def __call__(self, x: Tensor) -> Tensor:
            return x / 2

    class Own(Block):
        forward = Half()  # type: ignore[assignment]

    return InTurn(nn.ModuleList([Own(), Own()]))


@odd
def _static_forward() -> nn.Module:
    class Own(Block):
        @staticmethod
        def forward(x: Tensor) -> Tensor:  # type: ignore[override]
            return x / 2

    return nn.Sequential(Own(), Own(), Block())


@odd
def _call_of_its_own() -> nn.Module:
    class Called(Block):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x) / 2

    return nn.Sequential(Called(), Called())


@odd
def _attributes_that_raise() -> nn.Module:
    class Raising(Block):
        @property
        def layers(self) -> Any:
            raise ValueError("not built")

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise RuntimeError(f"no {name}") from None

    return InTurn(nn.ModuleList([Raising(), Raising()]))


@odd
def _that_passes_attributes_on() -> nn.Module:
    class Proxy(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    return InTurn(nn.ModuleList([Proxy(Block()), Proxy(Block())]))


@odd
def _with_operators_of_its_own() -> nn.Module:
    class Compared(Block):
        def __eq__(self, other: object) -> bool:
            raise TypeError("not comparable")

        def __hash__(self) -> int:
            return id(self)

        def __bool__(self) -> bool:
            raise TypeError("neither true nor false")

        def __len__(self) -> int:
            raise TypeError("no length")

    return InTurn(nn.ModuleList([Compared(), Compared()]))


@odd
def _that_knows_its_parent() -> nn.Module:
    outer = InTurn(nn.ModuleList([Block(), Block()]))
    for each in outer.members:
        object.__setattr__(each, "parent", outer)
        each.parents = [outer]
    return outer


@odd
def _with_members_beside_modules() -> nn.Module:
    block = Block()
    block.lock, block.teachers = threading.Lock(), [Block()]
    block.generator = (each for each in range(3))
    return nn.Sequential(block, Block())


@odd
def _of_a_class_without_source() -> nn.Module:
    space: dict[str, Any] = {"Block": Block}
    exec(
        "class Made(Block):\n    def forward(self, x):\n        return 2 * super().forward(x)",
        space,
    )
    return InTurn(nn.ModuleList([space["Made"](), space["Made"]()]))


@odd
def _recurrent() -> nn.Module:
    class Recurrent(Block):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRUCell(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(super().forward(x))

    return nn.Sequential(Recurrent(), Recurrent())


@odd
def _user_compiled() -> nn.Module:
    block = Block()
    block.compile(backend="eager")
    return nn.Sequential(block, Block())


@odd
def _weight_of_a_parent() -> nn.Module:
    class Borrowing(Block):
        def __init__(self, weight: Tensor) -> None:
            super().__init__()
            self.__dict__["weight"] = weight

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ self.weight

    outer = InTurn(nn.ModuleList())
    outer.weight = nn.Parameter(torch.eye(8))
    outer.members += [Borrowing(outer.weight), Borrowing(outer.weight)]
    return outer


@odd
def _iteration_that_raises() -> nn.Module:
    class Hiding(Block):
        def __iter__(self) -> Any:
            raise RuntimeError("not to be walked over")

    return nn.Sequential(Hiding(), Hiding())


@odd
def _no_weights() -> nn.Module:
    return nn.Sequential(nn.Identity(), nn.Flatten(), nn.Softmax(-1), nn.Dropout(0.0), Block())


@odd
def _allowed_in_graph() -> nn.Module:
    """As diffusers marks transformer blocks, which a compiler does not look into."""

    @torch.compiler.allow_in_graph
    class Allowed(Block):
        pass

    return InTurn(nn.ModuleList([Allowed(), Allowed()]))


class Model(pl.LightningModule):
    """An odd module and a head; keeps its losses."""

    def __init__(self, make: Odd) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.odd, self.head = make(), nn.Linear(8, 1)
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.head(self.odd(batch[0])).square().mean()
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.head(self.odd(batch[0])).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def _fit(make: Odd, folder: Any, **settings: Any) -> Model:
    model = Model(make)
    torch.manual_seed(1)  # for what is lazy
    settings = {"default_root_dir": folder, "num_sanity_val_steps": 0, **settings}
    hpu_trainer(max_epochs=2, **settings).fit(model, batches(3), batches(1))
    return model


def test_what_cannot_be_looked_into_is_left_as_it_is_with_a_warning(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hiding(Block):
        def modules(self) -> Iterator[nn.Module]:
            raise RuntimeError("no modules")

    def make() -> nn.Module:
        return nn.Sequential(Hiding(), Hiding())

    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "regions")
    with pytest.raises(RuntimeError, match="no modules"):
        _fit(make, tmp_path)
    monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
    with pytest.warns(UserWarning, match=r"Nothing of Model is compiled.*RuntimeError: no modules"):
        losses = _fit(make, tmp_path).losses
    assert len(losses) == 6


@pytest.mark.slow_but("attributes_that_raise", "iteration_that_raises")
@pytest.mark.parametrize("name", ZOO)
def test_an_odd_module_trains_as_it_is_written(name: str, tmp_path: Any) -> None:
    expected = _fit(ZOO[name], tmp_path, strategy=SingleHPUStrategy(compile="none")).losses
    found = _fit(
        ZOO[name],
        tmp_path,
        strategy=SingleHPUStrategy(compile="regions"),
        profiler=HPUProfiler(tmp_path, "odd", with_modules=True),
        enable_checkpointing=True,
    ).losses
    assert len(found) == 6
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_compiler_around_modules_that_are_allowed_in_graph_takes_them() -> None:
    odd = ZOO["allowed_in_graph"]()
    x = torch.randn(2, 8)
    expected = odd(x)
    for block in odd.members:
        settings = {"backend": "eager"}
        CompiledMethod(block, settings, GraphBreakReporter(raises=False)).install()
    torch.testing.assert_close(odd(x), expected)
    around = torch.compile(odd, backend="eager", fullgraph=True)
    torch.testing.assert_close(around(x), expected)
