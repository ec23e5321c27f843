"""Compares a step in Lightning's Trainer, in Hugging Face's and in a bare loop, on hpu and the CPU.

All train the same model on the same batches in one process, in turns; on hpu the cost of the
simulated card is included. The first rows are with the defaults: the plugin compiles, and nothing
of Hugging Face is loaded, which replaces functions of torch if there is an HPU. For the other rows
no side compiles, so that only what a trainer does around the operators differs.
"""

from __future__ import annotations

import os
from functools import partial

import torch

from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import Row, ratio
from benchmarks.trainer_sides import Work, bare_loop, lightning, tiny_bert_work, tiny_mlp_work
from lightning_gaudi.compilation.settings import VARIABLE

NUM_ROUNDS, LIMIT = 11, 1.6


def measure(effort: Effort) -> list[Row]:
    """Measures the plugin with its defaults, then all sides without compilation."""
    torch.set_num_threads(1)
    num_rounds = effort.rounds(NUM_ROUNDS)
    rows = _by_default(tiny_mlp_work(), num_rounds)
    os.environ[VARIABLE] = "none"
    for work in (tiny_mlp_work(), tiny_bert_work()):
        rows += _as_written(work, num_rounds)
    return rows


def _by_default(work: Work, num_rounds: int) -> list[Row]:
    sides = {"hpu": partial(lightning, work, "hpu"), "cpu": partial(lightning, work, "cpu")}
    times = _times(sides, num_rounds)
    name = f"{work.name}, by default: Trainer on hpu against Trainer on the CPU"
    return [ratio(name, times["hpu"], times["cpu"], limit=LIMIT)]


def _as_written(work: Work, num_rounds: int) -> list[Row]:
    from benchmarks.hugging_face_side import hugging_face

    times = _times(
        {
            "Trainer on hpu": partial(lightning, work, "hpu"),
            "bare loop on hpu": partial(bare_loop, work, "hpu"),
            "Hugging Face's Trainer on hpu": partial(hugging_face, work, "hpu"),
            "Trainer on the CPU": partial(lightning, work, "cpu"),
            "bare loop on the CPU": partial(bare_loop, work, "cpu"),
        },
        num_rounds,
    )
    pairs = (
        ("Trainer on hpu", "Trainer on the CPU", LIMIT),
        ("Trainer on hpu", "Hugging Face's Trainer on hpu", None),
        ("Trainer on hpu", "bare loop on hpu", None),
        # This is what Lightning itself adds, to compare the row above with.
        ("Trainer on the CPU", "bare loop on the CPU", None),
    )
    return [
        ratio(f"{work.name}, as written: {a} against {b}", times[a], times[b], limit=limit)
        for a, b, limit in pairs
    ]


def _times(sides: dict[str, partial[float]], num_rounds: int) -> dict[str, list[float]]:
    """Returns the seconds a step of each side and round, after a round that does not count."""
    for side in sides.values():
        side()
    return in_turns(tuple(sides), num_rounds, lambda name: sides[name]())
