"""Fuzzing: every place of the code that reads what others wrote gets thousands of damaged inputs.

In reading order: `sources` finds those places in the code, `wild` damages values, texts and files,
`target` runs a parser on what comes of that, in a process with limits, and `targets` has them all.

    python -m tests.security.fuzzing NAME          2,000 inputs for the target of that name
    python -m tests.security.fuzzing NAME INDEX    one of them again, with its error
"""
