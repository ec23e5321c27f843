"""Which published figures the step times are fitted to and judged by.

This was written down, and committed with the figures, before anything was fitted to what a
rehearsal counts. It was not written in ignorance: an earlier fit, by a formula and to 47 of these
figures, had missed ViT, MRPC on eight cards (36 steps in all), and BERT-base of 2022. So the rule
names no model and no run. It asks of each figure whether it is the time of the step that a plan
counts.

Training. A figure counts if

1. it is of a dense transformer, an encoder or a decoder of text, trained as a whole or by LoRA, in
   bf16 and in lazy mode, on one card or on the eight of a server by DDP or ZeRO (`kind` is "text").
   Others are extensions: they are shown, and never move what is fitted.
2. its samples all have the stated length, by padding or packing. What has others is no extension,
   either, for nobody knows its lengths ("varying lengths", "preferences").
3. it was taken over at least ten seconds: samples / (samples / s). A graph takes seconds to
   compile, and the last batch of an epoch is another one.
4. its release is 1.10 (June 2023) or later, and it is the newest of that run.
5. it is no copy: where a Gaudi 2 and a Gaudi 3 have the same figure, to the last digit, the Gaudi 3
   has that of the Gaudi 2, from which its table was begun.

6. it is possible: none is faster than the card's peaks. One figure of 271 of decoding is, that of
   GPT-J on a Gaudi 1, at twice the memory's bandwidth. This was added when its test failed.

Decoding. A figure counts if it is of a dense decoder that transformers has, in bf16, on one card,
with HPU graphs, of at most 4 texts at a time with 100 new tokens, and if 4 to 6 hold.

Bodies. What is left out together, where the error is measured, are all figures of one body: models
that differ in their weights, their vocabulary or their head alone have the same one.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
Row = Mapping[str, str]

LEAST_SECONDS = 10.0
LEAST_RELEASE = (1, 10)
MOST_TEXTS = 4
NEW_TOKENS = "100"


def read(name: str) -> list[dict[str, str]]:
    """Returns the figures of a file beside this one, as they stand there."""
    with (HERE / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def why_no_training(row: Row, rows: Sequence[Row]) -> str:
    """Returns why a figure of training is not judged by; empty if it is."""
    if row["kind"] != "text":
        return row["kind"]
    seconds = float(row["samples"]) / float(row["samples_per_s"])
    if seconds < LEAST_SECONDS:
        return f"taken over {seconds:.0f} s"
    others = ("card", "samples_per_s", "release", "table", "source")
    settings = [name for name in row if name not in others]
    return _why_old(row) or _why_copied(row, rows, settings, "samples_per_s")


def why_no_decoding(row: Row, rows: Sequence[Row], is_known: bool, least_seconds: float) -> str:
    """Returns why a figure of decoding is not judged by; empty if it is.

    Args:
        row: The figure.
        rows: All of them.
        is_known: Whether its model is a dense decoder that transformers has.
        least_seconds: What a token takes by the card's peaks.
    """
    if not is_known:
        return "no dense decoder of transformers"
    if row["precision"] != "bf16":
        return row["precision"]
    if row["cards"] != "1":
        return f"{row['cards']} cards"
    if int(row["batch"]) > MOST_TEXTS or row["new_tokens"] != NEW_TOKENS:
        return f"batch {row['batch']}"
    settings = ["model", "cards", "batch", "precision"]
    if least_seconds > int(row["batch"]) / float(row["tokens_per_s"]):
        return "faster than the memory's bandwidth"
    return _why_old(row) or _why_copied(row, rows, settings, "tokens_per_s")


def _why_old(row: Row) -> str:
    release = tuple(map(int, row["release"].split(".")))
    return f"release {row['release']}" if release < LEAST_RELEASE else ""


def _why_copied(row: Row, rows: Sequence[Row], settings: Sequence[str], value: str) -> str:
    same = [*settings, value]
    if row["card"] == "gaudi3" and any(
        other["card"] == "gaudi2" and all(other[name] == row[name] for name in same)
        for other in rows
    ):
        return "a copy of the Gaudi 2's"
    return ""
