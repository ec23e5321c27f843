"""Compares a card with what this package's tables say of it, and writes down what was measured.

`run.verify` starts a few processes that import torch (`process.py`, `worker.py`). Each forks a
process for each part, so that a part which crashes or hangs costs nothing else. A part reports each
figure as soon as it has it. `report.py` says what differs, and `lightning_gaudi.measured_card`
reads the file. Parts call only torch and the vendor's documented API, since they have to work on a
real card.
"""
