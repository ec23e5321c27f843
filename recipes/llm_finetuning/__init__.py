"""Fine-tuning of language models of transformers: all weights, LoRA or QLoRA, on conversations.

Reading order: `module.py` (model, loss, evaluation), `adapters.py` (LoRA: what is trained, saved
and exported), `quantization.py` (QLoRA: what is frozen), `data.py` (from rows to packed batches),
then the modules that these use: `conversations.py`, `encoding.py`, `embedded.py`, `losses.py`,
`isolation.py`.
"""
