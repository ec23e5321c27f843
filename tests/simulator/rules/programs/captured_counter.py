"""Lazy mode: a captured forward that counts its calls, which a replay does not run."""

import habana_frameworks.torch as ht  # noqa: TID251 (a user's program)
import torch


class Annealed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return self.linear(x) / self.num_calls


model = ht.hpu.wrap_in_hpu_graph(Annealed().to("hpu").eval())
with torch.no_grad():
    for _ in range(3):
        model(torch.ones(2, 4).to("hpu"))  # here
