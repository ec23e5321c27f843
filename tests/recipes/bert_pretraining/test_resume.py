"""A run that was stopped within an epoch goes on with the very next batch."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from tests.helpers.trainers import run_trainers

CPU = {"accelerator": "cpu", "devices": 1}
NUM_STEPS = 14
STOPPED_AFTER = 5  # an epoch has 10 steps


class Losses(Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.values.append(outputs["loss"].detach().cpu())


def _fit(data: BertData, folder: Path, num_steps: int, checkpoint: Path | None = None, **settings):
    seed_everything(0, verbose=False)
    module = BertPretraining(
        vocab_size=120,
        max_seq_length=48,
        hidden_size=32,
        dropout=0.0,
        next_sentence=True,
        schedule="constant",
        learning_rate=1e-3,
    )
    losses = Losses()
    trainer = Trainer(
        max_steps=num_steps,
        num_sanity_val_steps=0,
        log_every_n_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[losses, ModelCheckpoint(folder, "last", every_n_train_steps=STOPPED_AFTER)],
        **settings,
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    weights = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
    return torch.stack(losses.values), weights


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(make_data, tmp_path, num_workers):
    torch.multiprocessing.set_sharing_strategy("file_system")

    def data() -> BertData:
        return make_data(next_sentence=True, num_workers=num_workers, batch_size=16)

    assert STOPPED_AFTER < len(data().train_dataloader()) < NUM_STEPS
    whole, weights = _fit(data(), tmp_path / "whole", NUM_STEPS, **CPU)
    part, _ = _fit(data(), tmp_path / "part", STOPPED_AFTER, **CPU)
    checkpoint = tmp_path / "part" / "last.ckpt"
    rest, resumed = _fit(data(), tmp_path / "rest", NUM_STEPS, checkpoint, **CPU)
    assert len(set(whole.tolist())) == NUM_STEPS
    torch.testing.assert_close(torch.cat([part, rest]), whole, rtol=0, atol=0)
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)


def _on_each_card(rank: int, settings: dict, folder: Path):
    def fit(name: str, num_steps: int, checkpoint: Path | None = None):
        data = BertData(**settings)
        options = {"accelerator": "hpu", "devices": 2}
        return _fit(data, folder / name, num_steps, checkpoint, **options)

    whole, weights = fit("whole", NUM_STEPS)
    part, _ = fit("part", STOPPED_AFTER)
    rest, resumed = fit("rest", NUM_STEPS, folder / "part" / "last.ckpt")
    return {"whole": whole, "parts": torch.cat([part, rest]), "weights": [weights, resumed]}


@pytest.mark.slow
def test_two_cards_resume_alike(make_data, tmp_path):
    settings = dict(make_data().hparams) | {"next_sentence": True, "batch_size": 8}
    results = run_trainers(_on_each_card, tmp_path, settings, tmp_path)
    for result in results:
        torch.testing.assert_close(result["parts"], result["whole"], rtol=0, atol=0)
        torch.testing.assert_close(*result["weights"], rtol=0, atol=0)
    assert (results[0]["whole"] != results[1]["whole"]).all()  # each has its own rows
