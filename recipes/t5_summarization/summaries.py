"""The file of summaries that `predict` writes, and the scores that an evaluation logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch.strategies import Strategy

from recipes.t5_summarization.corpora import Row
from recipes.t5_summarization.rouge import NAMES, rouge_sums


def score_summaries(
    summaries: Sequence[tuple[int, str]],
    rows: Sequence[Row],
    baselines: Mapping[str, Callable[[str], str]],
) -> dict[str, float]:
    """Sums over the rows: ROUGE of the summaries and of each baseline, and how many differ.

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


def write_summaries(
    path: Path, summaries: Sequence[tuple[int, str]], rows: Sequence[Row], strategy: Strategy
) -> None:
    """Write one JSON object a line, `id` and `summary`, in the order of the rows.

    Each rank writes its part; the first puts them together, so all must see the same folder.

    Args:
        path: the file.
        summaries: of this rank: the number of a row and what the model wrote.
        rows: by number.
        strategy: knows the ranks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    num_ranks = getattr(strategy, "world_size", 1)
    parts = [path.with_name(f"{path.name}.{rank}") for rank in range(num_ranks)]
    parts[strategy.global_rank].write_text(json.dumps(summaries), "utf-8")
    strategy.barrier("summaries")
    if strategy.is_global_zero:
        # Under tensor parallelism several ranks write the same summaries.
        merged = dict(pair for part in parts for pair in json.loads(part.read_text("utf-8")))
        objects = [{"id": rows[index].id, "summary": merged[index]} for index in sorted(merged)]
        path.write_text("".join(json.dumps(each) + "\n" for each in objects), "utf-8")
        for part in parts:
            part.unlink()
        print(f"Wrote {len(objects)} summaries to {path}")
