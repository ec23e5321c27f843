"""Answers are learnt, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from recipes.common.errors import UserError
from recipes.llm_finetuning.conversations import Conversation, Message
from recipes.llm_finetuning.encoding import (
    IGNORED,
    Template,
    encode_conversations,
    encode_documents,
)

LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>[INST] {{ m.content | trim }} "
    "[/INST]{% else %} {{ m.content | trim }} <|im_end|>{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen 3's: only the last answer has its thoughts."""
UPPER = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{{ m.content }}{% endfor %}"
)


def _talk(*contents: str) -> Conversation:
    roles = ("user", "assistant")
    turns = (Message(roles[number % 2], each) for number, each in enumerate(contents))
    return Conversation(tuple(turns), "rows.jsonl, line 7")


TWO = _talk("407 in words?", "four hundred", "And 12?", "twelve")


def _learnt(tokenizer: Any, *rows: Conversation, max_length: int = 128) -> list[str]:
    encoded, _ = encode_conversations(rows, tokenizer, max_length)
    labels = (encoded[number]["labels"] for number in range(len(encoded)))
    return [tokenizer.decode(each[each != IGNORED]) for each in labels]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "four hundred<|im_end|>\ntwelve<|im_end|>\n"),
        (LLAMA_2, " four hundred <|im_end|> twelve <|im_end|>"),
        (THINKING, "four hundred<|im_end|>\n<think></think>twelve<|im_end|>\n"),
    ],
    ids=["chatml", "llama 2", "thinking"],
)
def test_all_answers_and_what_ends_them_are_learnt(
    tokenizer: Any, template: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if template is not None:
        monkeypatch.setattr(tokenizer, "chat_template", template)
    assert _learnt(tokenizer, TWO) == [expected]


def test_a_label_is_the_token_that_follows(tokenizer: Any) -> None:
    encoded, cut = encode_conversations([TWO], tokenizer, 64)
    row = encoded[0]
    is_learnt = row["labels"][:-1] != IGNORED
    assert row["labels"][-1] == IGNORED
    assert (row["labels"][:-1] == row["input_ids"][1:])[is_learnt].all()
    assert tokenizer.decode(row["input_ids"]) == Template(tokenizer).text(TWO)[0]
    assert cut == (0, 0)


def test_a_prompt_ends_where_the_answer_begins(tokenizer: Any) -> None:
    template = Template(tokenizer)
    text, spans = template.text(TWO)
    assert template.prompt(TWO) == text[: spans[-1].start]


def test_without_a_template_a_row_is_a_question_and_its_answer(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    assert _learnt(tokenizer, _talk("2 and 2 is ", "4")) == ["4<|im_end|>"]
    with pytest.raises(UserError, match=r"line 7: the tokenizer has no chat template.*chatml"):
        _learnt(tokenizer, TWO)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (UPPER, r"line 7: the tokenizer's chat template does not write message 2 right"),
        (ALTERNATING, r"line 7: the tokenizer's chat template refuses .*: Roles must alternate\."),
    ],
)
def test_what_a_template_does_not_take_is_named(
    tokenizer: Any, template: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    row = TWO if template == UPPER else Conversation(TWO.messages[1:], TWO.place)
    with pytest.raises(UserError, match=message):
        _learnt(tokenizer, row)


@pytest.mark.parametrize("max_length", [8, 12, 16, 24])
def test_a_row_that_is_cut_has_an_answer_left(tokenizer: Any, max_length: int) -> None:
    rows = [_talk("Why " * number + "?", "Because it does.") for number in range(1, 20)]
    encoded, cut = encode_conversations(rows, tokenizer, max_length)
    assert len(encoded) == len(rows)
    assert encoded.lengths.max() <= max_length
    for number in range(len(encoded)):
        labels = encoded[number]["labels"]
        assert (labels != IGNORED).any()
        assert labels[-1] == IGNORED
    assert 0 < cut.num_at_start <= cut.num_rows < len(rows) + 1


@pytest.mark.parametrize("max_length", [16, 24, 40])
def test_two_answers_that_are_cut_go_on_answering_one_question(
    tokenizer: Any, max_length: int
) -> None:
    rows = [_talk("Why " * 12 + "?", "Because."), _talk("Why " * 12 + "?", "It is so " * 4)]
    encoded, _ = encode_conversations(rows, tokenizer, max_length, together=2)
    assert encoded.lengths.max() <= max_length
    learnt = [encoded[number]["labels"] != IGNORED for number in range(2)]
    starts = [int(each.argmax()) for each in learnt]
    assert starts[0] == starts[1]
    assert all(each.any() for each in learnt)
    one, other = (encoded[number]["input_ids"][: starts[0] + 1] for number in range(2))
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize("together", [1, 2])
def test_an_answer_whose_characters_no_token_stands_for_is_named(together: int) -> None:
    plain = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UserError, match="line 7: its answer has no token"):
        encode_conversations([_talk("ab", "a"), _talk("ab", "c")], tokenizer, 8, together=together)


def test_questions_are_learnt_where_that_is_asked_for(tokenizer: Any) -> None:
    encoded, _ = encode_conversations([TWO], tokenizer, 128, learns_questions=True)
    row = encoded[0]
    assert row["labels"].tolist() == [*row["input_ids"][1:], IGNORED]


def test_a_text_begins_as_the_tokenizer_begins_one(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama's puts a token there, which a template writes and plain texts have to have, too."""
    monkeypatch.setattr(tokenizer, "chat_template", None)
    state = tokenizer.backend_tokenizer
    before = state.post_processor
    begin = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    state.post_processor = processors.TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=begin
    )
    try:
        encoded, _ = encode_conversations([_talk("2 and 2 is ", "4")], tokenizer, 64)
    finally:
        state.post_processor = before or processors.Sequence([])
    assert tokenizer.decode(encoded[0]["input_ids"]) == "<|im_start|>2 and 2 is 4<|im_end|>"


def test_rows_that_are_concatenated_are_one_text(tokenizer: Any) -> None:
    rows = [_talk("Why?", "Because."), _talk("When?", "Now and then.")] * 5
    whole, _ = encode_conversations(rows, tokenizer, 64)
    cut = whole.concatenated(16, is_all_learnt=False)
    tokens = np.concatenate([whole[number]["input_ids"] for number in range(len(whole))])
    found = np.concatenate([cut[number]["input_ids"] for number in range(len(cut))])
    assert set(cut.lengths) == {16}
    assert found.tolist() == tokens[: len(found)].tolist()
    assert len(tokens) - len(found) < 16
    assert 0 < len(cut.learnt) < len(found)
    row = whole.concatenated(16, is_all_learnt=True)[0]
    assert row["labels"].tolist() == [*row["input_ids"][1:], IGNORED]


def test_documents_are_learnt_whole_and_end(tokenizer: Any) -> None:
    encoded = encode_documents(["one two three " * 9, "four"], tokenizer, 16)
    tokens = [encoded[number]["input_ids"] for number in range(len(encoded))]
    assert (
        tokenizer.decode(np.concatenate(tokens))
        == "one two three " * 9 + "<|im_end|>four<|im_end|>"
    )
    for number, ids in enumerate(tokens):
        assert encoded[number]["labels"].tolist() == [*ids[1:], IGNORED]
