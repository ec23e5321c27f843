"""DeepSpeed's engine: made, told when to step, and taken apart."""
