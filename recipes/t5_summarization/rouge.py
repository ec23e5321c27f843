"""Computes ROUGE as published for CNN/DailyMail, by `rouge-score`, and the lead baseline."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from lightning_gaudi.data.text import sentences

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge_sums(predictions: Iterable[str], references: Iterable[str]) -> dict[str, float]:
    """Adds up the F-measures of pairs of a prediction and a reference, 0 to 100 each.

    Words are stemmed. ROUGE-Lsum takes each line for a sentence, so every sentence is put on one.
    """
    # Its nltk imports scikit-learn if it is installed, which takes seconds; so not at the top.
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(list(NAMES), use_stemmer=True)

    @cache  # a plan's batches repeat one row, tens of thousands of times
    def score(prediction: str, reference: str) -> dict[str, float]:
        scores = scorer.score(on_lines(reference), on_lines(prediction))
        return {name: 100 * scores[name].fmeasure for name in NAMES}

    sums = dict.fromkeys(NAMES, 0.0)
    for prediction, reference in zip(predictions, references, strict=True):
        for name, value in score(prediction, reference).items():
            sums[name] += value
    return sums


def on_lines(text: str) -> str:
    """Returns one sentence a line, as the summaries of CNN/DailyMail have it."""
    return "\n".join(sentence for line in text.splitlines() for sentence in sentences(line))


def lead(article: str) -> str:
    """Returns the first sentence of an article: the baseline that a summarizer must beat."""
    return next(iter(sentences(article)), "")
