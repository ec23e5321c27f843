"""Has the LightningModule, which trains a model that paints digits, or runs a published model.

Shapes: B pictures, C channels, H x W pixels, T tokens of a caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi.inference import (
    Engine,
    LatencyReport,
    Stopwatch,
    card_memory_bytes,
    has_values,
    make_scheduler,
)
from recipes.common.errors import UserError
from recipes.common.folders import prediction_path
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Section, section, table
from recipes.common.training import SPLITS, RecipeModule
from recipes.text_to_image import scratch
from recipes.text_to_image.data import TextToImageData
from recipes.text_to_image.digits import SIZE
from recipes.text_to_image.gallery import Gallery
from recipes.text_to_image.judge import SCORES, means
from recipes.text_to_image.memory import check_memory, memory_table
from recipes.text_to_image.painting import Painter, PaintingSettings
from recipes.text_to_image.parts import Loaded, Parts, load, read_index
from recipes.text_to_image.requests import Request
from recipes.text_to_image.scoring import judge_pictures, judged_section, real_scores

_FOLDER = "pictures"
_SIZES = ("unet_widths", "unet_layers", "text_width", "text_layers", "text_heads")
_NOT_OF_THE_MODEL = (*PaintingSettings.__dataclass_fields__, "num_warmup_batches", "pictures")


class TextToImage(RecipeModule):
    """Trains a small model of coloured digits, or paints with a Stable Diffusion (1, 2, XL).

    Nothing in a training step waits for the device, and all batches have one shape. A published
    model is for `predict`; the safety checker of Stable Diffusion 1 is not applied.

    Args:
        name: name of a published model (CompVis/stable-diffusion-v1-4, ...), or a folder in
            diffusers' layout, as `export` writes one; None makes a new model of these sizes:
        unet_widths: channels of the UNet's levels; each further level has half the pixels a side.
        unet_layers: blocks of a level.
        text_width: width of the text encoder.
        text_layers: number of layers of the text encoder.
        text_heads: number of attention heads of the text encoder.
        optimizer: auto (AdamW: the vendor's kernel on an HPU that has all of each weight, torch's
            elsewhere), adamw or lamb (torch's), fused_adamw or fused_lamb (the vendor's kernels
            for hpu; an error elsewhere).
        learning_rate: the learning rate at its peak.
        schedule: schedule of the learning rate: linear, cosine, polynomial or constant.
        warmup_steps: steps of increase to the peak; below 1, a share of the run.
        weight_decay: weight decay of all weights but biases and norms.
        betas: the optimizer's betas.
        epsilon: the optimizer's epsilon, which is added to the denominator of its step.
        max_grad_norm: for lamb and fused_lamb; the others take `trainer.gradient_clip_val`.
        scheduler: scheduler of denoising: ddim, ddpm, dpm++, euler, euler_ancestral, heun, lms or
            pndm; None for the model's own.
        num_inference_steps: number of steps of denoising.
        guidance: scale of classifier-free guidance; 1 computes no picture without a prompt, and
            ignores negative prompts.
        height: height of the pictures, in pixels; None for the model's default.
        width: likewise.
        engine: how the UNet is run: auto, graph (HPU graphs; lazy mode), compile (eager mode) or
            none.
        num_warmup_batches: first batches of `predict`, which compile and are not measured.
        pictures: the folder that `predict` writes; None writes to `pictures` in the folder of the
            checkpoint's run.

    Raises:
        UserError: The model cannot be read, or is of another kind.
    """

    validation_score = "val/agreement"
    samples = "pictures"

    def __init__(
        self,
        name: str | None = None,
        unet_widths: Sequence[int] = (32, 64),
        unet_layers: int = 1,
        text_width: int = 64,
        text_layers: int = 1,
        text_heads: int = 2,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 2e-3,
        schedule: Schedule = "linear",
        warmup_steps: float = 0.05,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        epsilon: float = EPSILON,
        max_grad_norm: float | None = 1.0,
        scheduler: str | None = None,
        num_inference_steps: int = 15,
        guidance: float = 1.5,
        height: int | None = None,
        width: int | None = None,
        engine: Engine = "auto",
        num_warmup_batches: int = 1,
        pictures: str | None = None,
    ) -> None:
        super().__init__()
        self.painting = PaintingSettings(
            scheduler, num_inference_steps, guidance, height, width, engine
        )
        # How and where to paint is no property of the model, so a checkpoint must not set it.
        self.save_hyperparameters(ignore=_NOT_OF_THE_MODEL)
        self._pictures, self._num_warmup_batches = pictures, num_warmup_batches
        self.loaded: Loaded | None = None
        if name is None:
            self._make()
        else:
            self._index = read_index(name)
        self._painter: Painter | None = None
        self._stopwatch: Stopwatch | None = None
        self._painted: list[tuple[list[Request], Tensor]] = []

    def configure_model(self) -> None:
        """Loads a published model, in the dtype of `trainer.precision`."""
        if self.loaded is None:
            name, dtype = self.hparams["name"], torch.get_default_dtype()
            self._check_memory(name, dtype)
            self.model, self.loaded = load(name, dtype, self._index)  # type: ignore[assignment]

    def setup(self, stage: str) -> None:
        """Refuses to train a published model."""
        name = self.hparams["name"]
        if stage == "fit" and name is not None:
            raise UserError(
                f"model.name={name} is for `predict`: `fit` trains a new model of the digits. "
                "Leave model.name out."
            )

    def forward(self, batch: Mapping[str, Tensor], scores: bool = False) -> Tensor:
        """Returns the mean loss; for scores the summed loss of real pictures, and their number.

        The loss of a picture is the mean squared error of the noise that the UNet predicts. Scores
        are float32 [2].
        """
        signal = self.signal[batch["timesteps"]][:, None, None, None]
        noise = batch["noise"]
        noisy = signal.sqrt() * batch["pictures"] + (1 - signal).sqrt() * noise
        captions = self.model.text_encoders[0](input_ids=batch["input_ids"])[0]
        told = self.model.unet(noisy, batch["timesteps"], captions, return_dict=False)[0]
        # Under autocast a Gaudi would compute the mean in bfloat16.
        with torch.autocast(told.device.type, enabled=False):
            losses = F.mse_loss(told.float(), noise.float(), reduction="none").mean((1, 2, 3))
            if scores:
                is_real = batch["is_real"].float()
                return torch.stack(((losses * is_real).sum(), is_real.sum()))
            return losses.mean()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return {"loss": self(batch)}

    def on_validation_epoch_start(self) -> None:
        self._check_paints_digits()
        super().on_validation_epoch_start()
        self._painted, self._painter = [], self._make_painter()

    def validation_step(
        self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Computes the loss of real pictures, or paints the captions of the second loader."""
        if dataloader_idx == 0:
            super().validation_step(batch, batch_idx)
        else:
            assert self._painter is not None
            pictures = self._painter.paint(batch["requests"])
            self._painted.append((_real(batch), pictures))

    def on_predict_start(self) -> None:
        """Prepares the model to paint, and warns of prompts that are longer than it can read."""
        self._painter = self._make_painter()
        self._painter.check_lengths(self._data().requests)
        self._stopwatch = Stopwatch(self.device, self._num_warmup_batches, "pictures")
        self._gallery = Gallery(prediction_path(self.trainer, _FOLDER, self._pictures))

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[int]:
        """Paints and writes the pictures; returns their numbers."""
        assert self._painter is not None
        assert self._stopwatch is not None
        requests = _real(batch)
        with self._stopwatch.call(len(requests)):
            pictures = self._painter.paint(batch["requests"])
        if has_values():  # a plan leaves no pictures behind
            self._gallery.hang(requests, pictures[: len(requests)].cpu().numpy())
        return [each.index for each in requests]

    def on_predict_epoch_end(self) -> None:
        """Lists the pictures of all cards, and puts them on a grid."""
        assert self._painter is not None
        grid = self._gallery.close(self.trainer, self._data().requests)
        if grid is not None:
            rows = [("grid", str(grid)), *self._painter.description, *self._pace()]
            print(table([section("Pictures", rows)]), flush=True)

    def figures(self) -> dict[str, float]:
        """Returns what `predict` measured, by the names of published figures."""
        report = self._latency()
        return {} if report is None else {"seconds_per_picture": 1 / report.items_per_second}

    def report_sections(self, stage: str) -> list[Section]:
        """Returns what a classifier recognizes in the pictures, and in real ones."""
        metrics, data = self.trainer.callback_metrics, self._data()
        found = {
            name: float(metrics[f"{stage}/{name}"])
            for name in SCORES
            if f"{stage}/{name}" in metrics
        }
        return judged_section(found, data, SPLITS[stage]) if found else []

    def references(self, name: str) -> dict[str, float]:
        """Returns the classifier's score of real pictures, the best that can be expected."""
        if name != self.validation_score:
            return {}
        return {"real pictures": real_scores(self._data(), "validation")["agreement"]}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds nothing, since the hyperparameters say what the model is."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the weights of another model before any are loaded."""
        theirs, ours = checkpoint.get("hyper_parameters", {}), self.hparams
        sizes = [name for name in _SIZES if name in theirs and _differ(theirs[name], ours[name])]
        if sizes:
            told = ", ".join(f"{each} {theirs[each]} (configured: {ours[each]})" for each in sizes)
            raise UserError(
                f"The checkpoint holds another model than the one that is configured: {told}. "
                "Start with the settings of the run that wrote it (config.yaml in its folder)."
            )

    def log_evaluation(self, stage: str) -> None:
        """Logs the loss, and what the classifier recognizes in the pictures of all ranks."""
        loss, number = self.read_totals()
        self._painter = None
        self.log_on_host({f"{stage}/loss": loss / max(number, 1.0)}, prog_bar=True)
        data = self._data()
        if not data.judged(SPLITS[stage]):
            return
        sums = judge_pictures(data, self._painted)
        self._painted = []
        sums_here = torch.tensor(list(sums.values()), dtype=torch.float32, device=self.device)
        totals = self.sum_over_ranks(sums_here)
        scores = means(dict(zip(sums, totals, strict=True)))
        shown = {name: scores.pop(name) for name in ("agreement", "agreement_held_out")}
        self.log_on_host({f"{stage}/{name}": value for name, value in shown.items()}, prog_bar=True)
        self.log_on_host({f"{stage}/{name}": value for name, value in scores.items()})

    def _check_memory(self, name: str, dtype: torch.dtype) -> None:
        """Prints what a card will hold, and refuses a model that is too large, before loading."""
        settings, painting = self._data().hparams, self.painting
        batch_size = settings["eval_batch_size"] or settings["batch_size"]
        sides = painting.height, painting.width
        found = memory_table(name, self._index, dtype, batch_size, *sides)
        rank_zero_info(f"\n{found}\n")
        if self.trainer.strategy.root_device.type == "hpu":
            check_memory(found, card_memory_bytes())

    def _make_painter(self) -> Painter:
        assert self.loaded is not None
        return Painter(self.model, self.loaded, self.painting)  # type: ignore[arg-type]

    def _make(self) -> None:
        """Makes a new model, and the noise schedule of its training."""
        settings = self.hparams
        tokenizer = scratch.make_tokenizer()
        width = settings["text_width"]
        encoder = scratch.make_text_encoder(
            tokenizer, width, settings["text_layers"], settings["text_heads"]
        )
        unet = scratch.make_unet(settings["unet_widths"], settings["unet_layers"], width)
        self.model = Parts([encoder], unet, None)  # type: ignore[assignment]
        self.loaded = Loaded([tokenizer], scratch.SCHEDULER)
        signal = make_scheduler(None, scratch.SCHEDULER).alphas_cumprod
        self.register_buffer("signal", signal.clone(), persistent=False)

    def _check_paints_digits(self) -> None:
        """Refuses to judge any model but one that paints digits in their own size."""
        shape = self.model.latent_shape(self.painting.height, self.painting.width)
        if self.hparams["name"] is not None or shape != (3, SIZE, SIZE):
            raise UserError(
                f"model.name={self.hparams['name']} is for `predict`: `validate` and `test` judge "
                "pictures of a model that `fit` trained, given as --ckpt_path, in its own size."
            )

    def _latency(self) -> LatencyReport | None:
        """Returns what was measured; None if all batches were needed to warm up."""
        try:
            return None if self._stopwatch is None else self._stopwatch.report()
        except ValueError:
            return None

    def _pace(self) -> list[tuple[str, str]]:
        report = self._latency()
        if report is None:
            why = (
                f"not measured: no batch after the first {self._num_warmup_batches}, which warm up"
            )
            return [("pictures a second", why)]
        card = " (of the first card)" if self.trainer.world_size > 1 else ""
        pace = f"{report.items_per_second:.2f}{card}, without the first {report.num_warmup_calls}"
        return [
            ("pictures a second", f"{pace} batches"),
            ("measured over", f"{report.num_items} pictures, {report.seconds:.1f} s"),
        ]

    def _data(self) -> TextToImageData:
        return self.data_of(TextToImageData, "its prompts")


def _real(batch: Mapping[str, Any]) -> list[Request]:
    """Returns the requests of a batch without those at its end that only fill it up."""
    return [each for each, real in zip(batch["requests"], batch["is_real"], strict=True) if real]


def _differ(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, list | tuple):
        return list(theirs) != list(ours)
    return bool(theirs != ours)
