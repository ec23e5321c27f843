from lightning_gaudi.data.text import paragraphs, sentences

DOCSTRING = """
Return the :class:`~pathlib.Path` of ``name`` as it was given by the caller.

Args:
    name (str): the name of a file that will be looked for in all of the folders.

A second paragraph goes on over
two lines, and **ends** with a [link](https://example.org) that is kept as text.

>>> path_of("a file with a very long name that nobody would ever want to type")
| a | table | of | many | columns | is | not | prose |
```
This is code although it reads like a sentence of prose would.
```
"""


def test_only_prose_is_kept_and_markup_removed():
    assert paragraphs(DOCSTRING) == [
        "Return the pathlib.Path of name as it was given by the caller.",
        "A second paragraph goes on over two lines, and ends with a link that is kept as text.",
    ]


def test_a_paragraph_that_introduces_a_list_ends_in_a_full_stop():
    found = paragraphs("The following formats are supported by this function:")
    assert found == ["The following formats are supported by this function."]


def test_sentences_end_at_stops_but_not_at_abbreviations():
    text = "It reads files, e.g. Python ones. Does it write? No! See Fig. A below."
    assert sentences(text) == [
        "It reads files, e.g. Python ones.",
        "Does it write?",
        "No!",
        "See Fig. A below.",
    ]
