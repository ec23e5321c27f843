"""Has the benchmarks, each a module with a function `measure`; `python -m benchmarks` runs them."""
