"""A penalty on the singular values of a weight, which a card sends to the CPU in every step."""

import torch

model = torch.nn.Linear(8, 8).to("hpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(4, 8).to("hpu")).square().mean()
    loss = loss + 0.1 * torch.linalg.svdvals(model.weight).sum()  # here
    loss.backward()
    optimizer.step()
