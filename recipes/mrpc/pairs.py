"""Reads pairs from the user's files, in the formats in which MRPC is published, or from the hub.

| Published as | Files of a folder | Columns |
|---|---|---|
| GLUE | train.tsv, dev.tsv, test.tsv | Quality (test: index), #1 ID, #2 ID, #1 String, #2 String |
| MSR | msr_paraphrase_train.txt, msr_paraphrase_test.txt | the same, all with Quality |
| data set | train, validation, test | sentence1, sentence2, label |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from recipes.common.errors import UserError
from recipes.common.reader import Fields, Row, Table


class Pair(NamedTuple):
    """Holds two sentences, and whether they say the same."""

    first: str
    second: str
    label: int | None
    """1 for a paraphrase, 0 for none, None if it is not known."""


Splits = dict[str, list[Pair]]
"""The pairs of train, validation and test; splits that do not exist are left out."""

FIELDS = Fields(
    texts=("sentence1", "sentence2"),
    others=("label",),
    published=({"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"},),
)
_POSITIVE = ("1", "true", "yes")
_NEGATIVE = ("0", "false", "no")
_UNKNOWN = ("", "-1")  # GLUE keeps the labels of its test splits
_NOT = re.compile(r"(?:not|non|no|un)[-_ ]?", re.IGNORECASE)


def read_pairs(tables: Mapping[str, Table], positive_label: str | None) -> Splits:
    """Returns the pairs of all splits.

    Args:
        tables: of `FIELDS`.
        positive_label: the label that means a paraphrase; None for 1, true or yes.

    Raises:
        UserError: for a row without two sentences or with a label that is none of two.
    """
    rows = {split: list(table) for split, table in tables.items()}
    if empty := [split for split, found in rows.items() if not found]:
        raise UserError(
            f"There are no rows for {' and '.join(empty)}, but {len(rows.get('train', ()))} for "
            "train. Add rows or a file, or set a larger data.validation_share."
        )
    numbers = _numbers(rows, positive_label)
    return {
        split: [
            Pair(
                row.needed_text("sentence1"),
                row.needed_text("sentence2"),
                _label(row, numbers, tables[split].is_test),
            )
            for row in found
        ]
        for split, found in rows.items()
    }


def _numbers(rows: Mapping[str, Iterable[Row]], positive: str | None) -> dict[str, int]:
    """Returns 1 or 0 for each label, as text."""
    usual = {**dict.fromkeys(_POSITIVE, 1), **dict.fromkeys(_NEGATIVE, 0)}
    seen = {_text(row.values["label"]): row for found in rows.values() for row in found}
    found = sorted(label for label in seen if label not in _UNKNOWN)
    if positive is None and all(label in usual for label in found):
        return usual
    names = ", ".join(map(repr, found))
    if len(found) > 2:
        odd = next((label for label in found if label not in usual), found[-1])
        raise UserError(
            f"{seen[odd].place}: the label is {odd!r}, and there are {len(found)}: {names:.80}. "
            "Paraphrases have two: write 1 and 0, true and false, or yes and no, or two names with "
            "data.positive_label=NAME."
        )
    if positive is None:
        # `not_equivalent` beside `equivalent`
        plain = [label for label in found if any(_NOT.sub("", o, 1) == label != o for o in found)]
        if len(plain) != 1:
            raise UserError(
                f"{seen[found[-1]].place}: the label is {found[-1]!r}, and the labels are {names}. "
                "Say which one means a paraphrase: data.positive_label=NAME."
            )
        rank_zero_info(f"The label {plain[0]!r} means a paraphrase (data.positive_label).")
        positive = plain[0]
    if _text(positive) not in found:
        raise UserError(f"data.positive_label={positive} is none of the labels, which are {names}.")
    return {label: int(label == _text(positive)) for label in found}


def _label(row: Row, numbers: Mapping[str, int], is_test: bool) -> int | None:
    text = _text(row.values["label"])
    if text in numbers:
        return numbers[text]
    if is_test and text in _UNKNOWN:
        return None
    raise UserError(
        f"{row.place}: the label is {row.values['label']!r}. It must be 1 for a paraphrase, or 0; "
        "a test split may have none, or -1."
    )


def _text(label: Any) -> str:
    """Returns a label as one would type it, so that 1, 1.0, "1" and " 1" are the same."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return "" if label is None else str(label).strip().lower().removesuffix(".0")
