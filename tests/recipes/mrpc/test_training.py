import csv
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lightning_gaudi.attention import fused_attention
from recipes.common.export import export
from recipes.common.report import RunReport
from recipes.mrpc.data import MrpcData
from recipes.mrpc.encoding import EncodedPairs, collate
from recipes.mrpc.module import Mrpc
from recipes.mrpc.predictions import SubmissionWriter
from tests.helpers.forked import fork_python
from tests.helpers.recipes import Losses
from tests.helpers.trainers import run_trainers
from tests.recipes.mrpc.conftest import FIXTURES, VOCAB_SIZE

SMALL = {
    "vocab_size": VOCAB_SIZE,
    "max_length": 96,
    "hidden_size": 32,
    "initializer_range": 0.1,
    "learning_rate": 1e-3,
    "optimizer": "adamw",  # the vendor's adds epsilon elsewhere
}
DATA = {"vocab_size": VOCAB_SIZE, "max_length": 96, "num_buckets": 2, "batch_size": 4}
pytestmark = pytest.mark.filterwarnings(
    "ignore:You are using a custom batch sampler:UserWarning", "ignore:.*sync_dist=True:UserWarning"
)


def _trainer(accelerator, path: Path, callbacks=(), **settings) -> Trainer:
    return Trainer(
        accelerator=accelerator,
        **{
            "devices": 1,
            "max_epochs": 1,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 3,
            "gradient_clip_val": 1.0,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": path,
            "logger": CSVLogger(path, name="csv", version=0),
            "callbacks": [ModelCheckpoint(path / "checkpoints", filename="last"), *callbacks],
            **settings,
        },
    )


def _fit(accelerator, data, path: Path, callbacks=(), name=None, **settings) -> Trainer:
    seed_everything(0, verbose=False)
    trainer = _trainer(accelerator, path, callbacks, **settings)
    trainer.fit(Mrpc(**SMALL, name=name), data)
    return trainer


def _fixtures(kind: str, **settings) -> MrpcData:
    return MrpcData("path", str(FIXTURES / kind), **(DATA | settings))


def _undecided() -> Mrpc:
    """A model that says yes to half of the test pairs of the fixtures."""
    seed_everything(0, verbose=False)
    module = Mrpc(**(SMALL | {"initializer_range": 0.5})).eval()
    data = _fixtures("msr")
    data.setup("test")
    pairs = EncodedPairs(data.pairs["test"], data.tokenizer, DATA["max_length"])
    with torch.no_grad():  # not through a loader, which would give each rank its share
        batch = collate(list(pairs), DATA["max_length"], data.tokenizer.pad_token_id)
        logits = module.logits(batch)
        leaning = (logits[:, 1] - logits[:, 0]).sort().values
        module.model.classifier.bias[1] -= leaning[7:9].mean()
    return module.train()


@pytest.mark.slow_but("True-glue")
@pytest.mark.parametrize("kind", ["glue", "msr"])
@pytest.mark.parametrize("is_pretrained", [False, True])
def test_training_on_hpu_gives_the_bits_of_the_cpu(kind, is_pretrained, pretrained, tmp_path):
    folder = str(pretrained) if is_pretrained else None
    losses, weights = {}, {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        with fused_attention(False):  # whose kernel draws other dropout
            trainer = _fit(
                accelerator,
                _fixtures(kind, tokenizer=folder),
                tmp_path / accelerator,
                [recorded],
                name=folder,
            )
        losses[accelerator] = torch.stack(recorded.values)
        state = trainer.lightning_module.state_dict()
        weights[accelerator] = {name: value.cpu() for name, value in state.items()}
    assert len(losses["cpu"]) in (9, 10)
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=0, atol=0)
    torch.testing.assert_close(weights["hpu"], weights["cpu"], rtol=0, atol=0)


def test_fused_attention_trains_like_the_cpu(tmp_path):
    losses = {}
    for accelerator in ("cpu", "hpu"):
        recorded = Losses()
        seed_everything(0, verbose=False)
        trainer = _trainer(accelerator, tmp_path / accelerator, [recorded])
        trainer.fit(Mrpc(**SMALL, dropout=0.0), _fixtures("glue"))
        losses[accelerator] = torch.stack(recorded.values)
    torch.testing.assert_close(losses["hpu"], losses["cpu"], rtol=1e-5, atol=0)


