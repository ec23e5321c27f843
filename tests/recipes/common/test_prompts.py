"""Prompts of a list and of a file: what is taken, and what is refused."""

from __future__ import annotations

import pytest

from recipes.common.errors import UserError
from recipes.common.prompts import given_prompts


def test_prompts_come_from_a_list_or_a_file_as_they_are_written(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("One\ttab and, commas\n\n  two spaces\n", "utf-8-sig")
    assert given_prompts(None, str(file)) == ["One\ttab and, commas", "  two spaces"]
    assert given_prompts(("a cat", " a dog"), None) == ["a cat", " a dog"]
    assert given_prompts(None, None) is None


@pytest.mark.parametrize(
    ("prompts", "file", "message"),
    [
        ([], None, r"data\.prompts is an empty list"),
        (["a", " \t"], None, r"data\.prompts: prompt 2 of 2 is empty"),
        (["a"], "b", r"data\.prompts and data\.prompts_file are both set"),
        (None, "/no/such", r"data\.prompts_file=/no/such does not exist"),
        (None, "/", r"data\.prompts_file=/ is a folder"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts, file, message):
    with pytest.raises(UserError, match=message):
        given_prompts(prompts, file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n\n", "has no prompt: write one a line"),
        ("Caf\xe9 is\n".encode("latin1"), "is not UTF-8 text: line 1"),
        (b"\x89PNG\xff", "is not UTF-8 text"),
    ],
)
def test_a_file_without_a_prompt_and_one_that_is_no_text_are_refused(tmp_path, content, message):
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"data\.prompts_file={file} {message}"):
        given_prompts(None, str(file))
