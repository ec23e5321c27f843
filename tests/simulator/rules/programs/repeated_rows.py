"""Rows repeated by counts that are on the card."""

import torch

rows = torch.randn(3, 4).to("hpu").requires_grad_()
counts = torch.tensor([2, 1, 3]).to("hpu")
repeated = rows.repeat_interleave(counts, dim=0)  # here
repeated.sum().backward()
