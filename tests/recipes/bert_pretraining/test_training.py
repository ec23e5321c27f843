import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from transformers import AutoModel, AutoTokenizer

from lightning_gaudi.attention import fused_attention
from lightning_gaudi.callbacks import GraphMonitor, TokenThroughput
from recipes.bert_pretraining.__main__ import main
from recipes.bert_pretraining.module import BertPretraining
from recipes.common.export import export
from tests.helpers.forked import fork_python
from tests.helpers.recipes import Losses

SMALL = {
    "vocab_size": 120,
    "max_seq_length": 48,
    "hidden_size": 32,
    "learning_rate": 1e-3,
    "optimizer": "adamw",  # the vendor's adds epsilon elsewhere
}


def _fit(accelerator, data, path: Path, num_steps=12, callbacks=(), accumulate=1, **settings):
    seed_everything(0, verbose=False)
    module = BertPretraining(**(SMALL | settings))
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_steps=num_steps,
        accumulate_grad_batches=accumulate,
        val_check_interval=num_steps // 2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=4,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        logger=CSVLogger(path, name="csv", version=0),
        callbacks=[ModelCheckpoint(filename="last"), *callbacks],
    )
    trainer.fit(module, data)
    return trainer


@pytest.mark.parametrize("next_sentence", [False, True])
def test_training_on_hpu_gives_the_bits_of_the_cpu(make_data, tmp_path, next_sentence):
    losses, weights = {}, {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        data = make_data(next_sentence=next_sentence)
        with fused_attention(False):  # whose kernel draws other dropout
            trainer = _fit(
                accelerator,
                data,
                tmp_path / accelerator,
                callbacks=[recorded],
                dropout=0.1,
                next_sentence=next_sentence,
            )
        losses[accelerator] = torch.stack(recorded.values)
        state = trainer.lightning_module.state_dict()
        weights[accelerator] = {name: value.cpu() for name, value in state.items()}
    assert len(losses["cpu"]) == 12
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=0, atol=0)
    torch.testing.assert_close(weights["hpu"], weights["cpu"], rtol=0, atol=0)


def test_fused_attention_trains_like_the_cpu(make_data, tmp_path):
    losses = {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        _fit(accelerator, make_data(), tmp_path / accelerator, callbacks=[recorded], dropout=0.0)
        losses[accelerator] = torch.stack(recorded.values)
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=1e-5, atol=0)


def test_the_vendors_adamw_trains_like_torchs(make_data, tmp_path):
    losses = {}
    for optimizer, accelerator in (("adamw", "cpu"), ("fused_adamw", "hpu")):
        recorded = Losses()
        settings = {"dropout": 0.0, "optimizer": optimizer, "callbacks": [recorded]}
        trainer = _fit(accelerator, make_data(), tmp_path / accelerator, **settings)
        losses[optimizer] = torch.stack(recorded.values)
    assert type(trainer.optimizers[0]).__name__ == "FusedAdamW"
    assert losses["adamw"][-4:].mean() < losses["adamw"][:4].mean()
    # Its epsilon comes before the bias correction: the first steps differ a little.
    torch.testing.assert_close(losses["fused_adamw"], losses["adamw"], rtol=0, atol=0.01)


def test_losses_are_logged_in_log_steps_and_after_validation(make_data, tmp_path):
    trainer = _fit("cpu", make_data(), tmp_path, next_sentence=False)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = [int(row["step"]) + 1 for row in rows if row["train/mlm_loss"]]
    assert logged == [4, 8, 12]
    assert sum(bool(row["val/mlm_loss"]) for row in rows) == 2
    assert trainer.callback_metrics["val/mlm_loss"].device.type == "cpu"


def test_validation_weighs_every_prediction_the_same(make_data, tmp_path):
    data = make_data(batch_size=8)
    trainer = _fit("cpu", data, tmp_path, num_steps=2)
    module = trainer.lightning_module.eval()
    losses = []
    for batch in make_data(batch_size=1).val_dataloader():
        logits, _ = module.logits(batch)
        kept = batch["masked_labels"] >= 0
        losses.append(
            torch.nn.functional.cross_entropy(
                logits[kept], batch["masked_labels"][kept], reduction="none"
            )
        )
    expected = torch.cat(losses).mean()
    logged = trainer.validate(module, data, verbose=False)[0]["val/mlm_loss"]
    assert logged == pytest.approx(expected.item(), abs=1e-5)


