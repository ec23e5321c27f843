"""A worker with parts that crash, hang and raise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from lightning_gaudi.tools.verify import parts, worker


def _crash(context: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    tell({"figure": 1})
    os.kill(os.getpid(), signal.SIGSEGV)


def _crash_worker(context: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    tell({"figure": 1})
    os.kill(os.getppid(), signal.SIGKILL)  # as a kernel that runs out of memory does
    time.sleep(3600)


def _hang(context: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    tell({"figure": 1})
    time.sleep(3600)


def _fail(context: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    raise RuntimeError(f"rank {context.rank} fails")


if __name__ == "__main__":
    parts.PARTS |= {"crash": _crash, "crash_worker": _crash_worker, "hang": _hang, "fail": _fail}
    worker.main()
