"""Fine-tuning of language models of transformers: all weights or LoRA, on conversations or text.

Reading order: `module.py` (model, loss, evaluation), `adapters.py` (LoRA: what is trained, saved
and exported), `data.py` (from rows to packed batches), then what they stand on:
`conversations.py`, `encoding.py`, `embedded.py`, `losses.py`, `isolation.py`.
"""
