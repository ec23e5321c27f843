"""Reads rows of the user's files as conversations, preferences or documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning_gaudi.untrusted import parse_json
from recipes.common.errors import UserError
from recipes.common.reader import Fields, Row, Table, open_tables
from recipes.common.tables import columns_of

Objective = Literal["sft", "dpo", "pretrain"]
ROLES = ("system", "user", "assistant")
MESSAGES = Fields(texts=(), others=("messages",), published=({"messages": "conversations"},))
"""The layout of chat data: a list of {"role": ..., "content": ...} in each row."""
_SHAREGPT = {"human": "user", "gpt": "assistant", "system": "system"}
"""The roles of ShareGPT's messages, {"from": ..., "value": ...}, which many data sets use."""
PAIRS = Fields(
    texts=("prompt", "completion"),
    optional=("input", "system"),
    published=(
        {"prompt": "instruction", "completion": "output"},  # Alpaca
        {"prompt": "instruction", "completion": "response", "input": "context"},  # Dolly
        {"prompt": "question", "completion": "answer"},  # GSM8K
    ),
)
"""The layout of a prompt and its completion; `input` follows the prompt, `system` precedes it."""
PREFERENCES = Fields(texts=(), others=("chosen", "rejected"), optional=("prompt", "system"))
"""The layout of preferences: two answers to a prompt, or two conversations."""
DOCUMENTS = Fields(texts=("text",))
"""The layout of plain texts, from which pretraining continues."""
PromptFormat = Literal["plain", "alpaca", "question"]
_ALPACA = (
    "Below is an instruction that describes a task{}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{}\n\n{}### Response:"
)
"""Source: the prompts of Stanford Alpaca, https://github.com/tatsu-lab/stanford_alpaca."""
_WITH_INPUT = ", paired with an input that provides further context"
_NAMES = (PAIRS.names, MESSAGES.names, PREFERENCES.names, DOCUMENTS.names)
_ANY = Fields(texts=(), optional=tuple(dict.fromkeys(chain.from_iterable(_NAMES))))


class Message(NamedTuple):
    """A turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """A list of messages that ends with an answer of the assistant."""

    messages: tuple[Message, ...]
    origin: Row | str = ""
    """The row that it was read from, or a name of its source for error messages."""
    task: str = ""
    """The kind of question, where it is known; scores are reported for each kind."""

    @property
    def place(self) -> str:
        """Its source, for error messages."""
        # Of a row this is expensive: its file is read again up to the row.
        return self.origin if isinstance(self.origin, str) else self.origin.place

    @property
    def question(self) -> tuple[Message, ...]:
        """All messages but the last answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        return self.messages[-1].content


def open_conversations(
    source: str,
    path: Any,
    *,
    objective: Objective,
    subset: str | None,
    columns: Mapping[str, str] | None,
    held_out_share: float,
    seed: int,
) -> dict[str, Table]:
    """Returns the splits of a data set, in the layout that its columns have.

    Args:
        source: as in `open_tables`.
        path: likewise.
        objective: decides between the layouts of conversations, preferences and documents.
        subset: as in `open_tables`.
        columns: likewise.
        held_out_share: likewise.
        seed: likewise.

    Raises:
        UserError: as `open_tables`, and for files that have none of the layouts.
    """
    options = {"subset": subset, "columns": columns, "held_out_share": held_out_share, "seed": seed}
    tables = open_tables(source, path, _ANY, **options)
    layouts = {"pretrain": DOCUMENTS, "dpo": PREFERENCES}
    return {
        split: replace(table, fields=layouts.get(objective) or _layout(table, columns or {}))
        for split, table in tables.items()
    }


def _layout(table: Table, columns: Mapping[str, str]) -> Fields:
    first = table.sources[0]
    found = columns_of(first) if isinstance(first, Path) else first[1].column_names
    is_chat = columns.get("messages", "messages") in found or "conversations" in found
    return MESSAGES if is_chat else PAIRS


def read_documents(table: Table) -> Iterator[str]:
    """Yields the texts of the rows; rows without one are left out."""
    return (text for row in table if (text := row.text("text")))


def read_conversations(
    table: Table, prompt_format: PromptFormat = "plain"
) -> Iterator[Conversation]:
    """Yields the conversations of a split.

    Messages after the last answer are left out, because nothing is learnt from them.

    Args:
        table: the split.
        prompt_format: how a prompt and its input are joined, in rows of prompt and completion.

    Raises:
        UserError: A row is no conversation.
    """
    if table.fields is MESSAGES:
        return map(_of_messages, table)
    return (_of_pair(row, prompt_format) for row in table)


