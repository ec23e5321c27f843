"""Has the DataModule: coloured digits with noise and captions, and pictures to be made.

Shapes: B pictures of a batch, 8x8 pixels, T tokens of a caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_gaudi.data import BucketDataLoader
from recipes.common.data import RecipeData
from recipes.common.errors import UserError
from recipes.common.prompts import given_prompts
from recipes.text_to_image.digits import PAIRS, SIZE, TRAINED, Digits, Pair, paint, read_splits
from recipes.text_to_image.judge import Judge
from recipes.text_to_image.requests import (
    Request,
    make_requests,
    requests_for_digits,
)
from recipes.text_to_image.scratch import NUM_TOKENS, SCHEDULER, make_tokenizer

NUM_TIMESTEPS: int = SCHEDULER["num_train_timesteps"]
_FIRST_SEEDS = {"validation": 1_000_000, "test": 2_000_000}
"""Of the pictures that are judged: others than those a user will count up from 0."""
_ONE_SHAPE = 1


class TextToImageData(RecipeData):
    """Gives handwriting to train on, in colours that are put on at run time; prompts to paint.

    Args:
        validation_share: of the digits, held out for validation, and as many for test.
        caption_dropout: the share of training pictures that are shown without their caption, for
            classifier-free guidance.
        batch_size: pictures of a batch, on each card (B).
        eval_batch_size: likewise, in validation, test and prediction; None for as many.
        num_generated: pictures of each of the 60 pairs of colour and digit that validation has
            made and judged; 0 measures the loss only. A test judges 5.
        prompts: what `predict` paints; None takes prompts_file, or else each pair once.
        prompts_file: a text file with one prompt a line.
        negative_prompts: what the pictures should be unlike: none, one for all, or one a prompt.
        num_images_per_prompt: pictures of each prompt.
        seeds: of the pictures' noise: one, which is counted up, or one a picture.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the split, of the order and of the noise in training.

    Raises:
        UserError: for prompts, negative prompts or seeds that do not fit each other, here already:
            before a card is acquired.
    """

    def __init__(
        self,
        validation_share: float = 0.1,
        caption_dropout: float = 0.1,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_generated: int = 2,
        prompts: list[str] | None = None,
        prompts_file: str | None = None,
        negative_prompts: list[str] | str | None = None,
        num_images_per_prompt: int = 1,
        seeds: list[int] | int = 0,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.samples_per_batch(is_training=True)
        self.samples_per_batch(is_training=False)
        if not 0 < validation_share < 0.5:
            raise UserError(f"data.validation_share={validation_share} is not between 0 and 0.5.")
        if not 0 <= caption_dropout < 1:
            raise UserError(f"data.caption_dropout={caption_dropout} is not between 0 and 1.")
        if num_generated < 0:
            raise UserError(f"data.num_generated={num_generated} must be 0 or more.")
        negatives = [negative_prompts] if isinstance(negative_prompts, str) else negative_prompts
        self.requests = make_requests(
            given_prompts(prompts, prompts_file) or [pair.caption for pair in PAIRS],
            negatives or (),
            num_images_per_prompt,
            [seeds] if isinstance(seeds, int) else seeds,
        )
        """Returns the requests that `predict` paints."""
        self._splits: dict[str, Digits] = {}
        self._judge: Judge | None = None

    @property
    def judge(self) -> Judge:
        """The classifier of the training digits, which is fitted when it is first asked for."""
        if self._judge is None:
            self._judge = Judge(self.split("train"))
        return self._judge

    def split(self, name: str) -> Digits:
        """Returns the digits of a split, without colour."""
        if not self._splits:
            self._splits = read_splits(self.hparams["validation_share"], self.hparams["seed"])
        return self._splits[name]

    def judged(self, split: str) -> list[Request]:
        """Returns the pictures that are made to be judged: those of each pair."""
        number = self.hparams["num_generated"] if split == "validation" else 5
        return requests_for_digits(number, _FIRST_SEEDS[split]) if number else []

    def train_dataloader(self) -> BucketDataLoader:
        return self.resumed(self._loader(self._pictures("train"), is_training=True))

    def val_dataloader(self) -> list[BucketDataLoader]:
        return self._evaluation("validation")

    def test_dataloader(self) -> list[BucketDataLoader]:
        return self._evaluation("test")

    def predict_dataloader(self) -> BucketDataLoader:
        return self._loader(self.requests, is_training=False)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Keeps on the host which rows are real, so that it need not ask the device."""
        if "requests" in batch:
            batch["is_real"] = batch["is_real"].tolist()
        return batch

    def _evaluation(self, split: str) -> list[BucketDataLoader]:
        """Returns loaders of real pictures, for the loss, and of pictures to be made, if any."""
        datasets = [self._pictures(split), *([found] if (found := self.judged(split)) else [])]
        return [self._loader(each, is_training=False) for each in datasets]

    def _pictures(self, split: str) -> NoisyPictures:
        pairs = TRAINED if split == "train" else PAIRS
        dropout = self.hparams["caption_dropout"] if split == "train" else 0.0
        return NoisyPictures(self.split(split), pairs, dropout, self.hparams["seed"])

    def _loader(self, dataset: Any, is_training: bool) -> BucketDataLoader:
        shapes = np.full(len(dataset), _ONE_SHAPE)
        has_noise = isinstance(dataset, NoisyPictures)
        return BucketDataLoader(
            dataset,
            self.sampler(shapes, [_ONE_SHAPE], is_training=is_training),
            _collate if has_noise else _collate_requests,
            with_epoch=has_noise,
            **(self.workers if is_training else {}),
        )


class NoisyPictures:
    """Holds each digit in each colour that it may have, and the noise of an epoch that hides it.

    The noise is drawn here, on the CPU: a run is the same on every device, and after resuming.

    Args:
        digits: of a split.
        pairs: of colour and digit, that there are.
        caption_dropout: the share that loses its caption.
        seed: of the noise.
    """

    def __init__(
        self, digits: Digits, pairs: Sequence[Pair], caption_dropout: float, seed: int
    ) -> None:
        self._digits, self._dropout, self._seed = digits, caption_dropout, seed
        colours = [[p.colour for p in pairs if p.digit == digit] for digit in range(10)]
        self._items = [
            (row, Pair(colour, int(digit)))
            for row, digit in enumerate(digits.digits)
            for colour in colours[digit]
        ]
        texts = ["", *(pair.caption for pair in PAIRS)]
        tokens = make_tokenizer()(texts, padding="max_length", max_length=NUM_TOKENS).input_ids
        self._tokens = dict(zip((None, *PAIRS), tokens, strict=True))

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, index = key
        row, pair = self._items[index]
        random = np.random.default_rng((self._seed, epoch, index))
        return {
            "pictures": paint(self._digits.ink[row], pair.colour),
            "noise": random.standard_normal((3, SIZE, SIZE), dtype=np.float32),
            "timesteps": int(random.integers(NUM_TIMESTEPS)),
            "input_ids": self._tokens[None if random.random() < self._dropout else pair],
        }


def _collate(samples: Sequence[Mapping[str, Any]], length: int) -> dict[str, Tensor]:
    """Returns tensors pictures and noise [B, 3, 8, 8], timesteps [B] and input_ids [B, T]."""
    return {
        name: torch.from_numpy(np.stack([sample[name] for sample in samples]))
        for name in samples[0]
    }


def _collate_requests(samples: Sequence[Request], length: int) -> dict[str, Any]:
    """Returns the requests, a list of B."""
    return {"requests": list(samples)}
