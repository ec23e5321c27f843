import csv
import json
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from lightning_gaudi.attention import fused_attention
from recipes.common.export import export
from recipes.t5_summarization.__main__ import main
from recipes.t5_summarization.data import SummarizationData
from recipes.t5_summarization.generation import generate
from recipes.t5_summarization.module import T5Summarization
from recipes.t5_summarization.rouge import lead, rouge_sums
from tests.helpers.forked import fork_python
from tests.helpers.recipes import Losses
from tests.helpers.trainers import run_trainers
from tests.recipes.t5_summarization.conftest import FIXTURES, VOCABULARY

SMALL = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "max_target_length": 24,
    "learning_rate": 1e-3,
    "optimizer": "adamw",  # the vendor's adds epsilon elsewhere
}


def trainer_for(accelerator, path, num_steps=6, callbacks=(), **settings) -> Trainer:
    defaults = {
        "devices": 1,
        "max_steps": num_steps,
        "val_check_interval": num_steps // 2,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 3,
        "gradient_clip_val": 1.0,
        "logger": CSVLogger(path, name="csv", version=0),
    }
    return Trainer(
        accelerator=accelerator,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        callbacks=[ModelCheckpoint(filename="last"), *callbacks],
        **(defaults | settings),
    )


def fit(accelerator, data, path, num_steps=6, callbacks=(), precision="32-true", **settings):
    seed_everything(0, verbose=False)
    module = T5Summarization(**(SMALL | settings))
    trainer = trainer_for(accelerator, path, num_steps, callbacks, precision=precision)
    trainer.fit(module, datamodule=data)
    return trainer


def module_for(path) -> T5Summarization:
    """A small model, always the same."""
    seed_everything(0, verbose=False)
    return T5Summarization(**SMALL, predictions=str(path / "out.jsonl"))


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_on_hpu_gives_the_bits_of_the_cpu(make_data, tmp_path, checkpointing):
    losses, weights = {}, {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        settings = {"callbacks": [recorded], "gradient_checkpointing": checkpointing}
        with fused_attention(False):  # whose kernel draws other dropout
            trainer = fit(accelerator, make_data(), tmp_path / accelerator, **settings)
        losses[accelerator] = torch.stack(recorded.values)
        state = trainer.lightning_module.state_dict()
        weights[accelerator] = {name: value.cpu() for name, value in state.items()}
    assert len(losses["cpu"]) == 6
    assert losses["cpu"][-1] < losses["cpu"][0]
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=0, atol=0)
    torch.testing.assert_close(weights["hpu"], weights["cpu"], rtol=0, atol=0)


@pytest.mark.slow
def test_fused_attention_trains_like_the_cpu(make_data, tmp_path):
    losses = {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        fit(accelerator, make_data(), tmp_path / accelerator, callbacks=[recorded], dropout=0.0)
        losses[accelerator] = torch.stack(recorded.values)
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=1e-5, atol=0)


