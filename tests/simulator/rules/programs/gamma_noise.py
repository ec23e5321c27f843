"""Noise of a distribution that a card cannot draw from."""

import torch

model = torch.nn.Linear(4, 4).to("hpu")
concentration = torch.full((4,), 2.0).to("hpu")
noise = torch.distributions.Gamma(concentration, 1.0).sample()  # here
(model(torch.randn(2, 4).to("hpu")) * noise).sum().backward()