@pytest.mark.slow
def test_the_pairs_of_the_fixtures_can_be_learnt_by_heart(pretrained, tmp_path):
    seed_everything(0, verbose=False)
    folder = str(pretrained)
    data = _fixtures("glue", tokenizer=folder, batch_size=12, num_buckets=1)
    module = Mrpc(**(SMALL | {"learning_rate": 5e-3}), name=folder, dropout=0.0)
    trainer = _trainer("hpu", tmp_path, max_epochs=25, limit_val_batches=0)
    trainer.fit(module, data)
    data.pairs["validation"] = data.pairs["train"]
    data._encoded = {}
    scores = _trainer("hpu", tmp_path, logger=False).validate(module, data, verbose=False)[0]
    assert scores["val/f1"] > 0.95


def test_scores_are_those_of_scikit_learn_over_each_pair_once(make_data, tmp_path, capsys):
    seed_everything(0, verbose=False)
    module = _undecided()
    data = make_data(path=str(FIXTURES / "msr"), batch_size=5)  # 16 test pairs: 4 rows fill up
    scores = _trainer("cpu", tmp_path, [RunReport()]).test(module, data, verbose=False)[0]
    predictions, labels = [], []
    with torch.no_grad():
        for batch in make_data(path=str(FIXTURES / "msr"), batch_size=1).test_dataloader():
            predictions += module.eval().logits(batch).argmax(-1).tolist()
            labels += batch["labels"].tolist()
    assert len(labels) == 16
    assert sum(predictions) == 8
    assert scores["test/f1"] == pytest.approx(f1_score(labels, predictions))
    assert scores["test/accuracy"] == pytest.approx(accuracy_score(labels, predictions))
    printed = capsys.readouterr().out
    assert "test: 16 pairs, from" in printed
    assert f"F1 {scores['test/f1']:.4f}, accuracy {scores['test/accuracy']:.4f}" in printed
    assert re.search(rf"always a paraphrase +F1 {f1_score(labels, [1] * 16):.4f}", printed)
    assert "NOT TRAINED: random weights" in printed
    assert "overlap of words" in printed
    assert "of the pairs only" not in printed


def test_a_fit_ends_with_the_baselines_beside_the_model(make_data, tmp_path, capsys):
    _fit("cpu", make_data(), tmp_path, [RunReport()], limit_val_batches=1)
    printed = capsys.readouterr().out
    assert printed.count("validation: 12 pairs, from") == 1
    assert "measured on 4 of the pairs only" in printed


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_fit_goes_on_within_an_epoch_with_the_same_bits(make_data, tmp_path):
    losses = {}
    for name, checkpoint in (("whole", None), ("resumed", tmp_path / "whole" / "step=6.ckpt")):
        recorded, path = Losses(), tmp_path / name
        saving = ModelCheckpoint(path, "{step}", every_n_train_steps=6, save_top_k=-1)
        seed_everything(0, verbose=False)
        callbacks = [recorded, saving]
        trainer = _trainer("hpu", path, callbacks=callbacks, logger=False, max_epochs=2)
        trainer.fit(Mrpc(**SMALL, dropout=0.0), make_data(), ckpt_path=checkpoint)
        losses[name] = recorded.values
    assert [len(values) for values in losses.values()] == [18, 12]
    torch.testing.assert_close(losses["resumed"], losses["whole"][6:], rtol=0, atol=0)


def test_losses_are_logged_in_log_steps_and_scores_after_validation(make_data, tmp_path):
    trainer = _fit("cpu", make_data(), tmp_path)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) + 1 for row in rows if row["train/loss"]] == [3, 6, 9]
    assert sum(bool(row["val/f1"]) for row in rows) == 1
    assert trainer.callback_metrics["val/f1"].device.type == "cpu"


