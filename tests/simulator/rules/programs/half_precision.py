"""Half precision on a card of the first generation."""

import torch

model = torch.nn.Linear(4, 2).to("hpu")
model.half()  # here
model(torch.randn(3, 4).to("hpu", torch.float16)).sum().backward()
