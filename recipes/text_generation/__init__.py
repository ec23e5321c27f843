"""Text generation with Bloom and other language models of transformers, from small to 176B.

Reading order: `module.py` (model, loss, evaluation), `common/writing.py` (texts and their pace),
`data.py` (from text to blocks, from prompts to batches), then what they stand on: `documents.py`,
`blocks.py`, `ngrams.py`, `prompts.py`, `pretrained.py`.
"""
