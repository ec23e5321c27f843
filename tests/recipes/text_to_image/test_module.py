"""The recipe's commands on tiny models: training, scores, pictures, checkpoints, and errors."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from PIL import Image

from recipes.common.errors import UserError
from recipes.text_to_image import exporting
from recipes.text_to_image.digits import PAIRS
from recipes.text_to_image.memory import memory_table
from recipes.text_to_image.module import TextToImage
from recipes.text_to_image.parts import load, read_index
from recipes.text_to_image.versions import check_diffusers
from tests.helpers.diffusion import KINDS
from tests.helpers.recipes import quiet_cli
from tests.helpers.trainers import run_trainers
from tests.recipes.text_to_image.conftest import WARNINGS

pytestmark = [
    pytest.mark.filterwarnings(WARNINGS),
    # As `cli.run` does.
    pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning"),
    # diffusers 0.42 with huggingface_hub 1 (configuration_utils.py).
    pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks` argument:UserWarning"),
]
FEW = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1")


@pytest.fixture
def checkpoint(make_cli, tmp_path) -> str:
    """Of three steps on the CPU."""
    cli = make_cli(*FEW, "--trainer.check_val_every_n_epoch=1")
    cli.trainer.fit(cli.model, cli.datamodule)
    metrics = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert 0.5 < metrics["val/loss"] < 2
    assert {"val/agreement", "val/agreement_held_out", "val/distance"} <= set(metrics)
    (section,) = cli.model.report_sections("val")
    assert section.rows[0].goal == "at least 90 %"
    assert section.rows[0].is_met is False
    assert cli.model.references("val/agreement")["real pictures"] > 97
    path = str(tmp_path / "trained.ckpt")
    cli.trainer.save_checkpoint(path)
    return path


def predict(make_cli, *arguments, ckpt_path=None):
    cli = make_cli("--trainer.logger=false", *arguments)
    cli.trainer.predict(cli.model, cli.datamodule, ckpt_path=ckpt_path)
    return cli


def read_levels(path: Path) -> np.ndarray:
    """[H, W, 3], from 0 to 255."""
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), int)


def pictures_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("0*.png"))}


@pytest.mark.slow
def test_what_is_trained_paints_and_is_exported(checkpoint, make_cli, tmp_path, capsys):
    folder = tmp_path / "painted"
    predict(make_cli, f"--model.pictures={folder}", ckpt_path=checkpoint)
    rows = [json.loads(line) for line in (folder / "pictures.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [pair.caption for pair in PAIRS]
    assert rows[7] == {"index": 7, "prompt": "a red seven", "seed": 7, "file": "00007.png"}
    assert len(pictures_of(folder)) == 60
    assert read_levels(folder / "00007.png").shape == (8, 8, 3)
    assert read_levels(folder / "grid.png").shape[1] > 10 * 64
    assert "pictures a second" in capsys.readouterr().out

    exported = tmp_path / "exported"
    assert f"--model.name={exported}" in exporting.export(Path(checkpoint), exported)
    again = tmp_path / "again"
    predict(make_cli, f"--model.name={exported}", f"--model.pictures={again}")
    assert pictures_of(again) == pictures_of(folder)
    with warnings.catch_warnings():
        # It wants Stable Diffusion's settings of a scheduler, and takes them: ours are put back.
        warnings.simplefilter("ignore", FutureWarning)
        pipeline = StableDiffusionPipeline.from_pretrained(exported, vae=None)
    pipeline.scheduler = DDIMScheduler.from_pretrained(exported, subfolder="scheduler")
    made = pipeline(
        "a red seven",
        num_inference_steps=2,
        guidance_scale=1.5,
        generator=torch.Generator().manual_seed(7),
        output_type="latent",
    ).images
    levels = ((made[0] / 2 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0)
    assert np.abs(levels.numpy() - read_levels(folder / "00007.png")).max() <= 1


@pytest.mark.slow
def test_a_checkpoint_of_another_size_is_refused(checkpoint, make_cli):
    cli = make_cli("--model.text_width=32")
    with pytest.raises(UserError, match=r"text_width 16 \(configured: 32\)"):
        cli.trainer.validate(cli.model, cli.datamodule, ckpt_path=checkpoint)


@pytest.mark.slow
def test_the_last_batch_is_trimmed_and_batches_do_not_change_pictures(folders, make_cli, tmp_path):
    def paint(batch_size):
        folder = tmp_path / str(batch_size)
        predict(
            make_cli,
            *(f"--model.name={folders['sd1']}", f"--model.pictures={folder}"),
            *("--data.prompts=[a red seven, a blue zero]", "--data.num_images_per_prompt=2"),
            *(f"--data.eval_batch_size={batch_size}", "--data.negative_prompts=[zero]"),
        )
        assert (folder / "grid.png").is_file()
        return pictures_of(folder)

    together, _ = paint(3), paint(1)
    assert list(together) == [f"{index:05d}.png" for index in range(4)]
    assert len(set(together.values())) == 4
    for name in together:  # a level is 1/255, and rounding may go either way
        levels = [read_levels(tmp_path / str(size) / name) for size in (3, 1)]
        assert np.abs(levels[0] - levels[1]).max() <= 1


def _paint(rank: int, name: str, folder: Path, devices: int) -> None:
    settings = f"--model.name={name}", "--data.prompts=[a red seven, a blue zero, a green one]"
    predict(
        partial(quiet_cli, "text_to_image", folder),
        *(*settings, "--data.eval_batch_size=1", "--model.num_inference_steps=2"),
        *(f"--model.pictures={folder / 'pictures'}", f"--trainer.devices={devices}"),
        *("--model.engine=none", "--trainer.accelerator=hpu"),
    )


@pytest.mark.slow
def test_two_cards_paint_the_pictures_of_one(folders, tmp_path):
    """Three pictures: one card fills its last batch with one that is not kept."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    _paint(0, folders["sd1"], tmp_path / "one", 1)
    run_trainers(_paint, tmp_path, folders["sd1"], tmp_path / "two", 2, num_ranks=2)
    one, two = (tmp_path / each / "pictures" for each in ("one", "two"))
    assert len(pictures_of(one)) == 3
    assert pictures_of(one) == pictures_of(two)
    assert (one / "pictures.jsonl").read_text() == (two / "pictures.jsonl").read_text()
    assert (two / "grid.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["integrations.accelerate", "modeling_utils"])
def test_the_card_needs_no_package_that_is_not_declared(
    place, folders, make_cli, tmp_path, monkeypatch
):
    """transformers would need accelerate to load while the card is torch's device."""
    monkeypatch.setattr(f"transformers.{place}.is_accelerate_available", lambda: False)
    card = "--trainer.accelerator=hpu", "--trainer.devices=1"
    predict(make_cli, f"--model.name={folders['sd1']}", f"--model.pictures={tmp_path / 'x'}", *card)
    assert list((tmp_path / "x").iterdir())


def test_a_published_model_is_for_prediction(folders, make_cli):
    cli = make_cli(f"--model.name={folders['sd1']}", *FEW)
    with pytest.raises(UserError, match="is for `predict`: `fit` trains a new model"):
        cli.trainer.fit(cli.model, cli.datamodule)
    with pytest.raises(UserError, match="`validate` and `test` judge pictures"):
        cli.trainer.validate(cli.model, cli.datamodule)


def test_folders_that_are_no_model_are_refused(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"has no model_index\.json, so it is no model in"):
        TextToImage(name=str(tmp_path))
    flux = tmp_path / "flux"
    flux.mkdir()
    (flux / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(UserError, match="is a FluxPipeline, but this recipe can run"):
        TextToImage(name=str(flux))
    with pytest.raises(UserError, match=r"no/such: its model_index.json could not be had"):
        TextToImage(name="no/such")


def test_weights_that_are_cut_off_or_missing_are_named(folders, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(folders["sd1"], folder)
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UserError, match="its unet could not be read: "):
        load(str(folder), torch.float32)
    shutil.rmtree(folder / "text_encoder")
    with pytest.raises(UserError, match="its text_encoder could not be read: "):
        load(str(folder), torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_known_from_the_configurations_alone(kind, folders, tmp_path):
    folder = tmp_path / kind
    shutil.copytree(folders[kind], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    index = read_index(str(folder))
    found = memory_table(str(folder), index, torch.bfloat16, batch_size=3, height=24, width=32)
    parts, _ = load(folders[kind], torch.bfloat16)
    weights = {id(each): each.nbytes for each in parts.parameters()}
    latents = 3 * 4 * 12 * 16 * 4
    assert found.total_bytes == sum(weights.values()) + latents
    assert found.rows["latents"] == latents


def test_a_card_that_is_too_small_is_told_before_anything_is_loaded(
    folders, make_cli, tmp_path, monkeypatch
):
    folder = tmp_path / "model"
    shutil.copytree(folders["sd1"], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = f"--model.name={folder}", "--data.prompts=[a red seven]"
    with monkeypatch.context() as patch:
        patch.setattr("recipes.text_to_image.module.card_memory_bytes", lambda: 100_000)
        with pytest.raises(UserError, match=r"would have to hold 0\.00 GiB and has 0\.00"):
            predict(make_cli, *settings, "--trainer.accelerator=hpu")
    with pytest.raises(UserError, match="its text_encoder could not be read: "):
        predict(make_cli, *settings, "--trainer.accelerator=hpu")


def test_a_missing_weight_is_not_made_up(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lacking"
    shutil.copytree(folders["sd1"], folder)
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights.pop("decoder.conv_out.bias")
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(UserError, match="its vae "):
        load(str(folder), torch.float32)


def test_a_diffusers_that_is_missing_or_too_old_is_said(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.34.1")
    with pytest.raises(UserError, match=r"needs diffusers 0.35 or later, but 0.34.1 is installed"):
        check_diffusers()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs diffusers, .*\[recipes,diffusion\]"):
        check_diffusers()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("--data.caption_dropout=1", "data.caption_dropout=1.0 is not between 0 and 1"),
        ("--data.validation_share=0.5", "data.validation_share=0.5 is not between 0 and 0.5"),
        ("--data.num_generated=-1", "data.num_generated=-1 must be 0 or more"),
        ("--data.batch_size=0", "data.batch_size=0 must be at least 1"),
        ("--data.prompts=[]", "data.prompts is an empty list"),
    ],
)
def test_wrong_settings_are_refused(setting, said, make_cli):
    with pytest.raises(UserError, match=said):
        make_cli(setting)
