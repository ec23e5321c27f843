"""What the recipes share: the command line, the training module's base, optimizers, export.

Reading order: `training.py` (what every recipe's LightningModule does alike), `optimizers.py`;
`entrypoint.py` (what a command line answers at once), `cli.py` (Lightning's) and `parser.py` (its
errors); then, as needed, `tokenization.py`, `hub.py` and `export.py`.
"""
