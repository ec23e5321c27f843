"""A model that is compiled by default, and generates text in the middle of a fit."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_gaudi._core import vendor
from lightning_gaudi.compilation.method import MAX_IN_A_ROW
from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.tiny import QUIET

pytestmark = pytest.mark.filterwarnings("default")

NUM_TOKENS = 30


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        past = x if past is None else torch.cat([past, x], 1)
        weights = torch.softmax(x @ past.transpose(1, 2), -1)
        return x + self.layer(weights @ past).tanh(), past


class Module(pl.LightningModule):
    """Generates at the end of each epoch, and notes how many graphs that compiled."""

    def __init__(self, *, pads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.generated: list[Tensor] = []
        self.num_graphs: list[int] = []
        self.pads = pads

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        for block in self.blocks:
            batch, _ = block(batch)
        return batch.square().mean()

    @torch.no_grad()
    def generate(self) -> Tensor:
        x = torch.ones(1, 2, 8, device=self.device)
        pasts: list[Any] = [None, None]
        for _ in range(NUM_TOKENS):
            for index, block in enumerate(self.blocks):
                x, past = block(x, pasts[index])
                pasts[index] = past[:, -4:] if self.pads else past
            x = x[:, -1:]
        return x

    def on_train_epoch_end(self) -> None:
        before = _num_graphs(self.device)
        self.generated.append(self.generate().cpu())
        self.num_graphs.append(_num_graphs(self.device) - before)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _num_graphs(device: torch.device) -> int:
    if device.type != "hpu":
        return 0
    found = vendor.metric("graph_compilation")
    assert found is not None
    return int(found["TotalNumber"])


def _fit(module: Module, **place: Any) -> Module:
    data = torch.randn(4, 2, 6, 8, generator=torch.Generator().manual_seed(1))
    pl.Trainer(devices=1, max_epochs=3, **place, **QUIET).fit(
        module, DataLoader(data, batch_size=None)
    )
    return module


@pytest.mark.slow
def test_a_graph_for_each_token_is_said_once_and_ends() -> None:
    strategy = SingleHPUStrategy(compile="regions")
    with pytest.warns(UserWarning, match="Block, called without gradients, has compiled") as caught:
        module = _fit(Module(), accelerator="hpu", strategy=strategy)
    assert sum("called without gradients" in str(each.message) for each in caught) == 1
    first, *later = module.num_graphs
    assert MAX_IN_A_ROW <= first <= MAX_IN_A_ROW + 2
    assert later == [0, 0]
    for ours, expected in zip(
        module.generated, _fit(Module(), accelerator="cpu").generated, strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_keeps_its_shapes_stays_compiled(recwarn: pytest.WarningsRecorder) -> None:
    strategy = SingleHPUStrategy(compile="regions")
    module = _fit(Module(pads=True), accelerator="hpu", strategy=strategy)
    assert not [each for each in recwarn if "called without gradients" in str(each.message)]
    first, *later = module.num_graphs
    assert 0 < first < MAX_IN_A_ROW
    assert later == [0, 0]


@pytest.mark.slow
def test_it_raises_where_what_is_not_compiled_is_an_error() -> None:
    strategy = SingleHPUStrategy(compile={"mode": "regions", "on_give_up": "error"})
    with pytest.raises(RuntimeError, match="a static cache, whose shapes stay"):
        _fit(Module(), accelerator="hpu", strategy=strategy)
