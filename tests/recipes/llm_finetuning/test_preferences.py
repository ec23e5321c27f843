"""Which of two answers is the better one: rows, loss, and what beats the model as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recipes.common.errors import UserError
from recipes.llm_finetuning.adapters import is_of_adapter, without_adapters
from recipes.llm_finetuning.conversations import open_conversations, read_preferences
from recipes.llm_finetuning.data import LlmData
from recipes.llm_finetuning.embedded import embedded_preferences
from recipes.llm_finetuning.losses import answer_log_probabilities, preference_loss
from recipes.llm_finetuning.module import LlmFinetuning
from tests.recipes.llm_finetuning.conftest import make_module, small_data
from tests.recipes.llm_finetuning.test_adapters import _fit, cli_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:You are using a custom batch sampler:UserWarning",
    "ignore:.*sync_dist=True:UserWarning",
    # Lightning 2.6.6 calls functions that jsonargparse 4.53 has renamed.
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
)
ASKED = {"role": "user", "content": "Why?"}
GOOD, BAD = "Because it rains.", "No."


def _answer(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


LAYOUTS = {
    "texts": {"prompt": "Why?", "chosen": GOOD, "rejected": BAD},
    "prompt of messages": {
        "prompt": [ASKED],
        "chosen": [_answer(GOOD)],
        "rejected": [_answer(BAD)],
    },
    "whole conversations": {
        "chosen": [ASKED, _answer(GOOD)],
        "rejected": [ASKED, _answer(BAD)],
    },
    "a prompt beside conversations": {
        "prompt": "Why?",
        "chosen": [ASKED, _answer(GOOD)],
        "rejected": [ASKED, _answer(BAD)],
    },
}


def _write(folder: Path, *rows: object) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def _read(path: Path) -> Any:
    options: dict[str, Any] = {"subset": None, "columns": None, "held_out_share": 0.0, "seed": 0}
    return [
        *read_preferences(
            open_conversations("path", str(path), objective="dpo", **options)["train"]
        )
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_preferences_of_known_layouts_are_read(name: str, tmp_path: Path) -> None:
    [(chosen, rejected)] = _read(_write(tmp_path, LAYOUTS[name]))
    assert chosen.question == rejected.question == (("user", "Why?"),)
    assert (chosen.answer, rejected.answer) == (GOOD, BAD)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_system_message_in_a_column_of_its_own_is_read(name: str, tmp_path: Path) -> None:
    [(chosen, rejected)] = _read(_write(tmp_path, {**LAYOUTS[name], "system": "Be brief."}))
    assert chosen.question == rejected.question == (("system", "Be brief."), ("user", "Why?"))


def test_a_conversation_keeps_its_own_system_message(tmp_path: Path) -> None:
    said = {"role": "system", "content": "Be kind."}
    row = {
        "chosen": [said, ASKED, _answer(GOOD)],
        "rejected": [said, ASKED, _answer(BAD)],
        "system": "Be brief.",
    }
    [(chosen, _)] = _read(_write(tmp_path, row))
    assert chosen.question == (("system", "Be kind."), ("user", "Why?"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Why?", "chosen": GOOD}, r"no column 'rejected'"),
        ({"prompt": "Why?", "chosen": GOOD, "rejected": " "}, r"'rejected' is empty"),
        (
            {"chosen": GOOD, "rejected": BAD},
            r"line 1: 'chosen' is a text, and there is no column 'prompt'",
        ),
        (
            {
                "chosen": [ASKED, _answer(GOOD)],
                "rejected": [{**ASKED, "content": "x"}, _answer(BAD)],
            },
            r"'chosen' and 'rejected' answer different questions",
        ),
        ({"chosen": [ASKED], "rejected": [ASKED]}, r"the conversation has no answer"),
    ],
)
def test_a_row_that_is_no_preference_is_named(row: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        _read(_write(tmp_path, row))


def test_embedded_preferences_differ_in_the_answer_alone() -> None:
    pairs = embedded_preferences("validation", 0)
    assert len(pairs) > 500
    for chosen, rejected in pairs:
        assert chosen.question == rejected.question
        assert chosen.answer != rejected.answer


def _by_hand(module: LlmFinetuning, data: LlmData, numbers: list[int]) -> Tensor:
    """The sum of the losses of pairs, each of whose answers is computed alone."""
    rows, total = data.rows("validation"), torch.zeros(())
    for number in numbers:
        gains = []
        for part in (2 * number, 2 * number + 1):
            row = {name: torch.from_numpy(each)[None] for name, each in rows[part].items()}
            tokens = row["input_ids"]
            ones, places = torch.ones_like(tokens), torch.arange(tokens.shape[1])[None]
            found = []
            for is_reference in (False, True):
                if is_reference:
                    with without_adapters(module.model), torch.no_grad():
                        logits = module._head(module.hidden(tokens, ones, places))
                else:
                    logits = module._head(module.hidden(tokens, ones, places))
                each = functional.cross_entropy(
                    logits[0].float(), row["labels"][0], ignore_index=-100, reduction="sum"
                )
                found.append(-each)
            gains.append(found[0] - found[1])
        total = total - functional.logsigmoid(0.1 * (gains[0] - gains[1]))
    return total


@pytest.mark.parametrize("num_chunks", [1, 4])
def test_packed_preferences_have_the_loss_that_each_has_alone(
    base: str, pairs: Path, num_chunks: int
) -> None:
    torch.manual_seed(0)
    module = make_module(base, method="lora", lora_rank=4, loss_chunks=num_chunks)
    for name, weight in module.named_parameters():
        if is_of_adapter(name):
            torch.nn.init.normal_(weight, std=0.3)
    data = small_data(base, pairs, objective="dpo", batch_size=8, pack_length=160)
    batch = next(iter(data.val_dataloader()))
    assert batch["num_sequences"] > 2 * len(batch["input_ids"])
    losses = module({**batch, "mean_learnt": 1.0})
    losses["loss"].backward()
    found = [each.grad.clone() for each in module.parameters() if each.grad is not None]
    module.zero_grad()
    expected = _by_hand(module, data, list(range(16)))
    expected.backward()
    sums = [each.grad for each in module.parameters() if each.grad is not None]
    torch.testing.assert_close(losses["loss"], expected, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found, sums, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=max(1e-6, 2e-5 * scale))


def test_a_run_begins_without_a_preference_and_gets_one(
    base: str, pairs: Path, tmp_path: Path
) -> None:
    settings = ("--data.objective=dpo", "--data.pack_length=128", "--model.learning_rate=1e-2")
    more = ("--trainer.max_steps=24", "--trainer.limit_val_batches=4")
    checks = ("--trainer.val_check_interval=24", "--trainer.check_val_every_n_epoch=null")
    cli = cli_of(tmp_path, base, pairs, *settings, *more, *checks)
    losses = _fit(cli)
    weight = losses[0] / torch.log(torch.tensor(2.0)).item()  # pairs of the batch, of the mean
    assert 0.5 < weight < 1.5
    metrics = cli.trainer.callback_metrics
    assert metrics["val/loss"].item() < 0.69
    assert metrics["val/accuracy"].item() > 0.6
    on_cpu = cli_of(tmp_path / "cpu", base, pairs, *settings, *more, "--trainer.accelerator=cpu")
    assert losses == pytest.approx(_fit(on_cpu), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pack_length": 100}, r"pack_length=100 does not hold two answers of data\.max_length=64"),
        ({"concatenated": True}, r"concatenated=true cuts rows anywhere"),
        ({"learns_questions": True}, r"learns_questions=true is for data\.objective=sft"),
    ],
)
def test_settings_that_contradict_preferences_are_refused(
    base: str, pairs: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        small_data(base, pairs, objective="dpo", **settings)


def test_preferences_want_adapters(base: str, pairs: Path, tmp_path: Path) -> None:
    settings = ("--data.objective=dpo", "--data.pack_length=128", "--model.method=full")
    with pytest.raises(UserError, match=r"objective=dpo compares with the model as it was.*lora"):
        _fit(cli_of(tmp_path, base, pairs, *settings))


def test_autocast_of_a_card_rounds_no_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, before = 4 * torch.randn(2, 2, 40, 32, generator=generator)  # [B, T, V] of two models
    labels = torch.randint(0, 32, (2, 40), generator=generator)
    sequence_ids = (torch.arange(40) // 10 + 1).expand(2, 40)

    def losses(device: str) -> list[Tensor]:
        texts = [each.to(device) for each in (labels, sequence_ids)]
        gains = (
            answer_log_probabilities(each.to(device), *texts, lambda hidden: hidden, 2, 4)
            for each in (logits, before)
        )
        return [each.cpu() for each in preference_loss(*gains, texts[1], 0.1)]

    expected = losses("cpu")
    with torch.autocast("hpu", torch.bfloat16):
        torch.testing.assert_close(losses("hpu"), expected)
