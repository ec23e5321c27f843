"""A process that has imported torch and used no card, and forks itself for each piece of Python.

`tests.helpers.forked` runs this file with the names of further modules to import, and writes
requests to its standard input, a line of JSON each. The answer to each is a line with the exit
status of the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import Any

import torch  # noqa: F401


def _serve() -> dict[str, Any] | None:
    """Serve requests until there are no more; in a fork, return what it is to run."""
    answers = os.dup(1)
    os.write(answers, b"ready\n")
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            os.close(answers)
            return dict(json.loads(line))
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def _become(request: dict[str, Any]) -> None:
    """Take the place of `python -c SOURCE ARGS...`."""
    files = ((os.devnull, os.O_RDONLY), (request["stdout"], os.O_WRONLY))
    for number, (path, flags) in enumerate((*files, (request["stderr"], os.O_WRONLY))):
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["args"]]


def _run(source: str) -> int:
    """Run `source` as a script; returns its exit status."""
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.path[0] = ""  # as for `python -c`, not the folder of this file
    for _name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(_name)
    if (_request := _serve()) is not None:
        _become(_request)
        _status = _run(_request["source"])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)  # to free one by one what the fork shares would take it half a second
