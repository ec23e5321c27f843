import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from recipes.bert_pretraining.module import BertPretraining

PHASE1 = {
    "vocab_size": 120,
    "max_seq_length": 32,
    "num_positions": 48,
    "hidden_size": 32,
    "next_sentence": True,
    "optimizer": "lamb",
    "learning_rate": 6e-3,
    "schedule": "polynomial",
    "warmup_steps": 0.25,
    "max_grad_norm": 1.0,
}
PHASE2 = PHASE1 | {"max_seq_length": 48, "learning_rate": 4e-3, "warmup_steps": 0.5}
DATA1 = {"max_seq_length": 32, "max_predictions_per_seq": 8, "next_sentence": True}
DATA2 = DATA1 | {"max_seq_length": 48}


class Start(Callback):
    """What the first optimizer step begins with, and the learning rate of each."""

    def __init__(self):
        self.rates, self.weights, self.moments, self.steps = [], None, None, None

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])
        if self.weights is None:
            state = pl_module.state_dict()
            self.weights = {name: value.cpu().clone() for name, value in state.items()}
            self.moments = _moments(optimizer)
            self.steps = {group.get("step", 0) for group in optimizer.param_groups}


def _moments(optimizer) -> list[torch.Tensor]:
    return [
        optimizer.state[p][name].cpu().clone()
        for group in optimizer.param_groups
        for p in group["params"]
        for name in ("exp_avg", "exp_avg_sq")
        if p in optimizer.state
    ]


def _fit(data, path, num_steps, settings, accelerator="cpu", callbacks=(), resume=None, **options):
    seed_everything(0, verbose=False)
    trainer = Trainer(
        accelerator=accelerator,
        max_steps=num_steps,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        logger=False,
        callbacks=[ModelCheckpoint(path / "checkpoints", filename="last"), *callbacks],
        **{"devices": 1} | options,
    )
    trainer.fit(BertPretraining(**settings), data, ckpt_path=resume, weights_only=resume and True)
    return trainer


@pytest.fixture(scope="module")
def phase1(tmp_path_factory, corpus):
    """A finished phase 1: its folder, and its Trainer."""
    from recipes.bert_pretraining.data import BertData

    folder = tmp_path_factory.mktemp("phase1")
    small = {"vocab_size": 120, "batch_size": 4, "validation_share": 0.1}
    data = BertData("path", str(corpus), cache_dir=str(folder), **small, **DATA1)
    return folder / "checkpoints" / "last.ckpt", _fit(data, folder, 8, PHASE1)


