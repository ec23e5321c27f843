"""A parser and what it is given, and a process with limits that runs it on thousands of inputs.

What a parser may do of a damaged input: return something, or raise an error that this project
raises in its own words. An error that Python or a library raises by itself, such as a KeyError, is
bare, whatever its type, unless the target names it as documented.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import linecache
import mmap
import os
import reprlib
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from hypothesis import HealthCheck, given, settings, strategies

from .sources import ROOT

MAX_SECONDS = 10.0
"""How long a parser may take for one input."""
MAX_BYTES = 2**30
"""How much memory it may take beside what the process has."""
_PATIENCE_S = 2.0
_PREPARING_S = 120.0
_MAX_KILLED = 3
_BROKEN_STATUS = 70
_BROKEN = f"exit status {_BROKEN_STATUS}"
"""The end of a process in which this test itself has failed."""
_PROGRESS = struct.Struct("<QQd")
"""The input that is parsed, how many have raised before, and when it began."""

_SHOW = reprlib.Repr()
_SHOW.maxlevel, _SHOW.maxstring, _SHOW.maxother, _SHOW.maxdict = 5, 400, 400, 20

OURS = tuple(str(ROOT / name) + os.sep for name in ("lightning_gaudi", "recipes"))


class WrongResultError(AssertionError):
    """A parser took a damaged input for another than it was."""


@dataclass(frozen=True)
class Parser:
    """What a target makes once it is in its process."""

    damage: Callable[[Random], Any]
    """Makes an input; the same for the same numbers."""
    parse: Callable[[Any], Any]
    """What is tested."""
    check: Callable[[Any, Any], None] | None = None
    """Raises `WrongResultError` of an input and its result."""


@dataclass(frozen=True)
class Target:
    """A parser by name."""

    name: str
    prepare: Callable[[Path], Parser]
    """Gets an empty folder."""
    reads: tuple[str, ...]
    """The functions it reaches, as `sources.readers` names them."""
    errors: tuple[type[BaseException], ...]
    """What it may raise in words of ours."""
    foreign: tuple[type[BaseException], ...]
    """What it may raise in a library's words, as its documentation says."""
    num_quick: int
    """Inputs in `make test`."""


TARGETS: dict[str, Target] = {}


def target(
    name: str,
    *reads: str,
    errors: tuple[type[BaseException], ...] = (ValueError,),
    foreign: tuple[type[BaseException], ...] = (),
    num_quick: int = 40,
) -> Callable[[Callable[[Path], Parser]], Callable[[Path], Parser]]:
    """Registers a function that makes a `Parser`; see `Target` for the arguments."""

    def register(prepare: Callable[[Path], Parser]) -> Callable[[Path], Parser]:
        assert name not in TARGETS
        TARGETS[name] = Target(name, prepare, reads, errors, foreign, num_quick)
        return prepare

    return register


@dataclass
class Failure:
    """What went wrong with an input, and how to have it again."""

    target: str
    index: int
    what: str
    place: str = ""
    """The line of this project's that the error came by."""
    shown: str = ""
    """The beginning of the input."""

    @property
    def kind(self) -> tuple[str, str]:
        """What tells failures apart."""
        return self.what.partition(":")[0], self.place

    def __str__(self) -> str:
        again = f"pytest tests/security/test_fuzzing.py -k {self.target}"
        if self.index >= 0:
            again = f"python -m tests.security.fuzzing {self.target} {self.index}"
        return f"{self.what} at {self.place}\n  {self.shown}\n  {again}"


@dataclass
class Outcome:
    """What a target has done."""

    num_inputs: int = 0
    num_raised: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)


def random_of(name: str, index: int) -> Random:
    """What the input of a number is drawn from."""
    return Random(f"{name}/{index}")


def judge(found: Target, parser: Parser, given: Any) -> BaseException | None:
    """Parse an input.

    Returns:
        What the parser has raised as it may.

    Raises:
        BaseException: It raised what it may not, or has returned what is wrong.
    """
    try:
        result = parser.parse(given)
    except (KeyboardInterrupt, WrongResultError):
        raise
    except BaseException as error:
        if not _may(found, error):
            raise
        return error
    if parser.check is not None:
        parser.check(given, result)
    return None


def _may(found: Target, error: BaseException) -> bool:
    if type(error) in found.foreign:
        return True
    return isinstance(error, found.errors) and is_ours(error)


def is_ours(error: BaseException) -> bool:
    """Whether a statement of this project's has raised it, and not Python of itself."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    path = frames[-1].f_code.co_filename
    line = linecache.getline(path, lines[-1]).strip()
    return path.startswith(OURS) and line.startswith(("raise", "sys.exit("))


def place_of(error: BaseException) -> str:
    """The innermost line of this project's that an error came by."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if path.startswith(OURS):
            found = f"{Path(path).relative_to(ROOT)}:{line}"
    return found


def explore(name: str, num_inputs: int) -> Outcome:
    """Have a target parse inputs that hypothesis draws, in a process with limits.

    What fails is made as small as hypothesis can make it. The same is drawn each time.
    """
    _load_hypothesis()
    return _run(name, range(num_inputs), _explore)


