"""What of a model is compiled by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_gaudi.compilation.model import mentions_double_backward
from lightning_gaudi.compilation.regions import find_regions, has_compiled_parts


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Block()
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.loss = nn.CrossEntropyLoss()


def test_blocks_are_regions_and_so_is_what_stands_beside_them() -> None:
    model = Model()
    assert find_regions(model) == [model.embeddings, *model.layers]


def test_a_last_block_of_a_derived_class_is_a_block() -> None:
    class Last(Block):
        pass

    layers = nn.ModuleList([Block(), Last()])
    assert find_regions(nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 4)})) == [*layers]


def test_a_model_without_blocks_is_one_region_or_its_largest_parts() -> None:
    model = nn.ModuleDict({"a": Block(), "b": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))})
    whole = Block()
    assert find_regions(whole) == [whole]
    assert find_regions(whole, with_root=False) == [whole.net]
    assert find_regions(model) == [model["a"], model["b"]]


def test_blocks_of_blocks_are_the_outer_ones() -> None:
    outer = nn.ModuleList([Model(), Model()])
    assert find_regions(outer) == [*outer]


def test_a_module_of_two_names_is_one_region() -> None:
    block = Block()
    assert find_regions(nn.ModuleList([block, block])) == [block]


def test_named_classes_are_the_blocks() -> None:
    model = Model()
    assert find_regions(nn.ModuleList([model]), ["Model"]) == [model]
    with pytest.raises(ValueError, match=r"the model has no 'Layer'. It has Block, Model"):
        find_regions(model, ["Layer"])


def test_what_the_compiler_leaves_alone_is_in_no_region() -> None:
    recurrent = nn.ModuleDict({"rnn": nn.LSTM(4, 4), "head": Block()})
    assert find_regions(recurrent) == [recurrent["head"]]


@pytest.mark.filterwarnings("default")
def test_a_model_that_its_user_compiled_is_seen() -> None:
    model = Model()
    assert not has_compiled_parts(model)
    model.layers[1].compile()
    assert has_compiled_parts(model)
    assert has_compiled_parts(nn.ModuleList([torch.compile(Block())]))


def _penalty(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(x.sum(), x, create_graph=True)[0]


class Penalized(Block):
    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return _penalty(self.net(x))


def test_gradients_of_gradients_are_found_in_what_a_method_calls() -> None:
    assert mentions_double_backward(Model()) is None
    assert mentions_double_backward(nn.ModuleList([Penalized()])) == "Penalized.loss"
