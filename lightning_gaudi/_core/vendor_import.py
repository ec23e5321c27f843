"""What the import of the vendor's package changes in this process and should not, undone.

It guesses ranks and ports too early, and its wrapper of `init_process_group` is in the way of
processes that use no HPU. Called by `vendor` alone, for the vendor's package and for its stand-in.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any


def given_variables(*, is_new: bool) -> Set[str]:
    """The environment's variables before the vendor's package was imported.

    Args:
        is_new: Whether it is yet to be imported; else the program did, or torch, which loads it by
            itself in eager mode, and what the process began with is what was given.
    """
    try:
        began = "" if is_new else Path("/proc/self/environ").read_text(errors="replace")
    except OSError:
        began = ""
    return {line.partition("=")[0] for line in began.split("\0")} if began else set(os.environ)


def forget_defaults(given: Set[str], visible_modules: Sequence[str] | None) -> None:
    """Unset what the vendor's package sets when it is imported.

    With ranks in the environment it selects a card, before `devices` is known; without them it has
    rank 0 wait at localhost:12345, which on several nodes, or beside another job, is wrong.

    Args:
        given: What `given_variables` found.
        visible_modules: What HABANA_VISIBLE_MODULES names, or None if it is not set.

    Source: release 1.19, `distributed/hccl/__init__.py`, which `import habana_frameworks.torch`
    runs.
    """
    local_rank = os.environ.get("LOCAL_RANK", "")
    modules = visible_modules or [str(index) for index in range(8)]
    guess = dict(enumerate(modules)).get(int(local_rank) if local_rank.isdecimal() else -1)
    guesses = {"MASTER_ADDR": "localhost", "MASTER_PORT": "12345", "HLS_MODULE_ID": guess}
    for name, value in guesses.items():
        if name not in given and value is not None and os.environ.get(name) == value:
            del os.environ[name]


def accept_no_device() -> None:
    """Have `init_process_group` take `device_id=None` again, which says nothing.

    The vendor's wrapper does not know the argument, and Lightning always passes it: on a Gaudi
    server `Trainer(accelerator="cpu", devices=2)` would end in a TypeError. A device is refused as
    before. Doing it again is harmless.

    Source: release 1.19, `core/torch_overwrites.py`.
    """
    import torch.distributed as dist

    original = getattr(dist, "init_process_group", None)
    if original is None:
        return
    own = inspect.signature(original, follow_wrapped=False).parameters
    if "device_id" in own:
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, device_id: Any = None, **kwargs: Any) -> Any:
        device = {} if device_id is None else {"device_id": device_id}
        return original(*args, **kwargs, **device)

    dist.init_process_group = init_process_group