@pytest.mark.parametrize("is_pretrained", [False, True])
def test_an_exported_model_answers_as_the_trained_one(
    is_pretrained, pretrained, make_data, tmp_path
):
    folder = str(pretrained) if is_pretrained else None
    data = make_data(tokenizer=folder)
    trainer = _fit("hpu", data, tmp_path, name=folder)
    export(tmp_path / "checkpoints" / "last.ckpt", tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").exists()
    # The name that transformers 5 gives to the class of a trained tokenizer is unknown to 4.
    written = (tmp_path / "export" / "tokenizer_config.json").read_text()
    assert "TokenizersBackend" not in written
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    trained = trainer.lightning_module.cpu().eval()
    for batch in make_data(tokenizer=folder, batch_size=1).val_dataloader():
        pair = data.pairs["validation"][batch["index"][0]]
        encoded = tokenizer(pair.first, pair.second, return_tensors="pt")
        assert encoded["token_type_ids"].sum() > 0
        torch.testing.assert_close(
            model(**encoded).logits, trained.logits(batch), rtol=0, atol=1e-5
        )


def _predict(accelerator, path: Path, devices=1) -> None:
    seed_everything(0, verbose=False)
    module = _undecided()
    writer = SubmissionWriter(str(path / "MRPC.tsv"))
    trainer = _trainer(accelerator, path, [writer], devices=devices)
    trainer.predict(module, _fixtures("glue", batch_size=5))


def test_predict_writes_each_pair_in_the_form_of_glue(make_data, tmp_path):
    _predict("hpu", tmp_path)
    lines = (tmp_path / "MRPC.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    rows = [tuple(map(int, line.split("\t"))) for line in lines[1:]]
    assert [index for index, _ in rows] == list(range(16))
    seed_everything(0, verbose=False)
    module = _undecided().eval()
    for batch in make_data(batch_size=1).predict_dataloader():
        assert rows[batch["index"][0]][1] == module.logits(batch).argmax(-1).item()
    assert {label for _, label in rows} == {0, 1}


def _on_two_cards(rank, path):
    path = Path(path)
    seed_everything(0, verbose=False)
    data = _fixtures("msr", batch_size=2)
    recorded = Losses()
    trainer = _trainer("hpu", path, [recorded], devices=2)
    module = Mrpc(**SMALL)
    trainer.fit(module, data)
    scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
    num_evaluated = module.num_evaluated
    seen = [int(i) for b in data.val_dataloader() for i in b["index"][b["is_real"]]]
    module.load_state_dict(_undecided().state_dict())
    tested = _trainer("hpu", path, devices=2).test(module, data, verbose=False)[0]
    _predict("hpu", path, devices=2)
    state = {name: value.cpu() for name, value in trainer.lightning_module.state_dict().items()}
    return scores, num_evaluated, seen, len(recorded.values), tested, state


@pytest.mark.slow
def test_two_cards_count_each_pair_once_and_agree(tmp_path):
    ranks = run_trainers(_on_two_cards, tmp_path, str(tmp_path), timeout=200)
    (scores, count, seen, steps, tested, state), other = ranks
    assert count == other[1] == 6
    assert sorted(seen + other[2]) == list(range(6))
    assert (scores, tested, steps) == (other[0], other[4], other[3])
    torch.testing.assert_close(state, other[5], rtol=0, atol=0)
    (tmp_path / "alone").mkdir()
    _predict("cpu", tmp_path / "alone")
    assert (tmp_path / "MRPC.tsv").read_text() == (tmp_path / "alone" / "MRPC.tsv").read_text()


def test_a_lazy_run_compiles_two_graphs_a_phase_and_bucket_and_never_waits(tmp_path):
    result = fork_python(
        f"""
        from pathlib import Path
        from lightning_gaudi.callbacks import GraphMonitor, TokenThroughput
        from lightning_gaudi.data import describe
        from tests.recipes.mrpc.test_training import _fit, _fixtures

        monitor, speed = GraphMonitor(), TokenThroughput(num_warmup_steps=2)
        data = _fixtures("msr", num_buckets=2, batch_size=4)
        trainer = _fit("hpu", data, Path({str(tmp_path)!r}), [monitor, speed], max_epochs=3,
                       check_val_every_n_epoch=1)
        report = monitor.report
        buckets = [describe(loader).num_compilations
                   for loader in (data.train_dataloader(), data.val_dataloader())]
        compiled = report.graph_compilations["validation"]
        print(*buckets, report.training_graphs, compiled, report.host_syncs_per_step,
              report.host_syncs_per_log_step, report.num_log_steps, report.host_syncs["validation"])
        assert speed.report.num_tokens > 0
        assert speed.report.token_efficiency < 1
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
        timeout=200,
    )
    train, validation, training, validating, syncs, log_syncs, log_steps, waits = map(
        float, result.stdout.splitlines()[-1].split()
    )
    assert train == 2
    assert training <= 2 * train + 2  # forward and backward of each bucket; first and later steps
    assert validating <= 2 * validation
    assert syncs == 0
    assert log_syncs == 2  # for what is logged, and for losses that might not be finite
    assert log_steps > 5
    assert waits == 3  # one for each validation
