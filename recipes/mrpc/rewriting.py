"""Has rules that say a sentence otherwise, or something else in nearly the same words.

They are right most of the time and know nothing of grammar. A sentence is a list of words here,
with its first letter in lower case and without its full stop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from random import Random

from recipes.mrpc import wordlists

Words = list[str]
_NAME = re.compile(r"[a-z][a-z'-]*")


def paraphrase(sentence: str, rng: Random) -> str:
    """Returns a sentence that says the same, with synonyms, another order, fewer articles."""
    words = _split(sentence)
    changed = _turn(words, ("and", "or"), rng) if rng.random() < 0.5 else words
    changed = _exchange(changed, wordlists.SYNONYMS, 0.7, rng)
    changed = [word for word in changed if word not in wordlists.ARTICLES or rng.random() < 0.68]
    return _join(changed if changed != words else ["note", "that", *words])


def alter(sentence: str, rng: Random) -> str | None:
    """Returns something else said in nearly the same words; None if no rule applies."""
    words = _split(sentence)
    opposites = partial(_exchange, table=wordlists.OPPOSITES, share=1.0)
    rules = [opposites, _negation, partial(_turn, between=wordlists.DIRECTIONS)]
    rng.shuffle(rules)
    changes = (rule(words, rng=rng) for rule in rules)
    return next((_join(changed) for changed in changes if changed != words), None)


def _split(sentence: str) -> Words:
    text = sentence.strip().rstrip(".!?")
    return (text[:1].lower() + text[1:]).split()


def _join(words: Words) -> str:
    text = " ".join(words).rstrip(",;:")
    return text[:1].upper() + text[1:] + "."


def _core(word: str) -> tuple[str, str]:
    """Returns a word and the punctuation after it."""
    core = word.rstrip(".,;:")
    return core, word[len(core) :]


def _exchange(words: Words, table: Mapping[str, str], share: float, rng: Random) -> Words:
    """Replaces a share of the words that have a partner."""
    changed = ((table.get(core, core), core, mark) for core, mark in map(_core, words))
    return [(new if rng.random() < share else core) + mark for new, core, mark in changed]


def _turn(words: Words, between: Collection[str], rng: Random) -> Words:
    """Exchanges names: `a and b` as `b and a`, `the size of a file` as `the file of a size`."""
    turned = []
    for i in range(1, len(words) - 1):
        j = i + 2 if words[i + 1] in wordlists.ARTICLES else i + 1
        if words[i] in between and j < len(words):
            one, (other, mark) = words[i - 1], _core(words[j])
            names = {
                word for word in (one, other) if _NAME.fullmatch(word)
            } - wordlists.FUNCTION_WORDS
            if len(names) == 2:
                turned.append([*words[: i - 1], other, *words[i:j], one + mark, *words[j + 1 :]])
    return rng.choice(turned) if turned else words


def _negation(words: Words, rng: Random) -> Words:
    """Returns a sentence with a negation, or without the one that it has."""
    if "not" in words[1:]:
        i = words.index("not", 1)
        return [*words[:i], *words[i + 1 :]]
    for i, word in enumerate(words[:-1]):
        if word in wordlists.AUXILIARIES:
            return [*words[: i + 1], "not", *words[i + 1 :]]
    return ["never", *words] if words[0] in wordlists.SYNONYMS else words  # it begins with a verb
