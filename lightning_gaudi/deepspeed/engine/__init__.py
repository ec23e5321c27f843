"""Makes DeepSpeed's engine, tells it when to step, and takes it apart."""
