"""A card that is full says what was asked, used and the limit, and what holds the memory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.process import run

NUM_WEIGHTS = 1024 * 1024  # 4 MiB in fp32; Adam holds twice as much

IMPORTS = """
import lightning.pytorch as pl, torch
from torch.utils.data import DataLoader

"""

MAIN = """
if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices={devices}, max_epochs=1, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False,
                         strategy="{strategy}")
    trainer.fit(Model(), DataLoader(torch.randn({samples}, {width}), batch_size={batch_size}))
"""

FULL = f"""
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, {NUM_WEIGHTS // 1024}, bias=False)

    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            held = torch.empty(32 * 2**20, dtype=torch.uint8, device="hpu")
            torch.empty(200 * 2**30, dtype=torch.uint8, device="hpu")
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

"""


@pytest.mark.parametrize(
    ("devices", "strategy", "weights_mib", "state_mib", "gathered_mib"),
    [(1, "auto", 4, 8, 0), (2, "ddp", 4, 8, 0), (2, "fsdp", 2, 4, 4)],
)
def test_the_error_says_what_holds_the_memory(
    devices: int,
    strategy: str,
    weights_mib: int,
    state_mib: int,
    gathered_mib: int,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    script = tmp_path / "script.py"
    main = MAIN.format(devices=devices, strategy=strategy, samples=64, width=1024, batch_size=4)
    script.write_text(IMPORTS + FULL + main)
    env = {"LIGHTNING_GAUDI_SIMULATE": "2"}
    result = run([sys.executable, str(script)], env=env, timeout=300, check=False)
    assert result.returncode == 1, result.stderr
    asked = r"tried to allocate 200\.00 GiB; [\d.]+ MiB of 94\.62 GiB in use"
    assert re.search(asked, result.stderr), result.stderr
    held = re.search(
        r"out of memory: the card held ([\d.]+) MiB of 94\.62 GiB \(at most .*?\): "
        r"(weights .* MiB)",
        result.stderr,
    )
    assert held is not None, result.stderr
    parts = dict(re.findall(r"(\w[a-z ]+) ([\d.]+) MiB", held[2]))
    found = {name: float(size) for name, size in parts.items()}
    # In FSDP's forward the weights are gathered beside the shard; all else is in shards.
    assert found["weights"] == pytest.approx(weights_mib, rel=0.1)
    assert found["optimizer state"] == pytest.approx(state_mib, rel=0.1)
    assert found.get("gathered weights", 0) == pytest.approx(gathered_mib, rel=0.1)
    assert found.get("gradients", 0) <= state_mib / 2 * 1.1
    assert found["activations and the rest"] >= 32
    assert float(held[1]) == pytest.approx(sum(found.values()), abs=0.1)
    measured(f"{devices} cards, {strategy}: {held[0].partition('): ')[2]}")


FITS = """
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(4))
        )

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

"""

PRINTED = """
    if trainer.is_global_zero:
        print("PEAK", torch.hpu.memory_stats()["MaxInUse"])
"""


@pytest.mark.parametrize(("devices", "strategy"), [(1, "auto"), (2, "ddp"), (2, "fsdp")])
def test_a_plan_says_beforehand_what_it_will_take(
    devices: int, strategy: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    script = tmp_path / "script.py"
    main = MAIN.format(devices=devices, strategy=strategy, samples=8192, width=512, batch_size=1024)
    script.write_text(IMPORTS + FITS + main + PRINTED)
    program = [sys.executable, str(script)]
    result = run(program, env={"LIGHTNING_GAUDI_SIMULATE": "2"}, timeout=300)
    actual = int(re.findall(r"PEAK (\d+)", result.stdout)[0])
    options = ["--json", "--no-changes", "--cards", "gaudi2", "--devices", str(devices)]
    command = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "plan",
        *options,
        "--",
        *program,
    ]
    (found,) = json.loads(run(command, timeout=300).stdout)
    rehearsed = found["rehearsed"]
    planned = max(rehearsed["peak_bytes"], rehearsed["setup_bytes"])
    assert planned == pytest.approx(actual, rel=0.1)
    measured(
        f"{devices} cards, {strategy}: planned {planned / 2**20:.2f} MiB, "
        f"took {actual / 2**20:.2f} MiB"
    )
