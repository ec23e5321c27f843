"""Lazy mode: a captured forward reads a mask that is replaced later."""

import habana_frameworks.torch as ht  # noqa: TID251 (a user's program)
import torch


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.mask = torch.ones(4, device="hpu")

    def forward(self, x):
        return self.linear(x) * self.mask


model = ht.hpu.wrap_in_hpu_graph(Masked().to("hpu").eval())
inputs = torch.ones(2, 4).to("hpu")
with torch.no_grad():
    model(inputs)
    model.mask = torch.zeros(4, device="hpu")
    model(inputs)  # here
