from random import Random

import pytest

from recipes.mrpc import rewriting
from recipes.mrpc.rewriting import alter, paraphrase
from recipes.mrpc.wordlists import DIRECTIONS, FUNCTION_WORDS, OPPOSITES, SYNONYMS

RNG = Random(0)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("_negation", "it is not read", "it is read"),
        ("_negation", "it is read", "it is not read"),
        ("_negation", "returns the list", "never returns the list"),
        ("_negation", "a list of names", "a list of names"),
    ],
)
def test_a_rule_does_what_it_says(rule, before, after):
    assert " ".join(getattr(rewriting, rule)(before.split(), RNG)) == after


@pytest.mark.parametrize(
    ("between", "before", "after"),
    [
        (("and",), "it reads and writes, as asked", "it writes and reads, as asked"),
        (("and",), "the reader and the writer", "the writer and the reader"),
        (DIRECTIONS, "the size of a file", "the file of a size"),
        (DIRECTIONS, "size of the", "size of the"),
    ],
)
def test_names_change_places(between, before, after):
    assert " ".join(rewriting._turn(before.split(), between, RNG)) == after


@pytest.mark.parametrize("seed", range(5))
def test_a_paraphrase_is_never_the_sentence_itself(seed):
    for sentence in ("Returns the size of the list.", "Nothing here can be said otherwise."):
        changed = paraphrase(sentence, Random(seed))
        assert changed != sentence
        assert changed[0].isupper()
        assert changed.endswith(".")


def test_an_alteration_keeps_most_words():
    sentence = "Returns the first of many files that are empty."
    found = {alter(sentence, Random(seed)) for seed in range(40)}
    assert len(found) > 2
    for text in found:
        assert text != sentence
        assert len(set(text.lower().split()) & set(sentence.lower().split())) >= 7
    assert alter("Hello there my friends.", RNG) is None


def test_the_word_lists_do_not_contradict_each_other():
    # A pair that counts as a paraphrase must not count as an opposite.
    assert not {(word, same) for word, same in SYNONYMS.items() if OPPOSITES.get(word) == same}
    assert set(OPPOSITES) & FUNCTION_WORDS <= {"any", "all", "no", "with"}
    assert all(word != same for table in (SYNONYMS, OPPOSITES) for word, same in table.items())
