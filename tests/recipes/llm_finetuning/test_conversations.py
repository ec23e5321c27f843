"""What rows are conversations, and what is said of those that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.common import reader
from recipes.common.errors import UserError
from recipes.llm_finetuning.conversations import (
    Conversation,
    Message,
    open_conversations,
    read_conversations,
)
from recipes.llm_finetuning.embedded import embedded_conversations, in_words


def _read(path: Path, columns: dict[str, str] | None = None) -> list[Conversation]:
    options: dict[str, Any] = {"objective": "sft", "subset": None, "columns": columns}
    tables = open_conversations("path", str(path), held_out_share=0.1, seed=0, **options)
    return [row for table in tables.values() for row in read_conversations(table)]


def _write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def _chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


ASKED, ANSWERED = ("user", "Why?"), ("assistant", "Because.")
PAIR = (Message(*ASKED), Message(*ANSWERED))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (_chat(ASKED, ANSWERED), PAIR),
        (_chat(ASKED, ANSWERED, ASKED), PAIR),
        (_chat(("system", "Be brief."), ASKED, ANSWERED), (Message("system", "Be brief."), *PAIR)),
        ({"messages": json.dumps(_chat(ASKED, ANSWERED)["messages"])}, PAIR),
        ({"prompt": "Why?", "completion": "Because."}, PAIR),
        ({"instruction": "Why?", "output": "Because.", "input": ""}, PAIR),
        ({"instruction": "Why?", "response": "Because.", "context": ""}, PAIR),
        ({"question": "Why?", "answer": "Because."}, PAIR),
        (
            {"instruction": "Why?", "input": "It rains.", "output": "Because."},
            (Message("user", "Why?\n\nIt rains."), PAIR[1]),
        ),
    ],
    ids=["chat", "open end", "system", "csv", "pair", "alpaca", "dolly", "gsm8k", "input"],
)
def test_rows_of_known_layouts_are_read(row: object, expected: object, tmp_path: Path) -> None:
    [found] = _read(_write(tmp_path / "train.jsonl", row), None)
    assert found.messages == expected


def test_conversations_may_be_those_of_sharegpt(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    [found] = _read(_write(tmp_path / "train.jsonl", {"conversations": turns}))
    assert found.messages == PAIR
    turns[0]["from"] = "function_call"
    with pytest.raises(UserError, match=r"message 1 has role 'function_call'"):
        _read(_write(tmp_path / "train.jsonl", {"conversations": turns}))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "",
            "Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nWhy?\n\n### Response:",
        ),
        (
            "It rains.",
            "Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nWhy?\n\n### Input:\nIt rains.\n\n### Response:",
        ),
    ],
)
def test_prompts_may_be_alpaca_s(more: str, expected: str, tmp_path: Path) -> None:
    row = {"instruction": "Why?", "output": "Because.", "input": more}
    path = str(_write(tmp_path / "train.jsonl", row))
    options: dict[str, Any] = {"objective": "sft", "subset": None, "columns": None}
    tables = open_conversations("path", path, held_out_share=0.0, seed=0, **options)
    [found] = read_conversations(tables["train"], "alpaca")
    assert found.messages == (Message("user", expected), PAIR[1])


def test_prompts_may_be_questions(tmp_path: Path) -> None:
    path = str(_write(tmp_path / "train.jsonl", {"question": "Why?", "answer": "Because."}))
    options: dict[str, Any] = {"objective": "sft", "subset": None, "columns": None}
    tables = open_conversations("path", path, held_out_share=0.0, seed=0, **options)
    [found] = read_conversations(tables["train"], "question")
    assert found.messages == (Message("user", "Question: Why?\n\nAnswer: "), PAIR[1])


def test_a_row_tells_its_line_when_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find a line its file is read up to there: of each row that would take for ever."""
    path = _write(tmp_path / "train.jsonl", *[_chat(ASKED, ANSWERED)] * 3)
    asked: list[int] = []
    found = reader.line_of
    monkeypatch.setattr(reader, "line_of", lambda *of: asked.append(of[1]) or found(*of))
    rows = _read(path)
    assert not asked
    assert rows[2].place.endswith("train.jsonl, line 3")


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.jsonl", {"q": "Why?", "a": "Because."})
    [found] = _read(path, {"prompt": "q", "completion": "a"})
    assert found.messages == PAIR


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": []}, r"line 2: the column 'messages' is empty"),
        (_chat(ASKED), r"line 2: the conversation has no answer"),
        (_chat(ANSWERED), r"no message with the role 'user'"),
        (_chat(ASKED, ("assistant", " ")), r"message 2, an answer of the assistant, is empty"),
        (_chat(ASKED, ("bot", "x")), r"message 2 has role 'bot'\. A message needs a role, one of"),
        ({"messages": [{"role": "user", "content": None}]}, r"message 1 has content None"),
        ({"messages": [{"content": "x"}]}, r"message 1 has role None"),
    ],
)
def test_a_row_that_is_no_conversation_is_named(row: Any, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "train.jsonl", _chat(ASKED, ANSWERED), row)
    with pytest.raises(UserError, match=message):
        _read(path)


@pytest.mark.parametrize("value", ["no", ["hello"], "[3]"])
def test_what_is_no_list_of_messages_is_named(value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 1: .*(no list of messages|has role None)"):
        _read(_write(tmp_path / "train.jsonl", {"messages": value}))


@pytest.mark.parametrize("name", ["prompt", "completion"])
def test_a_pair_without_one_of_its_texts_is_named(name: str, tmp_path: Path) -> None:
    row = {"prompt": "Why?", "completion": "Because.", name: " "}
    with pytest.raises(UserError, match=rf"line 1: the column '{name}' is empty"):
        _read(_write(tmp_path / "train.jsonl", row))


def test_rows_are_held_out_by_their_messages(tmp_path: Path) -> None:
    rows = [_chat(("user", f"{number}?"), ANSWERED) for number in range(200)]
    path = str(_write(tmp_path / "rows.jsonl", *rows))
    options: dict[str, Any] = {"objective": "sft", "subset": None, "columns": None}
    tables = open_conversations("path", path, held_out_share=0.1, seed=0, **options)
    sizes = {split: len(list(read_conversations(table))) for split, table in tables.items()}
    assert sum(sizes.values()) == 200
    assert all(10 <= sizes[split] <= 30 for split in ("validation", "test"))


def test_numbers_are_written_in_words() -> None:
    found = {number: in_words(number) for number in (0, 7, 13, 20, 42, 100, 407, 999)}
    assert found == {
        **{0: "zero", 7: "seven", 13: "thirteen", 20: "twenty", 42: "forty two"},
        **{100: "one hundred", 407: "four hundred seven", 999: "nine hundred ninety nine"},
    }
    assert len({in_words(number) for number in range(1000)}) == 1000


def test_what_is_asked_in_one_split_is_asked_in_no_other() -> None:
    asked = {
        split: {
            each.content
            for row in embedded_conversations(split, 0)
            for each in row.messages
            if each.role == "user"
        }
        for split in ("train", "validation", "test")
    }
    assert not asked["train"] & asked["validation"]
    assert not asked["train"] & asked["test"]
    assert not asked["validation"] & asked["test"]
    assert all(len(each) > 300 for each in asked.values())
    answers = {row.answer for row in embedded_conversations("test", 0) if row.task == "digits"}
    assert len(answers) == 100
