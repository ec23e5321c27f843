"""What the recipes share: the command line, the training module's base, optimizers, export.

Reading order: `training.py` (what every recipe's LightningModule does alike), `optimizers.py`,
`cli.py`; then, as needed, `tokenization.py`, `hub.py` and `export.py`.
"""
