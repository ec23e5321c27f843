"""Run several scripts in one process, so that they share the seconds of importing torch.

A program: it reads a JSON list of commands, each a script and its arguments, and writes the list
of their outputs or tracebacks.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback


def main() -> None:
    """Run what stdin lists; stdout is the answer alone."""
    answers = []
    for script, *arguments in json.load(sys.stdin):
        sys.argv = [script, *arguments]
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                runpy.run_path(script, run_name="__main__")
        except (Exception, SystemExit):
            output.write(traceback.format_exc())
        answers.append(output.getvalue())
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
