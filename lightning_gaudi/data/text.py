"""Turns documentation strings into prose: paragraphs without code or markup, and sentences."""

from __future__ import annotations

import re

__all__ = ["count_words", "paragraphs", "sentences"]

_MARKUP = (
    (re.compile(r":\w+(?::\w+)?:`~?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :func:`name <target>`
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`]+)`_*"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\((?:[^)]+)\)"), r"\1"),  # [text](link)
    (re.compile(r"\s+"), " "),
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[A-Z\"'(`])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|cf|vs|al|Fig|Eq|Sec|No|Dr|St|approx|resp)\.|\b[A-Z]\.)$"
)
_HEADING = re.compile(
    r"^(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|References|"
    r"See Also|Attributes|Keyword Args|Shape|Usage|Warnings?|Methods|Inputs?|Outputs?)\s*:{0,2}$",
    re.IGNORECASE,
)
_FIELD = re.compile(r"^[\w.*, ]+\s*(\(.*?\))?\s*:\s")  # "size (int): the size"
_NOT_PROSE = (
    *(">>>", "...", "..", "|", "+-", "--", "==", "~~", "- ", "* ", ":", "@", "$", "#"),
    "```",
)
_MIN_WORDS = 6
_MIN_SHARE_OF_LETTERS = 0.86


def count_words(text: str) -> int:
    """Returns the number of words of letters in `text`."""
    return len(_WORD.findall(text))


def paragraphs(text: str) -> list[str]:
    """Returns the prose paragraphs of a documentation string, each on one line, without markup."""
    blocks: list[list[str]] = [[]]
    is_code = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("```"):
            is_code = not is_code
        starts_field = not blocks[-1] and bool(_FIELD.match(line))
        if line and not (
            is_code or line.startswith(_NOT_PROSE) or starts_field or _HEADING.match(line)
        ):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [prose for block in blocks if block and (prose := _prose(" ".join(block)))]


def _prose(text: str) -> str:
    """Returns `text` without markup, up to a full stop; empty if it does not read like prose."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if not text[:1].isalpha() or not text[0].isupper() or text[-1] not in ".!?:":
        return ""
    letters = sum(character.isalpha() or character == " " for character in text)
    if count_words(text) < _MIN_WORDS or letters < _MIN_SHARE_OF_LETTERS * len(text):
        return ""
    return text[:-1] + "." if text[-1] == ":" else text


def sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences, at stops that do not end an abbreviation."""
    parts: list[str] = []
    for part in _SENTENCE_END.split(paragraph):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += " " + part
        else:
            parts.append(part)
    return [part.strip() for part in parts if part.strip()]
