"""python loop.py STRATEGY NUM_CARDS [FOLDER]: a loop of Fabric; prints the peak, saves if told."""

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

NUM_STEPS = 3
ACCUMULATED = 2


def shard(model, mesh):
    """As FSDP2 does, layer by layer."""
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh["data_parallel"])
    return model


STRATEGIES = {
    "fsdp": lambda: FSDPStrategy(auto_wrap_policy={nn.Linear}),
    "fsdp2": lambda: ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1),
    "zero2": lambda: "deepspeed_stage_2",
    "zero3": lambda: "deepspeed_stage_3",
}


@torch.no_grad()
def evaluate(fabric, model, loader):
    """The mean of all outputs, which are gathered."""
    model.eval()
    outputs = torch.cat([model(batch) for batch in loader])
    return fabric.all_reduce(outputs.square().mean(), reduce_op="mean").item()


def main(name, num_cards, folder=None):
    fabric = Fabric(
        accelerator="hpu", devices=int(num_cards), strategy=STRATEGIES.get(name, lambda: name)()
    )
    fabric.launch()
    layers = (nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6))
    model = nn.Sequential(*layers)
    if name in ("fsdp", "fsdp2"):
        model = fabric.setup(model)
        optimizer = fabric.setup_optimizers(torch.optim.Adam(model.parameters()))
    else:
        model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    data = torch.randn(2 * ACCUMULATED * 16 * int(num_cards), 512)
    train, val = fabric.setup_dataloaders(DataLoader(data, 16), DataLoader(data[:256], 16))
    num_steps = 0
    for epoch in range(NUM_STEPS - 1):
        model.train()
        for number, batch in enumerate(train):
            is_accumulating = name != "zero3" and number % ACCUMULATED < ACCUMULATED - 1
            with fabric.no_backward_sync(model, is_accumulating):
                loss = model(batch).square().mean()
                fabric.backward(loss)
            if not is_accumulating:
                if not name.startswith("zero"):
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
                num_steps += 1
        fabric.print(f"epoch {epoch}: loss {loss.item()}")
        if folder is not None:
            fabric.save(f"{folder}/of-epoch", {"model": model, "epoch": epoch})
    found = evaluate(fabric, model, val)
    fabric.print(f"{num_steps} steps, {found}")
    peak = torch.hpu.memory_stats()["MaxInUse"]
    if fabric.is_global_zero:
        print("PEAK", peak, flush=True)
    if folder is not None:
        fabric.save(f"{folder}/full", {"model": model, "optimizer": optimizer})
        if not name.startswith("zero"):
            fabric.save(f"{folder}/weights", {"model": model})


if __name__ == "__main__":
    main(*sys.argv[1:])
