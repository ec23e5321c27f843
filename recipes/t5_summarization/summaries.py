"""Computes the scores that an evaluation logs: of summaries, and of those without learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from recipes.t5_summarization.corpora import Row
from recipes.t5_summarization.rouge import NAMES, rouge_sums


def score_summaries(
    summaries: Sequence[tuple[int, str]],
    rows: Sequence[Row],
    baselines: Mapping[str, Callable[[str], str]],
) -> dict[str, float]:
    """Adds up over the rows: ROUGE of the summaries and of each baseline, and how many differ.

    Args:
        summaries: the number of a row and what the model wrote.
        rows: by number.
        baselines: by name, what makes a summary of an article without learning.

    Returns:
        By name: rouge1, ..., lead1_rouge1, ..., distinct (100 for each summary that no other row
        has) and count.
    """
    chosen = [rows[index] for index, _ in summaries]
    references = [row.highlights for row in chosen]
    texts = [text for _, text in summaries]
    sums = rouge_sums(texts, references)
    for name, summarize in baselines.items():
        others = rouge_sums([summarize(row.article) for row in chosen], references)
        sums |= {f"{name}_{measure}": others[measure] for measure in NAMES}
    return {**sums, "distinct": 100.0 * len(set(texts)), "count": float(len(texts))}