def test_an_exported_model_loads_in_transformers(make_data, tmp_path):
    data = make_data()
    trainer = _fit("hpu", data, tmp_path)
    export(Path(trainer.checkpoint_callback.best_model_path), tmp_path / "export")
    model = AutoModel.from_pretrained(tmp_path / "export").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").exists()
    text = "The quick river follows the silver harbour."
    assert tokenizer(text)["input_ids"] == data.tokenizer(text)["input_ids"]
    trained = trainer.lightning_module.model.bert.eval().cpu()
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    torch.testing.assert_close(model(ids)[0], trained(ids)[0], rtol=0, atol=1e-6)


def test_export_names_a_checkpoint_that_is_not_there(tmp_path, capsys):
    missing = str(tmp_path / "none.ckpt")
    with pytest.raises(SystemExit):
        main(["export", "--checkpoint", missing, "--output", str(tmp_path)])
    assert f"--checkpoint {missing} does not exist" in capsys.readouterr().err


def test_export_refuses_a_checkpoint_of_something_else(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="was not written by `fit` of a recipe"):
        export(tmp_path / "other.ckpt", tmp_path / "export")


@pytest.mark.slow_but("adamw")
@pytest.mark.parametrize(
    ("settings", "num_graphs"),
    [
        # Forward and backward; the optimizer, once when it makes its averages and once after; the
        # losses of a log interval, gathered to be read.
        ({"optimizer": "adamw"}, 4),
        # Forward and backward twice: where gradients are new, and where they are added to. And the
        # losses of the two batches, gathered to see whether they are finite.
        pytest.param(
            {"optimizer": "adamw", "accumulate": 2, "next_sentence": True},
            6,
            marks=pytest.mark.slow,
        ),
        # The vendor's kernel cuts the graph before each of its two groups of parameters, so that
        # clipping the gradients is one, too.
        ({"optimizer": "fused_adamw"}, 5),
    ],
    ids=["adamw", "accumulating", "fused_adamw"],
)
def test_a_lazy_run_compiles_few_graphs_and_never_waits(corpus, tmp_path, settings, num_graphs):
    result = fork_python(
        f"""
        from pathlib import Path
        from lightning_gaudi.callbacks import GraphMonitor, TokenThroughput
        from recipes.bert_pretraining.data import BertData
        from tests.recipes.bert_pretraining.test_training import _fit

        settings = {settings!r}
        pairs = settings.get("next_sentence", False)
        data = BertData("path", {str(corpus)!r}, vocab_size=120, batch_size=4, max_seq_length=48,
                        max_predictions_per_seq=8, validation_share=0.1, next_sentence=pairs,
                        cache_dir={str(tmp_path / "cache")!r})
        monitor, speed = GraphMonitor(), TokenThroughput(num_warmup_steps=2)
        path = Path({str(tmp_path)!r})
        trainer = _fit("hpu", data, path, callbacks=[monitor, speed], **settings)
        report = monitor.report
        print(report.training_graphs, report.graph_compilations["validation"])
        print(report.host_syncs_per_step, report.host_syncs_per_log_step, report.num_log_steps)
        assert speed.report.token_efficiency > 0.8
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
        timeout=200,
    )
    graphs, syncs = result.stdout.splitlines()[-2:]
    training, validation = map(int, graphs.split())
    assert training == num_graphs
    assert validation <= 2
    # Lightning reads what a module logs after each batch of a log step, the recipes after its last;
    # once more the losses are looked at, which might not be finite.
    assert syncs.split()[:2] == ["0.0", str(2 / settings.get("accumulate", 1))]
    assert int(syncs.split()[2]) > 0


def test_the_reports_of_a_cpu_run_measure_no_card(make_data, tmp_path):
    monitor, speed = GraphMonitor(), TokenThroughput(num_warmup_steps=2)
    _fit("cpu", make_data(), tmp_path, callbacks=[monitor, speed])
    assert monitor.report.training_graphs is None
    assert monitor.report.host_syncs_per_step is None
    assert speed.report.num_steps == 10
