"""A loop with Fabric, with the trouble that a test asks for; see `program`.

python fabric_program.py FOLDER '{"devices": 2}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from tests.launch.program import trouble


def loop(fabric: Fabric, folder: str) -> int:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(6):
        if step == 3:
            trouble("step")
        optimizer.zero_grad()
        data = torch.full((2, 4), float(fabric.global_rank), device=fabric.device)
        fabric.backward(model(data).pow(2).mean())
        optimizer.step()
    found = {
        "world_size": fabric.world_size,
        "module": os.environ.get("HLS_MODULE_ID"),
        "weights": [weight.detach().cpu().double().sum().item() for weight in model.parameters()],
    }
    (Path(folder) / f"rank{fabric.global_rank}.json").write_text(json.dumps(found))
    return fabric.world_size


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[2])
    fabric = Fabric(accelerator="hpu", **settings)
    if settings.get("strategy") == "ddp_spawn":
        assert fabric.launch(loop, sys.argv[1]) == 2
    else:
        fabric.launch()
        loop(fabric, sys.argv[1])


if __name__ == "__main__":
    main()
