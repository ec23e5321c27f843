"""Weights of a plan have no values, wherever the program makes them; its data have."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_gaudi.tools.plan.model_changes import (
    EmptyWeights,
    from_configuration,
    from_diffusers_configuration,
)
from lightning_gaudi.tools.plan.request import Request
from tests.tools.plan.rehearsing import rehearse

SCRIPT = """
import lightning.pytorch as pl, torch
from torch import nn
from torch.utils.data import DataLoader


def is_filled():
    return bool(torch.zeros(1024, 1024, device="cpu").fill_(1).any())


class Data(pl.LightningDataModule):
    def setup(self, stage):
        assert is_filled(), "data"

    def train_dataloader(self):
        return DataLoader(torch.randn(64, 1024), batch_size=4)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        assert not is_filled(), "__init__"
        self.first = nn.Linear(1024, 1024)

    def setup(self, stage):
        assert not is_filled(), "setup"
        self.second = nn.Linear(1024, 1024)

    def configure_model(self):
        assert not is_filled(), "configure_model"
        with torch.device("cpu"):  # Lightning has the card be torch's device here
            self.third = nn.Linear(1024, 1024)

    def training_step(self, batch, batch_idx):
        assert is_filled(), "training_step"
        return self.third(self.second(self.first(batch))).sum()

    def configure_optimizers(self):
        assert is_filled(), "configure_optimizers"
        return torch.optim.AdamW(self.parameters())


pl.Trainer().fit(Model(), datamodule=Data())
"""


@pytest.mark.slow
def test_weights_are_made_without_values_in_the_hooks_of_a_module(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = rehearse(tmp_path, (sys.executable, str(script)), Request())
    num_bytes = 3 * 4 * (1024 * 1024 + 1024)
    assert found.categories["weights"] == num_bytes
    assert found.host["weights, as they are made"] == num_bytes


def test_a_process_with_more_weights_than_the_host_has_may_fork() -> None:
    """Llama-3-8B in float32 has 32 GB; here are 137."""
    with EmptyWeights():
        layer = torch.nn.Linear(2**17, 2**18)
    assert layer.weight.shape == (2**18, 2**17)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.requires_grad
    if (pid := os.fork()) == 0:
        os._exit(0 if layer.weight[-1, -1].item() == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ((2, 3), {}),
        (((1024, 1024),), {"dtype": torch.int64}),
        ((1024, 1024), {"dtype": torch.bfloat16, "requires_grad": True}),
        ((1, 4, 512, 512), {"memory_format": torch.channels_last}),
        ((1024, 1024), {"device": "meta"}),
        ((1024, 1024), {"device": torch.device("hpu")}),
    ],
)
def test_empty_tensors_are_what_they_would_be(arguments: Any, given: dict[str, Any]) -> None:
    expected = torch.empty(*arguments, **given)
    with EmptyWeights():
        found = torch.empty(*arguments, **given)
    for name in ("shape", "dtype", "device", "requires_grad"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_a_folder_with_a_configuration_alone_makes_a_model(
    dtype: str | None, tmp_path: Path
) -> None:
    given = {} if dtype is None else {"dtype": dtype}
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20)
    config.save_pretrained(tmp_path)

    def load(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    def make(name: object, **more: object) -> Any:
        return from_configuration(load, GPT2LMHeadModel, name, **given, **more)

    for found in (
        make(tmp_path, n_layer=2, low_cpu_mem_usage=True, revision="main"),
        make(tmp_path, config=GPT2Config(**{**config.to_dict(), "n_layer": 2}), revision="main"),
        make(tmp_path, n_layer=2, output_loading_info=True)[0],
    ):
        assert isinstance(found, GPT2LMHeadModel)
        assert len(found.transformer.h) == 2
        assert found.dtype == getattr(torch, dtype or "float32")
        assert not found.training
    with pytest.raises(AssertionError, match="weights were read"):
        make(tmp_path, device_map="auto")


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_a_folder_with_a_configuration_alone_makes_a_model_of_diffusers(
    dtype: torch.dtype | None, tmp_path: Path
) -> None:
    from diffusers import UNet2DModel

    sizes = {"block_out_channels": (32, 32), "layers_per_block": 1, "sample_size": 8}
    blocks = {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2}
    UNet2DModel(**sizes, **blocks).save_config(tmp_path / "unet")

    def load(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    def make(**more: object) -> Any:
        given = {"subfolder": "unet", "torch_dtype": dtype, "use_safetensors": True}
        return from_diffusers_configuration(load, UNet2DModel, tmp_path, **given, **more)

    found = make(sample_size=16)
    assert isinstance(found, UNet2DModel)
    assert found.config.sample_size == 16
    assert found.dtype == (dtype or torch.float32)
    assert torch.get_default_dtype() == torch.float32
    assert not found.training
    with pytest.raises(AssertionError, match="weights were read"):
        make(device_map="auto")
    with pytest.raises(OSError, match="nothing-there"):
        from_diffusers_configuration(load, UNet2DModel, str(tmp_path / "nothing-there"))


DIFFUSION = """
import sys
import lightning.pytorch as pl
import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader


class Diffusion(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.unet = UNet2DModel.from_pretrained(sys.argv[1], subfolder="unet").train()
        self.scheduler = DDPMScheduler()

    def training_step(self, batch, batch_idx):
        noise = torch.randn_like(batch)
        steps = torch.randint(1000, (len(batch),), device=self.device)
        noisy = self.scheduler.add_noise(batch, noise, steps)
        return torch.nn.functional.mse_loss(self.unet(noisy, steps).sample, noise)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def on_fit_end(self):
        self.unet.save_pretrained("trained")


loader = DataLoader(torch.randn(64, 3, 8, 8), 4)
pl.Trainer(accelerator="hpu", devices=1, max_epochs=1).fit(Diffusion(), loader)
"""


@pytest.mark.slow
def test_a_model_of_diffusers_needs_no_weights(tmp_path: Path) -> None:
    from diffusers import UNet2DModel

    sizes = {"block_out_channels": (32, 32), "layers_per_block": 1, "sample_size": 8}
    blocks = {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2}
    model = UNet2DModel(**sizes, **blocks)
    model.save_config(tmp_path / "unet")
    script = tmp_path / "train.py"
    script.write_text(DIFFUSION)
    found = rehearse(tmp_path, (sys.executable, str(script), str(tmp_path)), Request())
    assert found.categories["weights"] >= sum(each.nbytes for each in model.parameters())
    assert not (tmp_path / "trained").exists()
