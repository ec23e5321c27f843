"""BERT pretraining on packed sequences.

Reading order: `module.py` (model, loss, optimizer), `data.py` (from documents to batches), then
what data.py stands on: `corpora.py`, `tokenization.py`, `sequences.py`, `packed.py`.
"""
