"""A loss on the spectrum of a signal: complex numbers."""

import torch

model = torch.nn.Linear(32, 32).to("hpu")
signal = torch.randn(4, 32).to("hpu")

spectrum = torch.fft.rfft(model(signal))  # here
loss = spectrum.abs().mean()
loss.backward()
