"""Run several scripts in one process, so that they share the seconds of importing torch.

A program: its argument is a JSON list of commands, each a script and its arguments, and it writes
the list of their outputs or tracebacks.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback

import torch._dynamo


def main() -> None:
    """Run what the argument lists; stdout is the answer alone."""
    # Without an HPU that is inductor, which takes longer than the run.
    torch._dynamo.config.disable = not hasattr(torch, "hpu")
    answers = []
    for script, *arguments in json.loads(sys.argv[1]):
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
