from random import Random

import pytest

from recipes.mrpc import rewriting
from recipes.mrpc.rewriting import alter, paraphrase
from recipes.mrpc.wordlists import CONTRACTIONS, EXPANSIONS, FUNCTION_WORDS, OPPOSITES, SYNONYMS

RNG = Random(0)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("_move_clause", "if it is empty, nothing is read", "nothing is read if it is empty"),
        ("_move_clause", "the file is closed when it ends", "when it ends, the file is closed"),
        ("_move_clause", "the file is closed", None),
        ("_turn_conjunction", "it reads and writes, as asked", "it writes and reads, as asked"),
        ("_turn_conjunction", "the reader and the writer", None),
        ("_contractions", "it doesn't wait", "it does not wait"),
        ("_contractions", "it does not wait", "it doesn't wait"),
        ("_digits", "wait for two of 3 ranks", "wait for 2 of three ranks"),
        ("_no_fillers", "it just returns", "it returns"),
        ("_no_parentheses", "call get() (or pop) first", "call get() first"),
        ("_negation", "it is not read", "it is read"),
        ("_negation", "it cannot be read", "it can be read"),
        ("_negation", "it doesn't wait", "it does wait"),
        ("_negation", "it is read", "it is not read"),
        ("_negation", "you can read it", "you cannot read it"),
        ("_negation", "returns the list", "does not return the list"),
        ("_negation", "return the list", "do not return the list"),
        ("_negation", "a list of names", None),
        ("_roles", "the size of a file", "the file of a size"),
        ("_roles", "size of the", None),
        ("_opposite", "the first, if any is there", None),
    ],
)
def test_a_rule_does_what_it_says(rule, before, after):
    changed = getattr(rewriting, rule)(before.split(), RNG)
    if rule == "_opposite":
        assert " ".join(changed) in ("the last, if any is there", "the first, if no is there")
    else:
        assert (changed and " ".join(changed)) == after


def test_another_number_is_another_number():
    for seed in range(20):
        changed = rewriting._number(["in", "two", "of", "7", "steps"], Random(seed))
        assert changed != ["in", "two", "of", "7", "steps"]
        assert changed[0] == "in"


@pytest.mark.parametrize("seed", range(5))
def test_a_paraphrase_is_never_the_sentence_itself(seed):
    for sentence in ("Returns the size of the list.", "Nothing here can be said otherwise."):
        changed = paraphrase(sentence, Random(seed))
        assert changed != sentence
        assert changed[0].isupper()
        assert changed.endswith(".")


def test_an_alteration_keeps_most_words_and_says_which_rule_it_was():
    sentence = "Returns the first of two files that are not empty."
    seen = {alter(sentence, Random(seed))[1] for seed in range(40)}
    assert seen == {"opposite", "negation", "number", "roles"}
    for seed in range(40):
        text, _ = alter(sentence, Random(seed))
        assert text != sentence
        common = set(text.lower().split()) & set(sentence.lower().split())
        assert len(common) >= 7
    assert alter("Hello there my friends.", RNG) is None


def test_the_word_lists_do_not_contradict_each_other():
    # A pair that counts as a paraphrase must not count as an opposite.
    assert not {(word, same) for word, same in SYNONYMS.items() if OPPOSITES.get(word) == same}
    assert set(OPPOSITES) & FUNCTION_WORDS <= {"any", "all", "no", "with"}
    assert {" ".join(words) for words in CONTRACTIONS} == set(EXPANSIONS.values())
    assert all(word != same for table in (SYNONYMS, OPPOSITES) for word, same in table.items())
