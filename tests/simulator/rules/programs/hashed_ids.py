"""Lazy mode: identifiers of 64 bits, of which a card would keep 32."""

import torch

users = torch.tensor([5, 123_456])
hashed = users.to("hpu") * 2_654_435_761  # here
buckets = hashed % 1000
embedding = torch.nn.Embedding(1000, 4).to("hpu")
embedding(buckets).sum().backward()
