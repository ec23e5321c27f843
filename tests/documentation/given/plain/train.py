import os

import torch
import torch.distributed as dist

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(
    "hpu"
)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("hccl")
    model = torch.nn.parallel.DistributedDataParallel(model)
data = torch.utils.data.DataLoader(torch.randn(256, 16), batch_size=32)
optimizer = torch.optim.AdamW(model.parameters())
for x in data:
    loss = model(x.to("hpu")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
