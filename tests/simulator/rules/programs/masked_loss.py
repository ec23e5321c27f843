"""A loss over the tokens that are not padding, selected by a mask."""

import torch
from torch.nn import functional

model = torch.nn.Linear(8, 5).to("hpu")
tokens = torch.randn(4, 6, 8).to("hpu")
labels = torch.tensor([[1, 2, 3, -100, -100, -100]] * 4).to("hpu")

logits = model(tokens)
keep = labels != -100
loss = functional.cross_entropy(logits[keep], labels.masked_fill(~keep, 0)[keep])  # here
loss.backward()
