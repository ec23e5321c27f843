"""Compares a card with what this package's tables say of it, and writes down what was measured.

`run.verify` starts a few processes that import torch (`process.py`, `worker.py`), which fork one
for each part, so that what crashes or hangs costs nothing else. A part tells of each figure as soon
as it has it. `report.py` says what differs, and the file is what `lightning_gaudi.measured_card`
reads. Parts call torch and the vendor's documented API alone: they must hold on a real card.
"""
