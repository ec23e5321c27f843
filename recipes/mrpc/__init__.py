"""Fine-tuning of BERT to tell whether two sentences say the same: see README.md."""
