"""Text to image with the parts of diffusers: Stable Diffusion, and a small model that learns here.

Reading order: `module.py` (model, loss, scores), `painting.py` (from prompts to pictures),
`data.py` (from digits and prompts to batches), then what they stand on: `parts.py` and `scratch.py`
(the model's parts), `digits.py` and `judge.py` (the embedded task), `requests.py` (prompts),
`album.py` (files).
"""
