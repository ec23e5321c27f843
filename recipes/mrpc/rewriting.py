"""Rules that say a sentence otherwise, or something else in nearly the same words.

They are made for documentation, are right most of the time and know nothing of grammar: a task to
learn on where there is no data set, not a model of the language. A sentence is a list of words
here, with its first letter in lower case and without its full stop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

from recipes.mrpc.wordlists import (
    ARTICLES,
    AUXILIARIES,
    CLAUSE_STARTERS,
    CONTRACTIONS,
    DIRECTIONS,
    EXPANSIONS,
    FILLERS,
    FUNCTION_WORDS,
    NUMBERS,
    OPPOSITES,
    SYNONYMS,
)

Words = list[str]
_Rule = Callable[[Words, Random], "Words | None"]

_PARENTHESIS = re.compile(r"\s+\([^()]+\)")
_PLAIN = re.compile(r"[a-z][a-z'-]*")
_BASE = re.compile(r"(?<=[^s])s$")
_FRAMES = ("note that", "in other words,", "here,", "in short,")


def paraphrase(sentence: str, rng: Random) -> str:
    """Say the same otherwise: synonyms, contractions, other order, fewer articles and fillers."""
    words = _split(sentence)
    changed = words
    for rule, probability in _MEANING_KEPT:
        if rng.random() < probability:
            changed = rule(changed, rng) or changed
    if changed == words:
        changed = _reframe(words, rng)
    return _join(changed)


def alter(sentence: str, rng: Random) -> tuple[str, str] | None:
    """Say something else in nearly the same words.

    Returns:
        The sentence and the name of the rule: opposite, negation, number or roles; None if no
        rule applies.
    """
    words = _split(sentence)
    rules = list(_MEANING_CHANGED.items())
    rng.shuffle(rules)
    for name, rule in rules:
        if changed := rule(words, rng):
            return _join(changed), name
    return None


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


def _exchange(words: Words, table: dict[str, str], share: float, rng: Random) -> Words:
    """Replace a share of the words that have a partner."""
    result: Words = []
    for word in words:
        core, mark = _core(word)
        if core in table and rng.random() < share:
            result += (table[core] + mark).split()
        else:
            result.append(word)
    return result


def _synonyms(words: Words, rng: Random) -> Words:
    return _exchange(words, SYNONYMS, 0.7, rng)


def _contractions(words: Words, rng: Random) -> Words:
    """Write out those that are there, or contract what can be."""
    expanded = _exchange(words, EXPANSIONS, 1.0, rng)
    if expanded != words:
        return expanded
    for i, pair in enumerate(pairwise(words)):
        if pair in CONTRACTIONS:
            return [*words[:i], CONTRACTIONS[pair], *words[i + 2 :]]
    return words


def _digits(words: Words, rng: Random) -> Words:
    """`two` as `2`, and the other way round."""
    table = {name: str(number) for number, name in enumerate(NUMBERS, 2)}
    table |= {digit: name for name, digit in table.items()}
    return _exchange(words, table, 1.0, rng)


def _fewer_articles(words: Words, rng: Random) -> Words:
    return [word for word in words if word not in ARTICLES or rng.random() < 0.6]


def _no_fillers(words: Words, rng: Random) -> Words:
    return [word for word in words if word not in FILLERS]


def _no_parentheses(words: Words, rng: Random) -> Words:
    return _PARENTHESIS.sub("", " ".join(words)).split()


def _move_clause(words: Words, rng: Random) -> Words | None:
    """`If a, b` as `b if a`, and the other way round."""
    if words and words[0] in CLAUSE_STARTERS:
        for i, word in enumerate(words[:-2]):
            if word.endswith(","):
                return [*words[i + 1 :], *words[:i], word[:-1]]
    for i, word in enumerate(words):
        if word in ("if", "when", "unless", "because") and 2 < i < len(words) - 2:
            first = words[:i]
            return [*words[i:-1], _core(words[-1])[0] + ",", *first[:-1], _core(first[-1])[0]]
    return None


def _turn_conjunction(words: Words, rng: Random) -> Words | None:
    """`a and b` as `b and a`."""
    for i in range(1, len(words) - 1):
        one, (other, mark) = words[i - 1], _core(words[i + 1])
        if words[i] in ("and", "or") and _is_name(one) and _is_name(other):
            return [*words[: i - 1], other, words[i], one + mark, *words[i + 2 :]]
    return None


def _reframe(words: Words, rng: Random) -> Words:
    """Introduce the sentence with words that add nothing."""
    return [*rng.choice(_FRAMES).split(), *words]


def _opposite(words: Words, rng: Random) -> Words | None:
    places = [i for i, word in enumerate(words) if _core(word)[0] in OPPOSITES]
    if not places:
        return None
    i = rng.choice(places)
    core, mark = _core(words[i])
    return [*words[:i], OPPOSITES[core] + mark, *words[i + 1 :]]


def _negation(words: Words, rng: Random) -> Words | None:
    """Deny what is said, or say what is denied."""
    for i, word in enumerate(words):
        expanded = EXPANSIONS.get(word, "")
        if word == "not" and i > 0:
            return [*words[:i], *words[i + 1 :]]
        if word == "cannot" or expanded == "cannot":
            return [*words[:i], "can", *words[i + 1 :]]
        if expanded.endswith(" not"):
            return [*words[:i], expanded.split()[0], *words[i + 1 :]]
    for i, word in enumerate(words[:-1]):
        if word in AUXILIARIES:
            return [*words[:i], *(["cannot"] if word == "can" else [word, "not"]), *words[i + 1 :]]
    if words[0] in SYNONYMS or words[0] in OPPOSITES:  # documentation begins with a verb
        if _BASE.search(words[0]):
            return ["does", "not", _BASE.sub("", words[0]), *words[1:]]
        return ["do", "not", *words]
    return None


def _number(words: Words, rng: Random) -> Words | None:
    for i, word in enumerate(words):
        core, mark = _core(word)
        if core in NUMBERS:
            other = rng.choice([number for number in NUMBERS if number != core])
        elif core.isdecimal() and len(core) < 5:
            other = str(int(core) + rng.choice((1, 2, 3, 5)))
        else:
            continue
        return [*words[:i], other + mark, *words[i + 1 :]]
    return None


def _roles(words: Words, rng: Random) -> Words | None:
    """`the size of a file` as `the file of a size`."""
    swaps = []
    for i in range(1, len(words) - 1):
        j = i + 2 if words[i + 1] in ARTICLES else i + 1
        if words[i] in DIRECTIONS and j < len(words):
            one, (other, mark) = words[i - 1], _core(words[j])
            if _is_name(one) and _is_name(other) and one != other:
                middle = words[i:j]
                swaps.append([*words[: i - 1], other, *middle, one + mark, *words[j + 1 :]])
    return rng.choice(swaps) if swaps else None


def _is_name(word: str) -> bool:
    return bool(_PLAIN.fullmatch(word)) and word not in FUNCTION_WORDS


_MEANING_KEPT: tuple[tuple[_Rule, float], ...] = (
    (_no_parentheses, 0.7),
    (_move_clause, 0.5),
    (_turn_conjunction, 0.5),
    (_contractions, 0.5),
    (_synonyms, 1.0),
    (_digits, 0.5),
    (_no_fillers, 0.7),
    (_fewer_articles, 0.8),
    (_reframe, 0.15),
)
_MEANING_CHANGED: dict[str, _Rule] = {
    "opposite": _opposite,
    "negation": _negation,
    "number": _number,
    "roles": _roles,
}
