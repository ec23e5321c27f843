"""What the DataModules of all recipes do alike."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import ModelParallelStrategy
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader, embedded_documents
from recipes.common.errors import UserError
from recipes.common.prompts import Prompt, PromptTokens, pad_prompts

_POSITION = "train_loader"


class RecipeData(LightningDataModule):
    """The abstract base of the recipes' data: training goes on within an epoch after a resume.

    A subclass returns `self.resumed(loader)` from `train_dataloader`, and adds what else belongs in
    the checkpoint to `state_dict` and `load_state_dict` of this class.

    Lightning saves the place of the loader, too, but does not always go back to it. It loads states
    only when it makes the loader, and if a schedule asks for the length of the run, as under
    `trainer.max_epochs`, it has made it before (lightning/pytorch/loops/fit_loop.py, setup_data).
    Delete this once it loads them in either case.
    """

    def __init__(self) -> None:
        super().__init__()
        self._train_loader: BucketDataLoader | None = None
        self._position: dict[str, Any] | None = None

    def read(self, command: str) -> None:
        """Reads what a command needs, where that takes long, before the Trainer begins.

        A wrong row ends it before a card is acquired, and `lightning-gaudi plan`, whose rehearsals
        are forks from there, has it read once.

        Args:
            command: fit, validate, test or predict.
        """

    @property
    def num_accumulated(self) -> int:
        """The number of batches in an optimizer step, which divides the batches of an epoch.

        Otherwise Lightning ends an epoch with a step on fewer batches, whose gradient is too small.
        """
        return 1 if self.trainer is None else self.trainer.accumulate_grad_batches

    def samples_per_batch(self, is_training: bool) -> int:
        """Returns the samples of a batch on each card, in training or in evaluation.

        Raises:
            UserError: for a batch without a sample.
        """
        name = "batch_size" if is_training else "eval_batch_size"
        size = self.hparams[name]
        if size is None:
            return self.samples_per_batch(is_training=True)
        if size < 1:
            raise UserError(f"data.{name}={size} must be at least 1.")
        return int(size)

    @property
    def ranks(self) -> dict[str, int]:
        """The arguments `num_ranks` and `rank` of a sampler, if ranks share samples.

        Under tensor parallelism several ranks compute on the same samples.
        """
        strategy = None if self.trainer is None else self.trainer.strategy
        if not isinstance(strategy, ModelParallelStrategy):
            return {}
        shares = strategy.distributed_sampler_kwargs
        return {"num_ranks": shares["num_replicas"], "rank": shares["rank"]}

    def sampler(
        self, lengths: Any, boundaries: Sequence[int], *, is_training: bool
    ) -> BucketBatchSampler:
        """Returns the batches of this rank: shuffled in training, in whole optimizer steps."""
        return BucketBatchSampler(
            lengths,
            boundaries,
            self.samples_per_batch(is_training),
            shuffle=is_training,
            seed=self.hparams["seed"],
            multiple_of=self.num_accumulated,
            **self.ranks,
        )

    @property
    def workers(self) -> dict[str, Any]:
        """The arguments of a loader for the processes that prepare its batches."""
        number = self.hparams["num_workers"]
        return {"num_workers": number, "persistent_workers": number > 0}

    def resumed(self, loader: BucketDataLoader) -> BucketDataLoader:
        """Returns the training loader, at the place of the checkpoint if one is resumed."""
        self._train_loader = loader
        position, self._position = self._position, None
        # Only in a fit: `validate` loads a checkpoint, too, but resumes nothing.
        if position is not None and self.trainer is not None and self.trainer.ckpt_path:
            loader.load_state_dict(position)
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the epoch, once there is a training loader."""
        return {} if self._train_loader is None else {_POSITION: self._train_loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remembers the place for the training loader, which is made after this."""
        self._position = state_dict.get(_POSITION)


class PromptData(RecipeData):
    """The abstract base of data with prompts for `predict`, with a setting `prompt_buckets`."""

    @abstractmethod
    def read_prompts(self) -> list[Prompt]:
        """Returns the prompts, in order; their numbers are those of the batches."""

    @abstractmethod
    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the model's tokenizer."""

    @property
    def pad_token_id(self) -> int:
        """The token that fills up shorter prompts."""
        return int(self.get_tokenizer().pad_token_id)

    def predict_dataloader(self) -> BucketDataLoader:
        """Makes a loader of each prompt once, on any number of cards, padded to its bucket."""
        dataset = PromptTokens(self.read_prompts())
        sampler = BucketBatchSampler(
            dataset.lengths,
            sorted(self.hparams["prompt_buckets"]),
            self.prompts_per_batch(len(dataset)),
            shuffle=False,
            **self.ranks,
        )
        return BucketDataLoader(dataset, sampler, partial(pad_prompts, pad_token=self.pad_token_id))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Keeps on the host which rows are prompts, since it would wait to read that later."""
        if "numbers" in batch:
            batch["is_real"] = batch["is_real"].tolist()
        return batch

    def prompts_per_batch(self, num_prompts: int) -> int:
        """Returns the prompts of each card's batch; at most all, since filling rows cost, too."""
        world_size = 1 if self.trainer is None else self.trainer.world_size
        num_ranks = self.ranks.get("num_ranks", world_size)
        return min(self.samples_per_batch(is_training=False), -(-num_prompts // num_ranks))


def embedded_texts(
    packages: Sequence[str], split: str, held_out_share: float, seed: int
) -> list[str]:
    """Returns the documentation of Python and of `packages`, each whole document in one split."""
    documents = embedded_documents(packages)
    random.Random(seed).shuffle(documents)
    held_out = max(1, round(held_out_share * len(documents)))
    bounds = {"test": (0, held_out), "validation": (held_out, 2 * held_out)}
    start, stop = bounds.get(split, (2 * held_out, len(documents)))
    return [" ".join(document) for document in documents[start:stop]]