@pytest.mark.parametrize(("accelerator", "optimizer"), [("cpu", "lamb"), ("hpu", "fused_lamb")])
def test_phase_2_takes_weights_and_moments_and_nothing_else(
    make_data, tmp_path, phase1, accelerator, optimizer
):
    checkpoint, trainer = phase1
    start = Start()
    settings = PHASE2 | {"phase1_checkpoint": str(checkpoint), "optimizer": optimizer}
    second = _fit(
        make_data(**DATA2), tmp_path, 4, settings, accelerator, [start], accumulate_grad_batches=2
    )
    torch.testing.assert_close(start.weights, trainer.lightning_module.state_dict())
    expected = _moments(trainer.optimizers[0])
    assert len(expected) == 2 * sum(p.requires_grad for p in trainer.model.parameters())
    torch.testing.assert_close(start.moments, expected, rtol=0, atol=0)
    assert any(moment.abs().max() > 0 for moment in start.moments)
    # The schedule is that of phase 2 from its first step: s / warm-up, then sqrt(1 - s).
    assert start.steps == {0}
    assert second.global_step == 4
    assert start.rates == pytest.approx([4e-3 * r for r in (0.5, 0.5**0.5, 0.25**0.5, 0.0)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_an_interrupted_phase_2_goes_on_as_it_would_have(make_data, tmp_path, phase1):
    settings = PHASE2 | {"phase1_checkpoint": str(phase1[0]), "dropout": 0.0}
    whole, first = Start(), Start()
    complete = _fit(make_data(**DATA2), tmp_path / "whole", 4, settings, callbacks=[whole])

    class Stop(Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.should_stop = trainer.global_step == 2

    _fit(make_data(**DATA2), tmp_path / "half", 4, settings, callbacks=[Stop(), first])
    resumed = Start()
    checkpoint = tmp_path / "half" / "checkpoints" / "last.ckpt"
    rest = _fit(
        make_data(**DATA2), tmp_path / "rest", 4, settings, callbacks=[resumed], resume=checkpoint
    )
    assert first.rates + resumed.rates == whole.rates
    expected = complete.lightning_module.state_dict()
    torch.testing.assert_close(rest.lightning_module.state_dict(), expected, rtol=0, atol=0)


def test_a_checkpoint_of_phase_2_needs_phase_1_no_more(make_data, tmp_path, phase1):
    moved = tmp_path / "moved.ckpt"
    moved.write_bytes(phase1[0].read_bytes())
    settings = PHASE2 | {"phase1_checkpoint": str(moved)}
    trainer = _fit(make_data(**DATA2), tmp_path, 2, settings)
    moved.unlink()
    loaded = BertPretraining.load_from_checkpoint(
        tmp_path / "checkpoints" / "last.ckpt", weights_only=True
    )
    torch.testing.assert_close(loaded.state_dict(), trainer.lightning_module.state_dict())


class Save(Start):
    """`Start`, kept in a file for each rank."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        found = (self.rates, self.weights, self.moments, pl_module.state_dict())
        torch.save(found, self.folder / f"{trainer.global_rank}.pt")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_phase_2_begins_alike_on_all_ranks(make_data, tmp_path, phase1):
    checkpoint, trainer = phase1
    settings = PHASE2 | {"phase1_checkpoint": str(checkpoint)}
    data = make_data(**DATA2, batch_size=2)
    several = {"devices": 2, "strategy": "ddp_spawn", "accumulate_grad_batches": 2}
    _fit(data, tmp_path, 4, settings, callbacks=[Save(tmp_path)], **several)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rates, weights, moments, _ in ranks:
        assert rates == pytest.approx([4e-3 * r for r in (0.5, 0.5**0.5, 0.25**0.5, 0.0)])
        torch.testing.assert_close(weights, trainer.lightning_module.state_dict())
        torch.testing.assert_close(moments, _moments(trainer.optimizers[0]), rtol=0, atol=0)
    torch.testing.assert_close(ranks[0][3], ranks[1][3], rtol=0, atol=0)


def test_phase_2_refuses_what_is_no_phase_1_of_the_same_model(make_data, tmp_path, phase1):
    path = str(phase1[0])
    larger = PHASE2 | {"hidden_size": 64, "phase1_checkpoint": path}
    with pytest.raises(ValueError, match=r"phase1_checkpoint=.*hidden_size 32 \(configured: 64\)"):
        BertPretraining(**larger)
    with pytest.raises(ValueError, match=r"max_position_embeddings 48 \(configured: 64\)"):
        BertPretraining(**PHASE2 | {"num_positions": 64, "phase1_checkpoint": path})
    with pytest.raises(ValueError, match=r"model.optimizer=lamb, whose averages .* of adamw"):
        BertPretraining(**PHASE2 | {"optimizer": "adamw", "phase1_checkpoint": path})
    with pytest.raises(ValueError, match=r"phase1_checkpoint=/none.ckpt does not exist"):
        BertPretraining(**PHASE2 | {"phase1_checkpoint": "/none.ckpt"})
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    with pytest.raises(ValueError, match=r"text.ckpt cannot be read as a checkpoint"):
        BertPretraining(**PHASE2 | {"phase1_checkpoint": str(tmp_path / "text.ckpt")})
    torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
    with pytest.raises(ValueError, match=r"weights.ckpt holds no model with the state of its opt"):
        BertPretraining(**PHASE2 | {"phase1_checkpoint": str(tmp_path / "weights.ckpt")})


def test_phase_2_is_not_begun_twice(make_data, tmp_path, phase1):
    settings = PHASE2 | {"phase1_checkpoint": str(phase1[0])}
    _fit(make_data(**DATA2), tmp_path, 1, settings)
    again = settings | {"phase1_checkpoint": str(tmp_path / "checkpoints" / "last.ckpt")}
    with pytest.raises(ValueError, match=r"was written by phase 2, .* give it as --ckpt_path"):
        BertPretraining(**again)


def test_phase_2_does_not_begin_with_random_weights_by_mistake(make_data, tmp_path):
    with pytest.raises(ValueError, match=r"phase1_checkpoint=required: .* goes on from phase 1"):
        _fit(make_data(**DATA2), tmp_path, 1, PHASE2 | {"phase1_checkpoint": "required"})


def test_phase_2_keeps_the_vocabulary_of_phase_1(make_data, tmp_path, phase1):
    checkpoint, trainer = phase1
    settings = PHASE2 | {"phase1_checkpoint": str(checkpoint)}
    words = trainer.datamodule.tokenizer.get_vocab()
    data = make_data(**DATA2, seed=1)  # other training documents
    assert data.tokenizer.get_vocab() != words
    _fit(data, tmp_path / "own", 1, settings)
    assert data.tokenizer.get_vocab() == words
    make_data(**DATA2, seed=1).tokenizer.save_pretrained(tmp_path / "other")
    named = make_data(**DATA2, tokenizer=str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"another vocabulary than that of data.tokenizer="):
        _fit(named, tmp_path / "named", 1, settings)