def formatted(prompt: str, more: str, prompt_format: PromptFormat) -> str:
    """Returns a prompt joined with its input, which may be empty."""
    if prompt_format == "alpaca":
        middle = f"### Input:\n{more}\n\n" if more else ""
        return _ALPACA.format(_WITH_INPUT if more else "", prompt, middle)
    whole = f"{prompt}\n\n{more}" if more else prompt
    return f"Question: {whole}\n\nAnswer: " if prompt_format == "question" else whole


def read_preferences(
    table: Table, prompt_format: PromptFormat = "plain"
) -> Iterator[tuple[Conversation, Conversation]]:
    """Yields the chosen and the rejected conversation of each row.

    Args:
        table: the split.
        prompt_format: as in `read_conversations`.

    Raises:
        UserError: A row does not have two answers to one question.
    """
    return (_of_preference(row, prompt_format) for row in table)


def _of_preference(row: Row, prompt_format: PromptFormat) -> tuple[Conversation, Conversation]:
    chosen, rejected = (_of_answer(row, name, prompt_format) for name in ("chosen", "rejected"))
    if chosen.question != rejected.question:
        raise UserError(
            f"{row.place}: the columns {row.columns['chosen']!r} and {row.columns['rejected']!r} "
            "answer different questions. A row needs two answers to the same one."
        )
    return chosen, rejected


def _of_answer(row: Row, name: str, prompt_format: PromptFormat) -> Conversation:
    """Returns the conversation that ends with the text, or the messages, of a column.

    `prompt` may be a text or messages, too. Messages in the column either follow those of `prompt`,
    or hold the whole conversation and `prompt` repeats its text.
    """
    value, prompt = row.values[name], row.values["prompt"]
    if isinstance(value, list):
        before = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) and prompt and len(value) == 1:
            before = [{"role": "user", "content": prompt}]
        return _with_system(row, *_messages(row, [*before, *value]))
    if isinstance(prompt, list):
        answer = {"role": "assistant", "content": value}
        return _with_system(row, *_messages(row, [*prompt, answer]))
    if "prompt" not in row.columns:
        raise UserError(
            f"{row.place}: {row.columns[name]!r} is a text, and there is no column 'prompt' that "
            "it answers. Add one, or name yours: data.columns.prompt=COLUMN."
        )
    question = formatted(row.needed_text("prompt"), "", prompt_format)
    return _with_system(row, Message("user", question), Message("assistant", row.needed_text(name)))


def _of_pair(row: Row, prompt_format: PromptFormat) -> Conversation:
    prompt, completion = row.needed_text("prompt"), row.needed_text("completion")
    question = formatted(prompt, row.text("input"), prompt_format)
    return _with_system(row, Message("user", question), Message("assistant", completion))


def _with_system(row: Row, *messages: Message) -> Conversation:
    """Puts the text of the column `system` before messages that have none of their own."""
    system = row.text("system")
    is_missing = system and messages[0].role != "system"
    before = [Message("system", system)] if is_missing else []
    return Conversation((*before, *messages), row)


def _of_messages(row: Row) -> Conversation:
    return Conversation(tuple(_messages(row, _list(row))), row)


def _messages(row: Row, messages: Sequence[Any]) -> list[Message]:
    """Returns the messages of a row up to its last answer, of which there must be one."""
    found = [_message(row, number, each) for number, each in enumerate(messages, 1)]
    # Nothing is learnt from what follows the last answer.
    while found and found[-1].role != "assistant":
        found.pop()
    if not found:
        raise UserError(
            f"{row.place}: the conversation has no answer: no message with the role 'assistant'. "
            "Complete the row or remove it."
        )
    if not any(each.role == "user" for each in found):
        raise UserError(
            f"{row.place}: the conversation has answers, but no message with the role 'user'. "
            "Complete the row or remove it."
        )
    return found


def _list(row: Row) -> list[Any]:
    value = row.values["messages"]
    if isinstance(value, str):  # a cell of a CSV file holds the list as JSON
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not value:
        what = "is empty" if value == [] else "holds no list of messages"
        raise UserError(
            f"{row.place}: the column {row.columns['messages']!r} {what}. Each row needs "
            '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}].'
        )
    return value


def _message(row: Row, number: int, value: Any) -> Message:
    given = value if isinstance(value, dict) else {}
    role, content = given.get("role"), given.get("content")
    if role is None and content is None and "from" in given:
        role, content = _SHAREGPT.get(given["from"], given["from"]), given.get("value")
    if role not in ROLES or not isinstance(content, str):
        given = f"role {role!r}" if role not in ROLES else f"content {content!r:.40}"
        raise UserError(
            f"{row.place}: message {number} has {given}. A message needs a role, one of "
            f"{', '.join(ROLES)}, and its content, a text."
        )
    if role == "assistant" and not content.strip():
        raise UserError(
            f"{row.place}: message {number}, an answer of the assistant, is empty. Complete the "
            "row or remove it."
        )
    return Message(role, content)
