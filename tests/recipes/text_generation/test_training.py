import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.common.export import export
from recipes.text_generation.module import TextGeneration
from tests.helpers.recipes import Losses, quiet_cli
from tests.helpers.trainers import run_trainers
from tests.recipes.text_generation.conftest import VOCABULARY, small_data

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "optimizer": "adamw",  # the vendor's adds epsilon elsewhere
}


def trainer_for(accelerator, path, num_steps=6, callbacks=(), **settings) -> Trainer:
    defaults = {"devices": 1, "num_sanity_val_steps": 0, "logger": False, "max_steps": num_steps}
    return Trainer(
        accelerator=accelerator,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=num_steps // 2,
        check_val_every_n_epoch=None,
        default_root_dir=path,
        callbacks=[ModelCheckpoint(path, filename="last"), *callbacks],
        **(defaults | settings),
    )


def fit(accelerator, path, num_steps=6, callbacks=(), data=None, **settings):
    seed_everything(0, verbose=False)
    module = TextGeneration(**(SMALL | settings))
    trainer = trainer_for(accelerator, path, num_steps, callbacks)
    trainer.fit(module, datamodule=data or small_data())
    return trainer


def test_training_on_hpu_is_that_of_the_cpu(tmp_path):
    curves = {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        trainer = fit(accelerator, tmp_path / accelerator, callbacks=[recorded])
        curves[accelerator] = torch.stack(recorded.values)
        perplexity = float(trainer.callback_metrics["val/perplexity"])
        loss = float(trainer.callback_metrics["val/loss"])
        assert perplexity == pytest.approx(math.exp(loss), rel=1e-6)
    assert curves["cpu"][0].item() == pytest.approx(math.log(VOCABULARY), rel=0.1)
    assert curves["cpu"][-1] < curves["cpu"][0]
    torch.testing.assert_close(curves["hpu"], curves["cpu"], rtol=1e-5, atol=0)


def test_the_vendors_kernel_trains_like_transformers_own(tmp_path):
    curves = []
    for attention in (None, "gaudi_fused_sdpa"):
        recorded = Losses()
        fit("hpu", tmp_path / str(attention), callbacks=[recorded], attention=attention)
        curves.append(torch.stack(recorded.values))
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-5, atol=0)


def test_the_loss_is_transformers_own_and_leaves_out_rows_that_fill():
    module = TextGeneration(**SMALL).eval()
    *_, last = small_data(batch_size=7).test_dataloader()
    real = last["is_real"]
    assert not real.all()
    ids = torch.cat([last["input_ids"][real], last["labels"][real][:, -1:]], dim=1)
    reference = module.model(input_ids=ids, labels=ids).loss
    total, count = module(last, scores=True)
    assert count == real.sum() * 16
    torch.testing.assert_close(total / count, reference)


def _evaluate(rank: int, num_ranks: int, path) -> dict[str, float]:
    seed_everything(0, verbose=False)
    trainer = trainer_for("hpu", path, devices=num_ranks)
    found = trainer.test(TextGeneration(**SMALL), datamodule=small_data(), verbose=False)
    return dict(found[0])


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_perplexity_is_that_of_each_token_once(tmp_path, num_ranks):
    if num_ranks == 1:
        found = _evaluate(0, 1, tmp_path)
    else:
        found, *_ = run_trainers(_evaluate, tmp_path, num_ranks, tmp_path, num_ranks=num_ranks)
    seed_everything(0, verbose=False)
    module, losses = TextGeneration(**SMALL).eval(), []
    for batch in small_data(batch_size=1).test_dataloader():
        losses.append(module(batch).item())
    assert len(losses) % 4  # batches of 4 are filled up
    assert found["test/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found["test/perplexity"] == pytest.approx(math.exp(found["test/loss"]), rel=1e-5)


def test_the_report_has_the_baselines_of_the_same_tokens(tmp_path):
    trainer = fit("cpu", tmp_path)
    module, data = trainer.lightning_module, trainer.datamodule
    (section,) = module.report_sections("val")
    assert f"validation: {data.num_judged('validation'):,} tokens" in section.title
    values = {row.name: float(row.value) for row in section.rows}
    assert values["interpolated bigram"] < values["unigram"] < VOCABULARY
    assert section.rows[0].is_met == (values["model"] < values["interpolated bigram"])
    (label,) = module.references("val/perplexity")
    assert label == "interpolated bigram"
    assert module.references("loss")[label] == pytest.approx(
        math.log(module.references("val/perplexity")[label])
    )


def test_an_exported_model_loads_in_transformers(tmp_path):
    trainer = fit("hpu", tmp_path)
    export(tmp_path / "last.ckpt", tmp_path / "export")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    module, data = trainer.lightning_module.cpu().eval(), trainer.datamodule
    ids = data.get_tokenizer()("The quick river", return_tensors="pt")["input_ids"]
    assert tokenizer("The quick river")["input_ids"] == ids[0].tolist()
    torch.testing.assert_close(model(ids).logits, module.model(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_published_model_is_trained_from_its_weights(tmp_path, pretrained):
    recorded = Losses()
    data = small_data(tokenizer=pretrained)
    trainer = fit("hpu", tmp_path, 2, [recorded], data=data, name=pretrained, tokenizer=pretrained)
    assert trainer.lightning_module.model.transformer.ln_f.weight.requires_grad
    batch = next(iter(small_data(tokenizer=pretrained).train_dataloader()))
    logits = AutoModelForCausalLM.from_pretrained(pretrained)(batch["input_ids"]).logits
    first = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(recorded.values[0], first.detach(), rtol=1e-5, atol=0)


class _SaveAt(Callback):
    """Write a checkpoint after so many steps."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_run_goes_on_where_it_was_saved(tmp_path):
    whole, resumed, checkpoint = Losses(), Losses(), tmp_path / "at4.ckpt"
    fit("hpu", tmp_path / "whole", callbacks=[whole, _SaveAt(4, checkpoint)])
    trainer = trainer_for("hpu", tmp_path / "resumed", callbacks=[resumed])
    trainer.fit(TextGeneration(**SMALL), datamodule=small_data(), ckpt_path=str(checkpoint))
    assert len(resumed.values) == 2
    torch.testing.assert_close(resumed.values, whole.values[4:], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_simulated_run_is_better_than_bigrams(seed, tmp_path):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = quiet_cli("text_generation", tmp_path, *seeds)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert float(cli.trainer.callback_metrics["val/perplexity"]) < 0.8 * _best(cli, "validation")
    # The test split tells the same: nothing was chosen by the validation text.
    (tested,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    assert tested["test/perplexity"] < 0.8 * _best(cli, "test")


def _best(cli, split: str) -> float:
    return min(cli.datamodule.baselines(split).values())
