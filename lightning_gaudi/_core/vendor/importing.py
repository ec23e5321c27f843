"""Undoes what the import of the vendor's package sets in this process and should not.

The package guesses a port and the card of this rank, and takes over Ctrl-C. `vendor` calls these
functions for the real package and for the stand-in. If the package cannot be imported, the error
says what to set.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

LAZY_MODE = "PT_HPU_LAZY_MODE"


def given_variables(*, is_new: bool) -> Set[str]:
    """Returns the environment's variables before the vendor's package was imported.

    Args:
        is_new: Whether it is yet to be imported. Otherwise the program has, or torch, which loads
            it by itself in eager mode; then the variables that the process began with count.
    """
    try:
        began = "" if is_new else Path("/proc/self/environ").read_text(errors="replace")
    except OSError:
        began = ""
    return {line.partition("=")[0] for line in began.split("\0")} if began else set(os.environ)


def forget_defaults(given: Set[str], visible_modules: Sequence[str] | None) -> str | None:
    """Unsets the variables that the vendor's package sets when it is imported without ranks.

    It makes rank 0 wait at localhost:12345, which is wrong on several nodes or beside another job.

    Args:
        given: What `given_variables` found.
        visible_modules: What HABANA_VISIBLE_MODULES names, or None if it is not set.

    Returns:
        The module that it has selected for this rank, before `devices` is known, or None.

    Source: releases 1.19 and 1.24.0, `distributed/hccl/__init__.py`, which `import
    habana_frameworks.torch` runs.
    """
    for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "12345")):
        # A value that the user has set, even to the same, stays.
        if name not in given and os.environ.get(name) == value:
            del os.environ[name]
    local_rank = os.environ.get("LOCAL_RANK", "")
    modules = visible_modules or [str(index) for index in range(8)]
    is_number = local_rank.isdecimal() and len(local_rank) < 10
    guess = dict(enumerate(modules)).get(int(local_rank) if is_number else -1)
    is_guess = "HLS_MODULE_ID" not in given and os.environ.get("HLS_MODULE_ID") == guess
    return guess if is_guess else None


@contextmanager
def explained() -> Iterator[None]:
    """Says what to set if the vendor's package refuses lazy mode in this block.

    Lazy mode needs the vendor's own build of torch, and the published settings of the recipes ask
    for lazy mode. Source: releases 1.19 and 1.24.1, `habana_frameworks/torch/__init__.py`, which
    asserts this before it loads anything.

    Raises:
        ImportError: It has refused lazy mode.
    """
    try:
        yield
    except AssertionError as error:
        if "lazy mode" not in str(error).lower():
            raise
        value = os.environ.get(LAZY_MODE)
        asking = f"{LAZY_MODE}={value} asks for" if value else "This release starts in"
        raise ImportError(
            f"{error} {asking} lazy mode, which needs the vendor's build of torch. Set "
            f"{LAZY_MODE}=0 for eager mode. In a recipe's command write "
            f"--environment.{LAZY_MODE}=0, and --model.engine=auto where it has engine: graph."
        ) from error


def restore_sigint() -> None:
    """Restores Python's handler of Ctrl-C, which the vendor's library replaces.

    Source: PyTorch bridge 1.19, `pytorch_helpers/habana_helpers/signal_handler.cpp`: as the library
    is loaded, it makes SIGINT end the process at once, without a KeyboardInterrupt.
    """
    # Python still has its own record of the handler, so setting that once more puts it back in
    # place.
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGINT, handler)
