from pathlib import Path

import fsspec
import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModel, BertConfig, BertForSequenceClassification

from recipes.common.errors import UserError
from recipes.common.export import export
from recipes.common.tokenization import tokenizer_state, train_bpe, train_wordpiece
from recipes.common.training import RecipeModule
from recipes.mrpc.__main__ import main
from tests.helpers.tiny import QUIET

WORDS = [["red green blue"], ["blue green red yellow"]]

GATHERS = "ignore:.*gather-of-int64-wrong"
"""BERT gathers its token types where it is given none."""

# The data here have no validation.
pytestmark = pytest.mark.filterwarnings(
    "ignore:You defined a `validation_step` but have no:UserWarning"
)


class _Classifier(RecipeModule):
    def __init__(self, hidden_size: int = 8, optimizer: str = "adamw", **settings) -> None:
        super().__init__()
        settings = {"learning_rate": 0.1, "schedule": "linear", "warmup_steps": 0, **settings}
        self.save_hyperparameters(
            {"optimizer": optimizer, "weight_decay": 0.0, "betas": (0.9, 0.99), **settings}
        )
        self.hparams.setdefault("max_grad_norm", 1.0)
        config = BertConfig(
            vocab_size=40,
            hidden_size=hidden_size,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=2 * hidden_size,
            max_position_embeddings=8,
        )
        self.model = BertForSequenceClassification(config)

    def training_step(self, batch, batch_idx):
        loss = self.model(batch, labels=batch[:, 0] % 2).loss
        return {"loss": loss, "class_loss": loss.detach()}


class _Words(pl.LightningDataModule):
    def __init__(self, tokenizer) -> None:
        super().__init__()
        self.save_hyperparameters({"tokenizer": None})
        self.tokenizer = tokenizer

    def train_dataloader(self):
        return DataLoader(torch.arange(64).reshape(8, 8) % 40, batch_size=2)

    def state_dict(self):
        return tokenizer_state(self.tokenizer)


class _Logger(pl.loggers.logger.DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


def _fit(module, **settings):
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1, **(QUIET | settings))
    trainer.fit(module, _Words(train_wordpiece(WORDS, 40)))
    return trainer


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    path = tmp_path / "tiny.ckpt"
    _fit(_Classifier(), log_every_n_steps=1).save_checkpoint(path)
    return path


@pytest.mark.filterwarnings(GATHERS)
def test_losses_are_logged_in_log_steps_only():
    logger = _Logger()
    trainer = _fit(_Classifier(), log_every_n_steps=2, logger=logger)
    mine = [(step, values) for step, values in logger.logged if "train/class_loss" in values]
    assert [step for step, _ in mine] == [1, 3]
    assert set(mine[0][1]) == {"train/class_loss", "train/learning_rate"}
    # Lightning steps the schedule before `on_train_batch_end`: that of the next step is shown.
    assert mine[1][1]["train/learning_rate"] == 0.0
    assert trainer.global_step == 4


def test_lamb_and_clipping_by_the_trainer_exclude_each_other():
    with pytest.raises(ValueError, match=r"lamb clips the gradients itself, but .* is 0.5"):
        _fit(_Classifier(optimizer="lamb"), gradient_clip_val=0.5)


@pytest.mark.filterwarnings(GATHERS)
def test_a_checkpoint_of_another_size_is_refused_by_its_settings(checkpoint):
    with pytest.raises(ValueError, match=r"hidden_size 8 \(configured: 16\)") as error:
        pl.Trainer(accelerator="cpu", max_epochs=1, **QUIET).fit(
            _Classifier(hidden_size=16), _Words(train_wordpiece(WORDS, 40)), ckpt_path=checkpoint
        )
    assert "intermediate_size 16 (configured: 32)" in str(error.value)


@pytest.mark.filterwarnings(GATHERS)
def test_an_exported_checkpoint_loads_without_the_recipe(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "export")
    model = AutoModel.from_pretrained(tmp_path / "export")
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    name = "embeddings.word_embeddings.weight"
    torch.testing.assert_close(model.state_dict()[name], weights[f"model.bert.{name}"])
    assert (tmp_path / "export" / "tokenizer.json").exists()


@pytest.mark.filterwarnings(GATHERS)
def test_export_reads_from_a_store_and_writes_to_one(checkpoint, tmp_path, capsys):
    store, root = fsspec.filesystem("memory"), f"memory://{tmp_path.name}"
    store.put(str(checkpoint), f"/{tmp_path.name}/last.ckpt")
    main(["export", "--checkpoint", f"{root}/last.ckpt", "--output", f"{root}/out"])
    said = f"Exported to {root}/out: copy it to a disk, then transformers."
    assert f"{said}BertForSequenceClassification.from_pretrained('out')" in capsys.readouterr().out
    export(checkpoint, tmp_path / "local")
    for file in (tmp_path / "local").iterdir():
        assert store.cat(f"/{tmp_path.name}/out/{file.name}") == file.read_bytes()


def test_export_says_what_a_checkpoint_lacks(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    said = "was not written by `fit` of a recipe: it has no transformers_config"
    with pytest.raises(UserError, match=said):
        export(tmp_path / "other.ckpt", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_byte_pair_tokenizer_has_the_special_tokens_of_t5():
    tokenizer = train_bpe([["the red house", "the green house"] * 20], 30)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    ids = tokenizer("the green house", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "the green house"
