"""Data that comes from NumPy: float64, which no card computes in."""

import numpy as np
import torch

inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(16, 4)))
targets = inputs.sum(dim=1, keepdim=True)
model = torch.nn.Linear(4, 1, dtype=torch.float64)

optimizer = torch.optim.SGD(model.to("hpu").parameters(), lr=0.1)  # here
for _ in range(2):
    loss = (model(inputs.to("hpu")) - targets.to("hpu")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