@functools.cache
def _load_hypothesis() -> None:
    """Has it import what it needs, and look for constants in all modules, once for all forks."""

    def draw(random: Random) -> None:
        random.random(), random.randrange(1000)

    _quick(200)(given(strategies.randoms(use_true_random=False))(draw))()


def _quick(num_inputs: int) -> settings:
    return settings(
        max_examples=num_inputs,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def run(name: str, num_inputs: int, first: int = 0) -> Outcome:
    """Have a target parse inputs in processes with limits; whoever dies is followed by another."""
    return _run(name, range(first, first + num_inputs), _parse_all)


def _run(name: str, indices: range, act: Callable[..., None]) -> Outcome:
    outcome, index, began, num_killed = Outcome(), indices.start, time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder, _shared() as progress:
        report = Path(folder, "report")
        while index < indices.stop and num_killed < _MAX_KILLED:
            scratch = Path(folder, f"scratch-{index}")
            scratch.mkdir()
            # To prepare may take longer: libraries are imported.
            progress[:24] = _PROGRESS.pack(index, 0, time.monotonic() + _PREPARING_S)
            gc.freeze()  # else the child's collections copy all that this process holds
            pid = os.fork()
            if pid == 0:
                _child(act, name, range(index, indices.stop), scratch, report, progress)
            gc.unfreeze()
            how = _wait(pid, progress)
            assert how != _BROKEN, report.with_suffix(".txt").read_text()
            begun = index
            index, num_raised, _ = _PROGRESS.unpack(progress[:24])
            outcome.num_inputs += index - begun
            outcome.num_raised += num_raised
            if how is not None:
                outcome.failures.append(Failure(name, index, how, "the end of the process"))
                index, num_killed = index + 1, num_killed + 1
            shutil.rmtree(scratch, ignore_errors=True)
        for line in report.read_text().splitlines() if report.is_file() else ():
            outcome.failures.append(Failure(**json.loads(line)))
    outcome.seconds = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def _shared() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 4096) as found:
        yield found


def _wait(pid: int, progress: mmap.mmap) -> str | None:
    """How a process ended otherwise than by itself."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return f"killed by {signal.Signals(-code).name}"
            return None if code == 0 else f"exit status {code}"
        _, _, since = _PROGRESS.unpack(progress[:24])
        if time.monotonic() - since > MAX_SECONDS + _PATIENCE_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"no end within {MAX_SECONDS:.0f} s"
        time.sleep(0.002)


def _child(
    act: Callable[..., None],
    name: str,
    indices: range,
    scratch: Path,
    report: Path,
    progress: mmap.mmap,
) -> NoReturn:
    """Parse inputs and end the process."""
    status = _BROKEN_STATUS
    try:
        with _quiet():
            parser = TARGETS[name].prepare(scratch)
            limit_memory()
            act(TARGETS[name], parser, indices, report, progress)
        status = 0
    except BaseException:
        report.with_suffix(".txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without output, warnings, core files and the time limit of a test, which is the parent's."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def limit_memory() -> None:
    """Have what is asked for beyond `MAX_BYTES` from now on fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES,) * 2)


def _parse_all(
    found: Target, parser: Parser, indices: range, report: Path, progress: mmap.mmap
) -> None:
    num_raised, seen = 0, set[tuple[str, str]]()
    for index in indices:
        given = parser.damage(random_of(found.name, index))
        began = time.monotonic()
        progress[:24] = _PROGRESS.pack(index, num_raised, began)
        failure: Failure | None = None
        try:
            num_raised += judge(found, parser, given) is not None
        except BaseException as error:
            failure = Failure(found.name, index, _what(error), place_of(error))
        if (took := time.monotonic() - began) > MAX_SECONDS:
            failure = Failure(found.name, index, f"took {took:.0f} s, at most {MAX_SECONDS:.0f} s")
        if failure is not None and (key := failure.kind) not in seen:
            seen.add(key)
            failure.shown = _SHOW.repr(given)[:600]
            with report.open("a") as file:
                file.write(json.dumps(vars(failure)) + "\n")
    progress[:24] = _PROGRESS.pack(indices.stop, num_raised, time.monotonic())


def _explore(
    found: Target, parser: Parser, indices: range, report: Path, progress: mmap.mmap
) -> None:
    """As `_parse_all`, with numbers that hypothesis draws; one failure at most."""
    last: list[Any] = []

    def check(random: Random) -> None:
        progress[:24] = _PROGRESS.pack(indices.start, 0, time.monotonic())
        last[:] = [parser.damage(random)]
        judge(found, parser, last[0])

    try:
        _quick(len(indices))(given(strategies.randoms(use_true_random=False))(check))()
    except BaseException as error:
        failure = Failure(found.name, -1, _what(error), place_of(error), _SHOW.repr(last[0]))
        with report.open("a") as file:
            file.write(json.dumps(vars(failure)) + "\n")
    progress[:24] = _PROGRESS.pack(indices.stop, 0, time.monotonic())


def _what(error: BaseException) -> str:
    said = str(error).encode("unicode_escape", "replace").decode()
    return f"{type(error).__name__}: {said[:160]}"


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment for a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