@pytest.mark.slow_but("32-true")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_checkpointing_does_not_change_a_run(make_data, tmp_path, precision):
    losses = []
    for checkpointing in (False, True):
        recorded = Losses()
        settings = {"callbacks": [recorded], "gradient_checkpointing": checkpointing}
        path = tmp_path / str(checkpointing)
        fit("hpu", make_data(num_generated=0), path, precision=precision, **settings)
        losses.append(torch.stack(recorded.values))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def _batches(data, sizes):
    """The training rows in order, in batches of these sizes, as the recipe collates them."""
    loader = data.train_dataloader()
    dataset, collate = loader.dataset.dataset, loader.dataset.collate
    index, batches = 0, []
    for size in sizes:
        batches.append(collate([dataset[i] for i in range(index, index + size)], 160))
        index += size
    return batches


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no:UserWarning")
def test_accumulated_gradients_are_those_of_one_large_batch(make_data, tmp_path):
    """Micro-batches of 12 to 51 target tokens: means of their own would weigh tokens unequally."""
    curves, weights = [], []
    for accumulate, size in ((1, 8), (4, 2)):
        data = make_data(batch_size=size, max_target_length=40)
        batches = _batches(data, [size] * (16 // size))
        counts = [int((batch["labels"] >= 0).sum()) for batch in batches]
        assert len(set(counts)) > 1
        recorded = Losses()
        seed_everything(0, verbose=False)
        module = T5Summarization(**SMALL, dropout=0.0)
        trainer = trainer_for(
            "hpu",
            tmp_path / str(size),
            num_steps=6,
            callbacks=[recorded],
            accumulate_grad_batches=accumulate,
            limit_val_batches=0,
            val_check_interval=None,
        )
        trainer.fit(module, DataLoader(batches, batch_size=None))
        # Lightning has divided each loss by the number of micro-batches.
        curves.append(torch.stack(recorded.values).reshape(6, accumulate).sum(1))
        weights.append({name: value.cpu() for name, value in module.state_dict().items()})
    torch.testing.assert_close(curves[1], curves[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=2e-5)


@pytest.mark.slow
def test_the_logged_loss_is_the_mean_over_the_tokens(make_data, tmp_path):
    trainer = fit("cpu", make_data(), tmp_path)
    module = trainer.lightning_module.eval()
    losses = []
    for batch in make_data(batch_size=1).val_dataloader()[0]:
        kept = batch["labels"] >= 0
        logits, labels = module.logits(batch)[kept], batch["labels"][kept]
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    (logged, *_) = trainer.validate(module, datamodule=make_data(), verbose=False)
    assert logged["val/loss"] == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) + 1 for row in rows if row["train/summary_loss"]]
    assert steps == [3, 6]
    assert all(0 < float(row["val/lead1_rougeL"]) < 100 for row in rows if row["val/loss"])


def test_without_summaries_validation_measures_the_loss_only(make_data, tmp_path):
    trainer = fit("cpu", make_data(num_generated=0), tmp_path)
    assert "val/loss" in trainer.callback_metrics
    assert "val/rougeL" not in trainer.callback_metrics


def _test_and_predict(rank: int, path: Path, num_ranks: int) -> dict[str, float]:
    """The metrics of the test; the summaries are left in `out.jsonl`."""
    data = SummarizationData(
        "path",
        str(FIXTURES),
        vocab_size=VOCABULARY,
        batch_size=3,
        max_source_length=160,
        max_target_length=24,
    )
    module = module_for(path)
    trainer = trainer_for("hpu", path, devices=num_ranks, logger=False, val_check_interval=None)
    found = trainer.test(module, datamodule=data, verbose=False)
    trainer.predict(module, datamodule=data, return_predictions=False)
    return {name: value for each in found for name, value in each.items()}


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_test_and_predict_take_each_row_once(make_data, tmp_path, num_ranks):
    """Two ranks, and batches that the rows do not fill, give what one gives."""
    ranks = run_trainers(_test_and_predict, tmp_path, tmp_path, num_ranks, num_ranks=num_ranks)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with (FIXTURES / "test.csv").open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert [line["id"] for line in lines] == ids
    assert all(set(line) == {"id", "summary"} for line in lines)
    assert not list(tmp_path.glob("out.jsonl.*"))
    for name, value in _one_by_one(make_data()).items():
        assert ranks[0][name] == pytest.approx(value, abs=1e-3), name


def _one_by_one(data):
    """The loss and ROUGE-L of the test rows, computed without loaders or ranks."""
    module = module_for(FIXTURES).eval()
    losses, texts = [], []
    for batch in data.test_dataloader()[0]:
        kept = batch["labels"] >= 0
        logits, labels = module.logits(batch)[kept], batch["labels"][kept]
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    rows = data.dataset("test")
    for row in range(len(rows)):
        ids = torch.from_numpy(rows[row]["input_ids"])[None]
        tokens = generate(module.model, ids, torch.ones_like(ids), 24)
        texts += data.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    references = [row.highlights for row in rows.rows]
    of_model = rouge_sums(texts, references)["rouge1"]
    of_lead = rouge_sums([lead(row.article) for row in rows.rows], references)["rougeL"]
    loss = torch.cat(losses).mean().item()
    scores = {"test/rouge1": of_model / len(texts), "test/lead1_rougeL": of_lead / len(texts)}
    return {"test/loss": loss, **scores}


@pytest.mark.slow
def test_a_lazy_run_compiles_two_graphs_a_bucket_and_never_waits(tmp_path):
    result = fork_python(
        f"""
        from pathlib import Path
        from lightning_gaudi.callbacks import GraphMonitor, TokenThroughput
        from recipes.t5_summarization.data import SummarizationData
        from tests.recipes.t5_summarization.test_training import FIXTURES, fit

        data = SummarizationData("path", str(FIXTURES), vocab_size=300, batch_size=2,
                                 max_source_length=160, max_target_length=24, num_buckets=2)
        monitor, speed = GraphMonitor(), TokenThroughput(num_warmup_steps=2)
        path = Path({str(tmp_path)!r})
        settings = {{"callbacks": [monitor, speed], "gradient_checkpointing": True}}
        fit("hpu", data, path, num_steps=18, **settings)
        report = monitor.report
        num_buckets = len({{batch["input_ids"].shape for batch in data.train_dataloader()}})
        print(num_buckets, report.training_graphs, report.graph_compilations["validation"],
              report.host_syncs_per_step, report.num_steps, speed.report.num_tokens > 0)
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
        timeout=200,
    )
    buckets, training, validation, *rest = result.stdout.splitlines()[-1].split()
    assert buckets == "2"
    assert (
        int(training) <= 2 * 2 + 1
    )  # forward and backward, and the optimizer; a log interval's losses
    assert int(validation) <= 2 * 2 + 2 * 2  # the loss and the summaries
    assert rest == ["0.0", "12", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["scratch", "pretrained"])
def test_an_exported_model_loads_in_transformers(make_data, tmp_path, pretrained, source):
    settings = {"name": pretrained, "tokenizer": pretrained} if source == "pretrained" else {}
    data = make_data(tokenizer=settings.get("tokenizer"))
    trainer = fit("hpu", data, tmp_path, **settings)
    export(tmp_path.joinpath(trainer.checkpoint_callback.best_model_path), tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").exists()
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "export").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    module = trainer.lightning_module.cpu().eval()
    batch = next(iter(data.test_dataloader()[0]))
    text = data.tokenizer.decode(batch["input_ids"][0])
    assert tokenizer(text)["input_ids"] == data.tokenizer(text)["input_ids"]
    shown = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    torch.testing.assert_close(model(**shown).logits, module.logits(batch), rtol=1e-5, atol=1e-5)


def test_a_published_model_is_trained_from_its_weights(make_data, tmp_path, pretrained):
    module = T5Summarization(name=pretrained, tokenizer=pretrained, dropout=0.2)
    assert module.model.config.dropout_rate == 0.2
    assert module.model.shared.weight.dtype == torch.float32
    reference = AutoModelForSeq2SeqLM.from_pretrained(pretrained)
    for name, weight in reference.state_dict().items():
        torch.testing.assert_close(module.model.state_dict()[name], weight, rtol=0, atol=0)


def test_a_checkpoint_of_another_size_is_refused(make_data, tmp_path):
    trainer = fit("cpu", make_data(), tmp_path)
    path = trainer.checkpoint_callback.best_model_path
    other = T5Summarization(**(SMALL | {"d_model": 48}))
    with pytest.raises(ValueError, match=r"another model.*d_model 32 \(configured: 48\)"):
        trainer_for("cpu", tmp_path / "2").test(other, datamodule=make_data(), ckpt_path=path)


def test_an_unknown_model_is_refused(tmp_path, pretrained):
    with pytest.raises(ValueError, match=r"model\.name=.*none could not be loaded"):
        T5Summarization(name=str(tmp_path / "none"), tokenizer=pretrained)


def test_a_published_model_wants_its_tokenizer(pretrained):
    with pytest.raises(ValueError, match=r"data\.tokenizer is not set\. Set data\.tokenizer="):
        T5Summarization(name=pretrained)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(pretrained):
    with pytest.raises(ValueError, match=r"has 300 tokens.*for 60\. .*data\.vocab_size=300"):
        T5Summarization(vocab_size=60, tokenizer=pretrained)


def test_a_tokenizer_that_calls_its_tokens_otherwise_is_refused(pretrained, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.pad_token = "<unk>"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has pad_token_id 2, but the model has 0"):
        T5Summarization(vocab_size=VOCABULARY, tokenizer=str(tmp_path))


def test_perplexity_of_a_random_model_is_that_of_its_vocabulary(make_data, tmp_path):
    """The first loss is near ln V: logits are scaled as T5 scales them."""
    recorded = Losses()
    fit("cpu", make_data(), tmp_path, num_steps=2, callbacks=[recorded], dropout=0.0)
    assert recorded.values[0].item() == pytest.approx(math.log(VOCABULARY), rel=0.3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning")
@pytest.mark.filterwarnings("ignore:The 'predict_dataloader' does not have many:UserWarning")
def test_predict_writes_where_it_is_told_and_not_where_the_checkpoint_was_told(tmp_path):
    fixtures = ["--data.source=path", f"--data.path={FIXTURES}", "--data.vocab_size=300"]
    small = ["--data.max_target_length=16", "--data.batch_size=4", "--data.num_generated=0"]
    common = ["--config={}", *fixtures, *small, "--trainer.accelerator=cpu"]
    common += ["--trainer.enable_progress_bar=false"]
    common += ["--trainer.enable_model_summary=false", f"--trainer.default_root_dir={tmp_path}"]
    main(["fit", *common, "--trainer.max_steps=1", f"--model.predictions={tmp_path}/first"])
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    told = ["--ckpt_path", str(checkpoint), f"--model.predictions={tmp_path}/second.jsonl"]
    main(["predict", *common, *told, "--trainer.logger=false"])
    assert len((tmp_path / "second.jsonl").read_text().splitlines()) == 4
    assert not (tmp_path / "first").exists()
    main(["predict", *common, "--ckpt_path", str(checkpoint)])
    by_default = checkpoint.parent.parent / "summaries.jsonl"  # beside its run
    assert by_default.read_text() == (tmp_path / "second.jsonl").read_text()


def test_missing_files_end_the_command_with_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config=simulated", "--data.source=path", f"--data.path={tmp_path}/none"])
    assert ended.value.code == 2
    assert f"data.path={tmp_path}/none does not exist" in capsys.readouterr().err.splitlines()[-1]
