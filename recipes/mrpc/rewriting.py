"""Rules that say a sentence otherwise, or something else in nearly the same words.

They are made for documentation, are right most of the time and know nothing of grammar. A sentence
is a list of words here, with its first letter in lower case and without its full stop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from random import Random

from recipes.mrpc.wordlists import (
    ARTICLES,
    AUXILIARIES,
    CLAUSES,
    DIRECTIONS,
    FUNCTION_WORDS,
    OPPOSITES,
    SYNONYMS,
)

Words = list[str]

_NAME = re.compile(r"[a-z][a-z'-]*")


def paraphrase(sentence: str, rng: Random) -> str:
    """Say the same otherwise: synonyms, another order, fewer articles."""
    words = _split(sentence)
    changed = _turn(words, ("and", "or"), rng) if rng.random() < 0.5 else words
    changed = _move_clause(changed) if rng.random() < 0.5 else changed
    changed = _exchange(changed, SYNONYMS, 0.7, rng)
    changed = [word for word in changed if word not in ARTICLES or rng.random() < 0.68]
    return _join(changed if changed != words else ["note", "that", *words])


def alter(sentence: str, rng: Random) -> str | None:
    """Say something else in nearly the same words; None where no rule applies."""
    words = _split(sentence)
    rules = [_opposite, _negation, partial(_turn, between=DIRECTIONS)]
    rng.shuffle(rules)
    changes = (rule(words, rng=rng) for rule in rules)
    return next((_join(changed) for changed in changes if changed != words), None)


def _split(sentence: str) -> Words:
    text = sentence.strip().rstrip(".!?")
    if text[1:2].islower() or text[1:2] == " ":  # not an acronym
        text = text[:1].lower() + text[1:]
    return text.split()


def _join(words: Words) -> str:
    text = " ".join(words).rstrip(",;:")
    return text[:1].upper() + text[1:] + "."


def _core(word: str) -> tuple[str, str]:
    """A word and the punctuation after it."""
    core = word.rstrip(".,;:")
    return core, word[len(core) :]


def _exchange(words: Words, table: Mapping[str, str], share: float, rng: Random) -> Words:
    """Replace a share of the words that have a partner."""
    changed = ((table.get(core, core), core, mark) for core, mark in map(_core, words))
    return [(new if rng.random() < share else core) + mark for new, core, mark in changed]


def _move_clause(words: Words) -> Words:
    """`If a, b` as `b if a`, and the other way round."""
    for i, word in enumerate(words[:-2]):
        if words[0] in CLAUSES and word.endswith(","):
            return [*words[i + 1 :], *words[:i], word[:-1]]
        if word in CLAUSES and i > 2:
            first = words[:i]
            return [*words[i:-1], _core(words[-1])[0] + ",", *first[:-1], _core(first[-1])[0]]
    return words


def _turn(words: Words, between: Collection[str], rng: Random) -> Words:
    """Exchange names: `a and b` as `b and a`, `the size of a file` as `the file of a size`."""
    turned = []
    for i in range(1, len(words) - 1):
        j = i + 2 if words[i + 1] in ARTICLES else i + 1
        if words[i] in between and j < len(words):
            one, (other, mark) = words[i - 1], _core(words[j])
            if _is_name(one) and _is_name(other) and one != other:
                turned.append([*words[: i - 1], other, *words[i:j], one + mark, *words[j + 1 :]])
    return rng.choice(turned) if turned else words


def _is_name(word: str) -> bool:
    return bool(_NAME.fullmatch(word)) and word not in FUNCTION_WORDS


def _opposite(words: Words, rng: Random) -> Words:
    places = [i for i, word in enumerate(words) if _core(word)[0] in OPPOSITES]
    chosen = rng.choice(places) if places else None
    return [
        _exchange([word], OPPOSITES, 1.0, rng)[0] if i == chosen else word
        for i, word in enumerate(words)
    ]


def _negation(words: Words, rng: Random) -> Words:
    """Deny what is said, or say what is denied."""
    if "not" in words[1:]:
        i = words.index("not", 1)
        return [*words[:i], *words[i + 1 :]]
    for i, word in enumerate(words[:-1]):
        if word in AUXILIARIES:
            return [*words[: i + 1], "not", *words[i + 1 :]]
    if words[0] in SYNONYMS:  # documentation begins with a verb
        return ["never", *words]
    return words
