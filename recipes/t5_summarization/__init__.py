"""Summarization with T5, from t5-small to T5-3B.

Reading order: `module.py` (model, loss, evaluation), `stacks.py` (the forward pass, checkpointing),
`generation.py` (summaries with static shapes), `data.py` (from rows to batches), then what data.py
stands on: `corpora.py`, `tokens.py`, `rouge.py`.
"""
