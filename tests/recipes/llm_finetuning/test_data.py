"""Batches of one shape, and prompts as the model was trained with them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.common.errors import UserError
from recipes.llm_finetuning.data import LlmData
from tests.recipes.llm_finetuning.conftest import small_data


@pytest.mark.parametrize("most", [None, 1, 2])
def test_all_batches_have_one_shape(base: str, rows: Path, most: int | None) -> None:
    data = small_data(base, rows, pack_length=96, max_sequences_per_pack=most)
    batches = [*data.train_dataloader()]
    assert {tuple(each["input_ids"].shape) for each in batches} == {(2, 96)}
    learnt = sum(int((each["labels"] >= 0).sum()) for each in batches)
    # What does not fill a batch at the end of an epoch comes in another one.
    assert 0.8 * len(data.rows("train").learnt) < learnt <= len(data.rows("train").learnt)
    if most is not None:
        assert max(int(each["sequence_ids"].max()) for each in batches) <= most


def test_rows_of_their_own_come_in_a_few_lengths(base: str, rows: Path) -> None:
    data = small_data(base, rows, max_sequences_per_pack=1, buckets=[24, 40, 64])
    batches = [*data.val_dataloader()]
    lengths = {each["input_ids"].shape[1] for each in batches}
    assert len(lengths) > 1
    assert lengths <= {24, 40, 64}
    learnt = sum(int((each["labels"] >= 0).sum()) for each in batches)
    assert learnt == data.num_judged("validation")
    for batch in batches:
        assert int(batch["sequence_ids"].max()) == 1


def test_the_end_is_learnt_where_it_is_the_padding_too(
    base: str, rows: Path, tmp_path: Path
) -> None:
    tokenizer = small_data(base, rows).get_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    data = small_data(str(tmp_path), rows)
    end = data.pad_token_id
    assert end == tokenizer.eos_token_id
    batch = next(iter(data.val_dataloader()))
    assert (batch["input_ids"][batch["sequence_ids"] == 0] == end).all()
    assert (batch["labels"][batch["sequence_ids"] == 0] < 0).all()
    # Each document has an answer, and what ends it is learnt.
    assert int((batch["labels"] == end).sum()) >= batch["num_sequences"]


def test_rows_that_are_cut_from_one_text_lose_nothing_before(base: str, rows: Path) -> None:
    whole = small_data(base, rows, max_length=256).rows("train")
    cut = small_data(base, rows, max_length=16, concatenated=True).rows("train")
    assert 0 <= whole.lengths.sum() - cut.lengths.sum() < 16


def test_an_evaluation_has_each_token_once(base: str, rows: Path) -> None:
    data = small_data(base, rows, pack_length=96)
    learnt = torch.cat([each["labels"][each["labels"] >= 0] for each in data.val_dataloader()])
    expected = torch.from_numpy(data.rows("validation").learnt).long()
    assert sorted(learnt.tolist()) == sorted(expected.tolist())


def test_the_unigram_is_that_of_the_training_rows(base: str, rows: Path) -> None:
    data = small_data(base, rows)
    counts = torch.bincount(torch.from_numpy(data.rows("train").learnt).long(), minlength=320) + 1.0
    expected = -(counts / counts.sum()).log()[data.rows("validation").learnt].mean()
    assert data.unigram_loss("validation") == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"),
        ({"chat_template": "none"}, "Why?"),
        ({"chat_template": "none", "prompt_format": "alpaca"}, "Below is an instruction"),
    ],
)
def test_given_prompts_are_written_as_rows_are(
    base: str, rows: Path, settings: dict[str, Any], expected: str
) -> None:
    data = small_data(base, rows, prompts=["Why?"], prompt_buckets=[256], **settings)
    [prompt] = data.read_prompts()
    assert prompt.text.startswith(expected)
    assert data.get_tokenizer().decode(prompt.tokens) == prompt.text
    if "prompt_format" in settings:
        assert prompt.text.endswith("### Instruction:\nWhy?\n\n### Response:")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 4}, r"data\.max_length=4 leaves no room"),
        ({"pack_length": 32}, r"pack_length=32 does not hold a row of data\.max_length=64"),
        ({"max_sequences_per_pack": 0}, r"max_sequences_per_pack=0 leaves rows empty"),
        ({"validation_share": 0.9}, r"validation_share=0\.9 is not between"),
        ({"buckets": [64]}, r"buckets=\[64\] is for rows of one document each"),
        (
            {"buckets": [32], "max_sequences_per_pack": 1},
            r"buckets=\[32\] must ascend, and the last one must hold data\.max_length=64",
        ),
        ({"prompt_buckets": []}, r"prompt_buckets=\[\] must be one or more lengths"),
        ({"chat_template": "chatlm"}, r"=chatlm is neither a file nor one of chatml, none"),
        ({"source": "embedded"}, r"data\.path is set, but data\.source=embedded"),
        ({"path": None}, r"data\.source=path needs data\.path"),
    ],
)
def test_settings_that_leave_nothing_are_refused(
    base: str, rows: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        small_data(base, rows, **settings)


def test_a_question_that_no_bucket_holds_is_not_to_be_cut(base: str, rows: Path) -> None:
    data = small_data(base, rows, prompts=["why " * 40], prompt_buckets=[16])
    with pytest.raises(UserError, match=r"largest bucket holds 16: .* data\.prompt_buckets\.$"):
        data.read_prompts()


def test_a_fork_reads_what_was_not_read_before_it(base: str, rows: Path) -> None:
    """As a rehearsal of a plan is one: the threads of the tokenizer are not in it."""
    data = small_data(base, rows)
    data.read("fit")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # what ends tests is Python, and would wait
        signal.alarm(60)
        os._exit(len(data.rows("validation")) == 0)
    assert os.waitpid(pid, 0)[1] == 0


def test_text_has_no_questions(base: str) -> None:
    data = LlmData(objective="pretrain", tokenizer=base)
    with pytest.raises(UserError, match=r"objective=pretrain has no questions for `predict`"):
        data.read_prompts()


def test_a_learnt_vocabulary_travels_with_its_template(rows: Path) -> None:
    data = LlmData(source="path", path=str(rows), vocab_size=300)
    tokenizer = data.get_tokenizer()
    again = LlmData(source="path", path=str(rows), vocab_size=300)
    again.load_state_dict(data.state_dict())
    assert again.get_tokenizer().get_vocab() == tokenizer.get_vocab()
    assert again.get_tokenizer().chat_template == tokenizer.chat_template
    digits = tokenizer("407", add_special_tokens=False)["input_ids"]
    assert len(digits) == 3
