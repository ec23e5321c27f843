"""A process that has imported torch and what Lightning imports, and forks itself for Python to run.

`tests.helpers.forked` runs this file and writes requests to its standard input, a line of JSON
each. The answer to each is a line with the exit status of the fork. Neither the device nor
Lightning is loaded here: each fork does that in its own environment, as `import torch` would.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import types
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

# What takes seconds of the imports of Lightning, and of DeepSpeed's first engine; not the module
# `compile_fx` itself, whose import is patched.
import torch._dynamo
import torch._inductor.graph
import torchmetrics  # noqa: F401


def _serve() -> dict[str, Any] | None:
    """Serve requests until there are no more; in a fork, return what it is to run."""
    gc.freeze()  # no fork looks for garbage here, as DeepSpeed's ZeRO-3 often does
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
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["args"]]


def _run(source: str) -> int:
    """End the import of torch, and run `source` as a script; returns its exit status."""
    try:
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        main = sys.modules["__main__"] = types.ModuleType("__main__")  # where pickle looks
        exec(compile(source, "<string>", "exec"), vars(main))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    sys.path[0] = ""  # as for `python -c`, not the folder of this file
    if (_request := _serve()) is not None:
        _become(_request)
        _status = _run(_request["source"])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)  # to free one by one what the fork shares would take it half a second
