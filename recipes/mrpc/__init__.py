"""Fine-tuning of BERT to tell whether two sentences say the same.

Reading order: `module.py` (model, scores), `data.py` (from pairs to batches), then what data.py
stands on: `pairs.py`, `embedded.py`, `encoding.py`, `baselines.py`.
"""
