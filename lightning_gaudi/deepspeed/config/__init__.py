"""DeepSpeed's settings: where they come from, and whether they can be honoured."""
