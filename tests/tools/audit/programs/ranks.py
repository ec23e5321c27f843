"""A loop of two ranks or more that reads its loss each step, for whatever starts it."""

import os
import sys

import habana_frameworks.torch.distributed.hccl  # noqa: F401, TID251 (as users write it)
import torch
from torch import nn

# What mpirun tells, in the words of torchrun, which accelerate and deepspeed use, too.
for name, of_mpirun in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
    if (value := os.environ.get(f"OMPI_COMM_WORLD_{of_mpirun}")) is not None:
        os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", sys.argv[1])
torch.distributed.init_process_group("hccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to("hpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    loss = model(torch.ones(2, 4, device="hpu")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()  # item-waits
print("ran to its end")
