"""Replaces layers of a model by layers of which each card computes a part.

Their weights are DTensors, so that code that saves, loads or moves the model knows that they are
parts. They compute with the local parts alone. No operator of DTensor runs, and a step has plain
operators and collectives, which a graph can capture and a compiler can trace.

N cards, B batch, T tokens, I inputs and O outputs of a layer, V words, v words of a card, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F  # noqa: N812

from .plans import Layout, Style


class Part(nn.Module):
    """This card's part of a layer."""

    def __init__(
        self,
        layer: nn.Module,
        layouts: Mapping[str, Layout],
        mesh: DeviceMesh,
        made: dict[nn.Parameter, nn.Parameter],
    ) -> None:
        """Takes over a layer's weights.

        Args:
            layer: The whole layer.
            layouts: How its weights are cut, by name; weights that are not named stay whole.
            mesh: The mesh of the cards, with one axis.
            made: The parts of weights that were cut before, such as tied ones; this adds its own.
        """
        super().__init__()
        self.layouts = dict(layouts)
        self.mesh = mesh
        self.training = layer.training
        for name, parameter in layer._parameters.items():
            if parameter is not None and name in layouts:
                if parameter not in made:
                    made[parameter] = part_of(parameter, layouts[name], mesh)
                parameter = made[parameter]
            self.register_parameter(name, parameter)

    def part(self, name: str) -> Tensor | None:
        """Returns this card's part of a weight, or a whole weight; None if there is none."""
        parameter = self._parameters.get(name)
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def add_up(self, partial: Tensor) -> Tensor:
        """Adds a tensor up over the cards, in place, and returns it."""
        if self.mesh.size() > 1:
            dist.all_reduce(partial, group=self.mesh.get_group())
        return partial

    def extra_repr(self) -> str:
        """Returns what `print(model)` shows of the layer."""
        shapes = {name: tuple(each.shape) for name, each in self.named_parameters()}
        return f"{shapes}, of {self.mesh.size()} cards"


class ColumnPart(Part):
    """Computes some of the outputs of a linear layer, (B, T, I) to (B, T, O / N).

    A `Conv1D` of transformers keeps its weight transposed. If a weight holds several layers in a
    row, as GPT-2's queries, keys and values, a card has a part of each of them.
    """

    def __init__(self, layer: nn.Module, *args: object, **kwargs: object) -> None:
        super().__init__(layer, *args, **kwargs)  # type: ignore[arg-type]
        self.is_transposed = not isinstance(layer, nn.Linear)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs of this card, from all inputs."""
        weight, bias = self.part("weight"), self.part("bias")
        assert weight is not None
        if self.is_transposed:
            weight = weight.flatten(1).t()
        return F.linear(x, weight, None if bias is None else bias.flatten())


class RowPart(ColumnPart):
    """Computes a linear layer from some of its inputs, (B, T, I / N) to (B, T, O).

    It takes one all-reduce.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Returns all outputs, from this card's inputs, added up over the cards."""
        weight, bias = self.part("weight"), self.part("bias")
        assert weight is not None
        out = self.add_up(F.linear(x, weight.t() if self.is_transposed else weight))
        return out if bias is None else out + bias


class HeadPart(ColumnPart):
    """Computes the output head from some of the vocabulary, (B, T, D) to (B, T, V).

    It takes one all-gather.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of all words, the same on all cards."""
        logits = super().forward(x)
        if self.mesh.size() == 1:
            return logits
        num_words = self.layouts["weight"].shape[0]
        most = self.layouts["weight"].span(self.mesh.size(), 0)[1]
        # An all-gather takes equal parts, and the last cards may have fewer words.
        if most * self.mesh.size() > num_words:
            logits = F.pad(logits, (0, most - logits.shape[-1]))
        batch_size, *rest = logits.shape
        gathered = logits.new_empty(self.mesh.size() * batch_size, *rest)
        dist.all_gather_into_tensor(gathered, logits.contiguous(), group=self.mesh.get_group())
        by_card = gathered.view(self.mesh.size(), batch_size, *rest)
        return by_card.movedim(0, -2).flatten(-2)[..., :num_words]


class EmbeddingPart(Part):
    """Computes an embedding from some of the vocabulary, (B, T) to (B, T, D).

    It takes one all-reduce.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of this card's words, and zeros for others, added up over the cards."""
        weight = self.part("weight")
        assert weight is not None
        start, num_words = self.layouts["weight"].span(self.mesh.size(), self.mesh.get_local_rank())
        local = ids - start
        is_here = (local >= 0) & (local < num_words)
        rows = F.embedding(local.clamp(0, num_words - 1), weight)
        return self.add_up(rows.masked_fill(~is_here.unsqueeze(-1), 0))


PARTS: dict[Style, type[Part]] = {
    "columns": ColumnPart,
    "fused columns": ColumnPart,
    "rows": RowPart,
    "head": HeadPart,
    "vocabulary": EmbeddingPart,
}
"""The class that computes a layer, by its style."""


def part_of(whole: Tensor, layout: Layout, mesh: DeviceMesh) -> nn.Parameter:
    """Returns this card's part of a weight, on the card unless the weight is on meta."""
    num_cards, rank = mesh.size(), mesh.get_local_rank()
    if whole.is_meta:
        part = whole.new_empty(layout.part_shape(num_cards, rank))
    else:
        part = layout.part(whole.detach(), num_cards, rank).to(mesh.device_type, copy=True)
    return as_parameter(part.contiguous(), layout, mesh)


def as_parameter(part: Tensor, layout: Layout, mesh: DeviceMesh) -> nn.Parameter:
    """Returns a weight of which this card has `part`."""
    shape = torch.Size(layout.shape)
    stride = torch.empty(shape, device="meta").stride()
    placements = (Shard(layout.dim),)
    weight = DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
    return nn.Parameter(weight, requires_grad=False)
