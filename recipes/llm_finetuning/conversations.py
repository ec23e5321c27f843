"""Rows of the user's as conversations: `messages`, or `prompt` and `completion`."""

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
"""Roles of the messages {"from": ..., "value": ...} that ShareGPT and what stems from it have."""
PAIRS = Fields(
    texts=("prompt", "completion"),
    optional=("input", "system"),
    published=(
        {"prompt": "instruction", "completion": "output"},  # Alpaca
        {"prompt": "instruction", "completion": "response", "input": "context"},  # Dolly
        {"prompt": "question", "completion": "answer"},  # GSM8K
    ),
)
"""A prompt and what follows it; `input` is put behind the prompt, `system` before it."""
PREFERENCES = Fields(texts=(), others=("chosen", "rejected"), optional=("prompt", "system"))
"""The layout of preferences: two answers to a prompt, or two conversations."""
DOCUMENTS = Fields(texts=("text",))
"""The layout of text to go on learning the language from."""
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
    """Turns that end with an answer of the assistant's."""

    messages: tuple[Message, ...]
    origin: Row | str = ""
    """The row that it is from, or what messages call that."""
    task: str = ""
    """What kind of question it asks, where that is known: scores are told for each."""

    @property
    def place(self) -> str:
        """Where it is from, as messages call it: of a row its file is read again up to there."""
        return self.origin if isinstance(self.origin, str) else self.origin.place

    @property
    def question(self) -> tuple[Message, ...]:
        """All but the last answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The last one."""
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
        source: as of `open_tables`.
        path: likewise.
        objective: what is learnt of a row, which decides its layout.
        subset: as of `open_tables`.
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
    """Yields the texts of rows that have one."""
    return (text for row in table if (text := row.text("text")))


def read_conversations(
    table: Table, prompt_format: PromptFormat = "plain"
) -> Iterator[Conversation]:
    """Yields the rows of a split.

    Turns behind the last answer are left out: nothing is learnt from them.

    Args:
        table: the split.
        prompt_format: how a prompt and its input are put together, of rows that are pairs.

    Raises:
        UserError: naming the row that is no conversation, and why.
    """
    if table.fields is MESSAGES:
        return map(_of_messages, table)
    return (_of_pair(row, prompt_format) for row in table)


def formatted(prompt: str, more: str, prompt_format: PromptFormat) -> str:
    """Returns a prompt and its input, which may be empty, put together."""
    if prompt_format == "alpaca":
        middle = f"### Input:\n{more}\n\n" if more else ""
        return _ALPACA.format(_WITH_INPUT if more else "", prompt, middle)
    whole = f"{prompt}\n\n{more}" if more else prompt
    return f"Question: {whole}\n\nAnswer: " if prompt_format == "question" else whole


def read_preferences(
    table: Table, prompt_format: PromptFormat = "plain"
) -> Iterator[tuple[Conversation, Conversation]]:
    """Yields the chosen and the rejected conversation of each row; arguments as above.

    Raises:
        UserError: naming the row that has no two answers to one question.
    """
    return (_of_preference(row, prompt_format) for row in table)


def _of_preference(row: Row, prompt_format: PromptFormat) -> tuple[Conversation, Conversation]:
    chosen, rejected = (_of_answer(row, name, prompt_format) for name in ("chosen", "rejected"))
    if chosen.question != rejected.question:
        raise UserError(
            f"{row.place}: the columns {row.columns['chosen']!r} and {row.columns['rejected']!r} "
            "answer different questions. A row has two answers to one."
        )
    return chosen, rejected


def _of_answer(row: Row, name: str, prompt_format: PromptFormat) -> Conversation:
    """A text behind `prompt`, or messages, which may stand behind those of `prompt`."""
    value, prompt = row.values[name], row.values["prompt"]
    if isinstance(value, list):
        before = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) and prompt and len(value) == 1:
            before = [{"role": "user", "content": prompt}]
        return _conversation(row, [*before, *value])
    if isinstance(prompt, list):
        return _conversation(row, [*prompt, {"role": "assistant", "content": value}])
    if "prompt" not in row.columns:
        raise UserError(
            f"{row.place}: {row.columns[name]!r} is a text, and no column 'prompt' has what it "
            "answers. Add one, or name yours: data.columns.prompt=COLUMN."
        )
    messages = [Message("user", formatted(row.needed_text("prompt"), "", prompt_format))]
    if system := row.text("system"):
        messages.insert(0, Message("system", system))
    return Conversation((*messages, Message("assistant", row.needed_text(name))), row)


def _of_pair(row: Row, prompt_format: PromptFormat) -> Conversation:
    prompt, completion = row.needed_text("prompt"), row.needed_text("completion")
    messages = [Message("user", formatted(prompt, row.text("input"), prompt_format))]
    if system := row.text("system"):
        messages.insert(0, Message("system", system))
    return Conversation((*messages, Message("assistant", completion)), row)


def _of_messages(row: Row) -> Conversation:
    return _conversation(row, _list(row))


def _conversation(row: Row, messages: Sequence[Any]) -> Conversation:
    found = [_message(row, number, each) for number, each in enumerate(messages, 1)]
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
    return Conversation(tuple(found), row)


def _list(row: Row) -> list[Any]:
    value = row.values["messages"]
    if isinstance(value, str):  # a CSV file can hold it in no other way
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
            f"{row.place}: message {number} has {given}. A message has a role, one of "
            f"{', '.join(ROLES)}, and its content, a text."
        )
    if role == "assistant" and not content.strip():
        raise UserError(
            f"{row.place}: message {number}, of the assistant, is empty. Complete the row or "
            "remove it."
        )
    return Message(role, content)
