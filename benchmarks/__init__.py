"""What is measured: one module a benchmark, each with `measure`. Run by `python -m benchmarks`."""
