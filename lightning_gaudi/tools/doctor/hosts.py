"""Runs the checks on all servers, through the launcher with which the user starts ranks."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from lightning_gaudi.tools.doctor.comparison import Process, merge
from lightning_gaudi.tools.doctor.diagnosis import Options, diagnose, facts
from lightning_gaudi.tools.doctor.findings import Finding, Report, error, warning
from lightning_gaudi.tools.doctor.launchers import named_hosts, parses_again, place
from lightning_gaudi.tools.doctor.machine import Machine, end, python
from lightning_gaudi.tools.doctor.wire_format import Joiner, cut
from lightning_gaudi.untrusted import hide_secrets, printable, shown_command

PLACEHOLDER = "{}"
"""The place of the command that ranks run among the launcher's words; without it, the end."""
_ENDING_S = 5
_MAX_SAID = 100_000


@dataclass
class _Answers:
    """What the processes and the launcher have sent so far."""

    begun: dict[str, Process] = field(default_factory=dict)
    """The processes that have said that they are there, and have not reported yet."""
    done: dict[str, Process] = field(default_factory=dict)
    status: int | None = None
    """The launcher's exit status; None while it runs."""
    said: str = ""
    """What the launcher and its processes wrote to standard error."""

    def is_complete(self) -> bool:
        sizes = {process.size for process in self.done.values()}
        return sizes == {len(self.done)} and not self.begun

    def take(self, message: Any) -> None:
        try:
            sender, process, has_reported = Process.read(message)
        except ValueError:
            # Its sender then counts as one that has not answered.
            return
        if has_reported:
            self.begun.pop(sender, None)
            self.done[sender] = process
        else:
            self.begun[sender] = process


def answer(token: str, options: Options) -> None:
    """Writes this process's report for the process that has started the launcher.

    The first process of each host looks at the machine, the others at versions and settings.

    Args:
        token: The token of the run.
        options: The options of the diagnosis.
    """
    found = place(os.environ)
    host = socket.gethostname()
    # A rank is one process. Without ranks, processes of a host are told apart by their numbers.
    sender = f"{host}-{os.getpid() if found.rank is None else found.rank}"
    about = {
        "sender": sender,
        "host": host,
        "rank": found.rank,
        "size": found.size,
        "is_first": not found.local_rank,
    }
    # Looking at a machine may hang. A process that has said hello and does not report is named.
    _write(token, f"{sender}-hello", about | {"report": None})
    machine = Machine()
    report = Report([], facts(machine)) if found.local_rank else diagnose(options, machine)
    _write(token, sender, about | {"report": report.as_json()})


def _write(token: str, name: str, message: dict[str, Any]) -> None:
    for line in cut(token, name, message):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def diagnose_hosts(launcher: Sequence[str], arguments: Sequence[str], timeout_s: float) -> Report:
    """Looks at all machines on which a launcher starts processes.

    Args:
        launcher: Its words, such as `["mpirun", "-np", "2", "--host", "a,b"]`. `{}` among them
            marks the place of the command to run, which else comes last.
        arguments: The arguments of `lightning-gaudi doctor` for each process.
        timeout_s: How many seconds to wait for all of them.

    Raises:
        OSError: There is no such launcher, or it does not start.
    """
    token = secrets.token_hex(8)
    words = [python(), *_ANSWER, token, *arguments]
    answers = _ask(command(launcher, words), token, timeout_s)
    silent = list(_silent(answers, launcher, timeout_s))
    if silent and answers.said:
        said = printable(hide_secrets(answers.said), max_chars=_MAX_SAID, lines=True)
        print(said, file=sys.stderr)
    if not answers.done:
        return Report(silent)
    report = merge(sorted(answers.done.values(), key=lambda each: (each.rank or 0, each.host)))
    return Report([*silent, *report.findings], report.facts)


_ANSWER = ("-m", "lightning_gaudi.tools.command_line", "doctor", "--answer")


def command(launcher: Sequence[str], words: Sequence[str]) -> list[str]:
    """Returns the words with which a launcher starts a command on all machines.

    Args:
        launcher: Its words; `{}` among them stands for the command, which else comes last.
        words: The command's.
    """
    again: Callable[[list[str]], list[str]] = (
        (lambda found: [shlex.quote(each) for each in found]) if parses_again(launcher) else list
    )
    if any(PLACEHOLDER in word for word in launcher):
        # A word that is the placeholder becomes the words of the command. Within a word, as that of
        # `bash -c`, it becomes one text for a shell.
        whole = {PLACEHOLDER: again([*words])}
        parts = (
            whole.get(each, [each.replace(PLACEHOLDER, shlex.join(words))]) for each in launcher
        )
        return [word for part in parts for word in part]
    return [*launcher, *again([*words])]


