"""Makes conversations by rules: about numbers in words, and names of Python's library.

They need no download. A small model learns them in minutes, and answers are right or wrong.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from recipes.llm_finetuning.conversations import Conversation, Message

SPLITS = ("train", "validation", "test")
_HELD_OUT = 10
"""One in so many numbers and names is for validation, and one for the test."""
_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_NUM_NUMBERS = 1000
_LONGEST_NAME = 14


def in_words(number: int) -> str:
    """Returns a number below 1000 in words, as "four hundred seven"."""
    hundreds, rest = divmod(number, 100)
    words = [f"{_SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= len(_SMALL):
        words.append(_TENS[rest // 10 - 2])
        rest %= 10
        words += [_SMALL[rest]] if rest else []
    elif rest or not words:
        words.append(_SMALL[rest])
    return " ".join(words)


def embedded_conversations(split: str, seed: int) -> list[Conversation]:
    """Returns the conversations of a split, in an order that the seed decides.

    What is asked for in one split is asked for in no other, in whatever way: 407 is held out in
    words and in digits. In training one of four conversations has two questions.
    """
    draw = random.Random(seed)
    numbers, names = list(range(_NUM_NUMBERS)), _names()
    draw.shuffle(numbers)
    draw.shuffle(names)
    wanted = SPLITS.index(split)
    rows = [
        row
        for items, make in ((numbers, _of_number), (names, _of_name))
        for place, item in enumerate(items)
        if _split_of(place) == wanted
        for row in make(item)
    ]
    draw.shuffle(rows)
    if split != "train":
        return rows
    alone = len(rows) * 3 // 5
    pairs = zip(rows[alone::2], rows[alone + 1 :: 2], strict=False)
    return rows[:alone] + [Conversation((*a.messages, *b.messages)) for a, b in pairs]


def embedded_preferences(split: str, seed: int) -> list[tuple[Conversation, Conversation]]:
    """Returns conversations, each with one that ends with the answer to another question."""
    rows = embedded_conversations(split, seed)
    wrong: dict[str, list[str]] = {}
    for row in rows:
        wrong.setdefault(row.task, []).append(row.answer)
    draw = random.Random(seed + 1)
    return [(row, _answered(row, draw.choice(wrong[row.task]))) for row in rows]


def _answered(row: Conversation, answer: str) -> Conversation:
    """Returns a conversation with another answer, which is not the right one by chance."""
    other = "I do not know" if answer == row.answer else answer
    return replace(row, messages=(*row.question, Message("assistant", other)))


def _split_of(place: int) -> int:
    rest = place % _HELD_OUT
    return rest + 1 if rest < len(SPLITS) - 1 else 0


def _of_number(number: int) -> Iterator[Conversation]:
    words = in_words(number)
    yield _asked("digits", f"Write in digits: {words}", str(number))
    yield _asked("words", f"Write in words: {number}", words)
    yield _asked("next", f"Which number comes after {number}?", str(number + 1))


def _of_name(kind: tuple[str, str]) -> Iterator[Conversation]:
    name, what = kind
    yield _asked("kind", f"What is {name} in Python?", what)


def _asked(task: str, question: str, answer: str) -> Conversation:
    messages = (Message("user", question), Message("assistant", answer))
    return Conversation(messages, "data.source=embedded", task)


def _names() -> list[tuple[str, str]]:
    """Returns names of Python's library, and whether each is a function or a class."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                is_class = isinstance(node, ast.ClassDef)
                found[node.name.strip("_")] = "a class" if is_class else "a function"
    return sorted(
        (name, what)
        for name, what in found.items()
        if 3 < len(name) <= _LONGEST_NAME and name.replace("_", "").isalpha()
    )
