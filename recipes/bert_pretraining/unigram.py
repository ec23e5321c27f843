"""The reference a masked-language model must beat: guessing by word frequency alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UnigramReference:
    """Losses in nats of predictors that know how frequent each token is, and nothing else.

    Both know the frequencies in the very text they are judged on, which no trained model does:
    a model below them must have learnt from context.
    """

    text_entropy: float
    """Entropy of the token frequencies of the text: the loss over all its tokens."""
    target_cross_entropy: float
    """The same frequencies, judged on the masked tokens only: what the model is judged on."""

    @property
    def strictest(self) -> float:
        """The lower of the two."""
        return min(self.text_entropy, self.target_cross_entropy)


def unigram_reference(text: np.ndarray, targets: np.ndarray) -> UnigramReference:
    """Measures the reference.

    Args:
        text: [number of tokens], the tokens that can be chosen for prediction.
        targets: [number of predictions], those that were; all of them occur in `text`.
    """
    frequencies = np.bincount(text) / len(text)
    with np.errstate(divide="ignore"):
        nats = -np.log(frequencies)
    present = frequencies > 0
    return UnigramReference(
        text_entropy=float(frequencies[present] @ nats[present]),
        target_cross_entropy=float(nats[targets].mean()),
    )
