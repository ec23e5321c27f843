"""How the benchmarks are run, compared, written down and drawn."""
