"""A rank that is slower than the others is named, with what `hl-smi` says of its card."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_gaudi.reliability import cards
from lightning_gaudi.reliability.cards import CardQuestion
from lightning_gaudi.reliability.slow_ranks import SlowRanks
from lightning_gaudi.strategies import HPUDDPStrategy
from tests.helpers.trainers import run_trainers


def _named(looks: list[tuple[float, dict[int, tuple[float, float]]]]) -> list[tuple[int, bool]]:
    ranks = SlowRanks(1.5, 60.0)
    return [(slow.rank, slow.is_card) for now, paces in looks for slow in ranks.look(paces, now)]


def _paces(number: int, **others: tuple[float, float]) -> dict[int, tuple[float, float]]:
    return dict.fromkeys(range(number), (0.1, 0.05)) | {
        int(n[1:]): each for n, each in others.items()
    }


def test_a_rank_is_named_that_is_slow_for_long_and_once() -> None:
    slow = _paces(8, r3=(0.2, 0.05))
    assert _named([(0, slow), (59, slow)]) == []
    assert _named([(0, slow), (60, slow), (120, slow)]) == [(3, False)]
    assert _named([(0, slow), (30, _paces(8)), (70, slow)]) == []
    assert _named([(0, slow), (60, slow), (70, _paces(8)), (80, slow), (140, slow)]) == [
        (3, False),
        (3, False),
    ]


def test_hosts_and_cards_are_compared_apart() -> None:
    assert _named([(t, _paces(4, r1=(0.1, 0.1))) for t in (0, 60)]) == [(1, True)]
    assert _named([(t, _paces(4, r1=(0.1, 0.0))) for t in (0, 60)]) == []  # nobody knows


def test_of_two_the_slower_is_named_and_a_rank_alone_is_not() -> None:
    assert _named([(t, {0: (0.3, 0.0), 1: (0.1, 0.0)}) for t in (0, 60)]) == [(0, False)]
    assert _named([(t, {0: (0.3, 0.0)}) for t in (0, 60)]) == []


def test_short_steps_may_differ() -> None:
    assert _named([(t, {0: (0.002, 0.0), 1: (0.001, 0.0)}) for t in (0, 60)]) == []


HL_SMI = """#!/bin/sh
case "$2" in
*clocks*) echo "6, 900 MHz, 1750 MHz"; exit $CLOCKS;;
esac
echo "0, 41, 97 %, 300 W, 0, 0, 0, 0"
echo "6, 88, 99 %, 480 W, 0, 12, 7, 3"
"""
"""Fields as the vendor names them; module 6 is the second line."""


def _tool(folder: Path) -> Path:
    tool = folder / "hl-smi"
    tool.write_text(HL_SMI)
    tool.chmod(0o755)
    return tool


def _answer(question: CardQuestion) -> str:
    end = time.monotonic() + 20
    while (found := question.answer()) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("knows_clocks", [True, False])
def test_hl_smi_is_read(
    tmp_path: Path, knows_clocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCKS", "0" if knows_clocks else "1")
    found = _answer(CardQuestion(str(_tool(tmp_path)), "6"))
    assert found == (
        "module 6: temperature 88, utilization 99 %, power 480 W, uncorrected ECC errors 0, "
        "corrected ECC errors 12, thermal violations 7, power violations 3"
        + ", clock 900 MHz, of at most 1750 MHz"
        * knows_clocks
    )


def test_where_hl_smi_says_nothing_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _answer(CardQuestion(None, "2")) == "module 2: hl-smi is not there to say more"
    assert "cannot be started" in _answer(CardQuestion(str(tmp_path / "none"), "2"))
    tool = _tool(tmp_path)
    assert _answer(CardQuestion(str(tool), "5")) == "module 5: hl-smi does not say more"
    tool.write_text("#!/bin/sh\nexec sleep 60")
    monkeypatch.setattr(cards, "_PATIENCE_S", 0.3)
    assert _answer(CardQuestion(str(tool), "5")) == "module 5: hl-smi does not answer"


class _Samples(Dataset[torch.Tensor]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._pause_s)
        return torch.ones(32)


def _train(rank: int, slow: int, path: str) -> list[str]:
    """Until somebody is named, or for a minute and a half; all stop at the same step."""
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    os.environ["PATH"] = f"{path}:{os.environ['PATH']}"
    said: list[str] = []

    class Until(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step % 20 == 0:
                said[:] = trainer.strategy.slow_ranks
                is_over = bool(said) or time.monotonic() - begin > 90
                trainer.should_stop = trainer.strategy.reduce_boolean_decision(is_over, all=False)

    begin = time.monotonic()
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=3,
        strategy=HPUDDPStrategy(
            reliability={"slow_rank_factor": 2.0, "slow_rank_s": 3.0, "stop_on_nan": False},
            compile="none",
        ),
        max_epochs=1,
        log_every_n_steps=10,
        callbacks=[Until()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BoringModel(), DataLoader(_Samples(0.06 if rank == slow else 0.01)))
    return said


@pytest.mark.slow
def test_a_slow_rank_of_a_fit_is_named_with_its_card(tmp_path: Path) -> None:
    _tool(tmp_path)
    said, *others = run_trainers(
        _train, tmp_path, 1, str(tmp_path), num_ranks=3, env={"CLOCKS": "0"}
    )
    assert others == [[], []]
    assert len(said) == 1
    assert said[0].startswith("rank 1 is slow for ")
    assert "from the end of a step to backward" in said[0]
    assert "; module 1: hl-smi does not say more" in said[0]