def _ask(words: Sequence[str], token: str, timeout_s: float) -> _Answers:
    """Starts the launcher and gathers answers, until all have answered or the time is over."""
    answers, joiner, deadline = _Answers(), Joiner(token), time.monotonic() + timeout_s
    with tempfile.TemporaryFile("w+", errors="replace") as said, started(words, said) as process:
        for line in lines(process, deadline):
            message = joiner.add(line)
            if message is not None:
                answers.take(message)
            if answers.is_complete():
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            answers.status = process.wait(_ENDING_S if answers.is_complete() else 0)
        said.seek(0)
        answers.said = said.read().strip()
    return answers


@contextlib.contextmanager
def started(words: Sequence[str], said: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs the launcher for a block, then asks it to end its processes, and kills it."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _ask_to_end(process)
        end(process)


def _ask_to_end(process: subprocess.Popen[str]) -> None:
    """Asks the launcher, and all in its session, to end what they have started elsewhere."""
    deadline = time.monotonic() + _ENDING_S
    # killpg raises ProcessLookupError when all have ended.
    with contextlib.suppress(ProcessLookupError):
        # To the whole group, because a shell around the launcher passes no signal on.
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            # A process that has ended stays in the group until it is waited for.
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def lines(process: subprocess.Popen[str], deadline: float) -> Iterator[str]:
    """Yields the lines that the launcher prints, until it has ended or the time is over."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            # Not `process.stdout.readline`, whose buffer may hold lines that select does not see.
            data = os.read(process.stdout.fileno(), 2**16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)


def _silent(answers: _Answers, launcher: Sequence[str], timeout_s: float) -> Iterator[Finding]:
    """Reports the processes that have not answered, and how they were started."""
    tried = shown_command(launcher)
    when = f"within {timeout_s:.0f} s of `{tried}`"
    if answers.status is not None:
        when = f"before `{tried}` ended with status {answers.status}"
    said = f" ({_first_words(answers.said)})" if answers.said else ""
    fix = "Run `lightning-gaudi doctor` there by hand, and `hostname` over the same launcher."
    for process in answers.begun.values():
        yield error("hosts", f"{process} began, and did not answer {when}{said}", fix)
    if missing := _missing(answers, launcher):
        yield error("hosts", f"{missing} did not answer {when}{said}", fix)
    elif not answers.begun and not answers.done:
        yield error("hosts", f"nobody answered {when}{said}", fix)
    elif answers.status and not answers.begun:
        failed = f"all answered, but `{tried}` ended with status {answers.status}{said}"
        yield warning("hosts", failed, fix)


def _first_words(said: str) -> str:
    """Returns the first line of standard error that says something; the user sees all of it."""
    lines = (line.strip() for line in said.splitlines() if not line.startswith((" ", "Traceback")))
    return next((line for line in lines if re.search(r"\w", line)), "no message")


_MAX_RANKS = 2**16
"""The most ranks that are looked for among the missing, because a host may claim any number."""


def _missing(answers: _Answers, launcher: Sequence[str]) -> str:
    """Returns in words the hosts of the launcher's options and the ranks that sent nothing."""
    processes = [*answers.begun.values(), *answers.done.values()]
    known = {_short(process.host) for process in processes}
    named = named_hosts(launcher)
    # A launcher may know a host by another name than its own. Where as many hosts have answered as
    # were named, none is missing.
    hosts = [host for host in named if _short(host) not in known and len(known) < len(named)]
    size = max((process.size or 0 for process in processes), default=0)
    ranks = {str(rank) for rank in range(min(size, _MAX_RANKS))} - {
        str(process.rank) for process in processes
    }
    words = [_named("host", hosts)] if hosts else []
    words += [f"{_named('rank', sorted(ranks, key=int))} of {size}"] if ranks else []
    return " and ".join(words)


def _named(kind: str, names: Sequence[str]) -> str:
    return f"{kind}{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _short(host: str) -> str:
    return host.partition(".")[0]
