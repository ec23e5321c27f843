"""Twenty faults, done for real: `make faults` runs them and prints what was measured."""
