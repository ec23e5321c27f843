"""Measures HCCL between servers, by the processes of a launcher; rank 0 reports the figures.

The processes meet at a store on the machine that runs the command. So nothing has to be set, but
all servers must be able to resolve the name of this machine. MASTER_ADDR takes the name's place, if
it is set here.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning_gaudi._core import vendor
from lightning_gaudi._core.launched import find_launched, sees_one_card
from lightning_gaudi._version import __version__
from lightning_gaudi.hardware import find_gaudi
from lightning_gaudi.simulator import settings
from lightning_gaudi.tools.doctor import Machine, software
from lightning_gaudi.tools.doctor.hosts import command, lines, started
from lightning_gaudi.tools.doctor.machine import python
from lightning_gaudi.tools.doctor.wire_format import Joiner, cut
from lightning_gaudi.tools.verify.run import Verification, VerifyError, today
from lightning_gaudi.untrusted import hide_secrets, printable, shown_command

_MEETING_S = 120
_MAX_SAID = 400
_MAX_RANKS = 2**16


@dataclass
class _Heard:
    """Holds what the ranks have sent."""

    hosts: dict[int, str] = field(default_factory=dict)
    """The name of each rank's host, by rank."""
    size: int = 0
    identity: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_done: bool = False

    def take(self, message: Any) -> None:
        """Takes a message, if it is one of ours."""
        if not isinstance(message, dict):
            return
        if isinstance(message.get("problem"), str):
            self.problems.append(printable(hide_secrets(message["problem"]), max_chars=_MAX_SAID))
        elif isinstance(message.get("host"), str):
            rank, size = message.get("rank"), message.get("size")
            # Anybody on a network of these hosts may send anything.
            if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size <= _MAX_RANKS:
                self.hosts[rank], self.size = message["host"], size
        elif isinstance(message.get("identity"), dict):
            self.identity = message["identity"]
        elif isinstance(message.get("rows"), list):
            self.rows = [row for row in message["rows"] if isinstance(row, dict)]
            self.is_done = True


def verify(launcher: Sequence[str], *, is_quick: bool, patience_s: float) -> Verification:
    """Measures HCCL on all servers that a launcher starts processes on.

    Args:
        launcher: The words of its command, as `doctor --hosts` takes them.
        is_quick: Whether a few sizes are enough.
        patience_s: After how many seconds without a word from the ranks they are given up.

    Raises:
        OSError: There is no such launcher.
        VerifyError: Nothing was measured.
    """
    import torch.distributed as dist

    begun = time.monotonic()
    address = os.environ.get("MASTER_ADDR") or socket.gethostname()
    token = secrets.token_hex(8)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, 0, is_master=True, wait_for_workers=False
        )
    except RuntimeError as error:
        raise VerifyError(
            f"no rank could meet the others at {address}: {error}. Set MASTER_ADDR to an address "
            "of this machine that all servers reach."
        ) from error
    words = [python(), "-m", "lightning_gaudi.tools.command_line", "verify"]
    words += ["--answer", f"{token}@{address}@{store.port}", *(["--quick"] if is_quick else [])]
    heard, said = _ask(command(launcher, words), token, patience_s)
    if not heard.is_done:
        raise VerifyError(_why_nothing(heard, said, launcher))
    num_hosts = len(set(heard.hosts.values()))
    rows = [{**row, "num_hosts": num_hosts} for row in heard.rows]
    found = Verification(_identity(heard, is_quick), figures={"collectives": rows})
    found.seconds = time.monotonic() - begun
    return found


def _ask(words: Sequence[str], token: str, patience_s: float) -> tuple[_Heard, str]:
    heard, joiner = _Heard(), Joiner(token)
    with tempfile.TemporaryFile("w+", errors="replace") as said, started(words, said) as process:
        for line in lines(process, time.monotonic() + _MEETING_S + patience_s):
            message = joiner.add(line)
            if message is not None:
                heard.take(message)
            if heard.is_done or heard.problems:
                break
        said.seek(0)
        return heard, said.read().strip()


def _why_nothing(heard: _Heard, said: str, launcher: Sequence[str]) -> str:
    tried = shown_command(launcher)
    if heard.problems:
        return f"of `{tried}` one rank failed: {heard.problems[0]}"
    missing = sorted(set(range(heard.size)) - set(heard.hosts))
    if missing:
        each = ", ".join(map(str, missing[:16]))
        return (
            f"of `{tried}` nothing was heard of rank {each}; `lightning-gaudi doctor --hosts` looks"
        )
    last = printable(hide_secrets(said.splitlines()[-1] if said else ""), max_chars=_MAX_SAID)
    return f"`{tried}` measured nothing: {last or 'nothing was heard of its ranks in time'}"


def _identity(heard: _Heard, is_quick: bool) -> dict[str, Any]:
    return {
        **heard.identity,
        "date": today(),
        "num_cards": heard.size,
        "hosts": len(set(heard.hosts.values())),
        "is_quick": is_quick,
        "parts": ["collectives"],
        "doctor": {"status": 0, "findings": [], "facts": {}},
    }


def answer(told: str, *, is_quick: bool) -> None:
    """Measures as one of the ranks, and reports to the process that has started the launcher.

    Args:
        told: The token, address and port of the run.
        is_quick: Whether a few sizes are enough.
    """
    token, address, port = told.split("@")
    launched = find_launched()
    name = f"{socket.gethostname()}-{os.getpid()}"
    try:
        if launched is None:
            raise VerifyError("its launcher tells no process which rank it is (RANK, WORLD_SIZE)")
        _measure(token, address, int(port), launched, is_quick=is_quick)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        _write(token, f"{name}-problem", {"problem": f"{name}: {type(error).__name__}: {first}"})


def _measure(token: str, address: str, port: int, launched: Any, *, is_quick: bool) -> None:
    import torch.distributed as dist

    from lightning_gaudi.tools.verify.parts.collectives import measure
    from lightning_gaudi.tools.verify.parts.context import Context

    rank, size = launched.rank, launched.world_size
    about = {"host": socket.gethostname(), "rank": rank, "size": size}
    _write(token, f"{rank}-hello", about)
    local_rank = launched.local_rank or 0
    if not os.environ.get("HLS_MODULE_ID") and not sees_one_card():
        vendor.select_module(vendor.module_id(local_rank))
    vendor.package()
    vendor.init()
    vendor.init_hccl(size, rank, local_rank)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=timedelta(seconds=_MEETING_S)
    )
    dist.init_process_group("hccl", store=store, rank=rank, world_size=size)
    options = {"is_small": settings.is_requested(), "is_quick": is_quick}
    rows: list[dict[str, Any]] = []
    measure(Context(rank, size, Path(), options), rows.append)
    if rank == 0:
        _write(token, "identity", {"identity": _own_identity()})
        kept = [{key: row[key] for key in row if key != "row"} for row in rows]
        _write(token, "rows", {"rows": kept})
    dist.barrier()


def _own_identity() -> dict[str, Any]:
    machine = Machine()
    name = vendor.device_name()
    generation = find_gaudi(name)
    versions = {each: machine.version(each) for each in software.PACKAGES}
    return {
        "lightning_gaudi": __version__,
        "card": generation.key if generation else name.lower(),
        "device_name": name,
        "release": software.gaudi_software(machine) or "unknown",
        "is_simulated": settings.is_requested(),
        "modes": ["lazy" if vendor.is_lazy() else "eager"],
        "versions": {each: version for each, version in versions.items() if version},
    }


def _write(token: str, name: str, message: dict[str, Any]) -> None:
    for line in cut(token, name, message):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
