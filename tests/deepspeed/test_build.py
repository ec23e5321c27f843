"""Builds of a tiny operation, which takes seconds where cpu_adam takes half a minute."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from lightning_gaudi.deepspeed import library
from lightning_gaudi.deepspeed.ops import build
from lightning_gaudi.deepspeed.ops.build import OpBuildError
from tests.helpers.process import environment

_ENSURE = """\
from lightning_gaudi.deepspeed.ops import build
from tests.deepspeed.tiny_op import TinyBuilder
build.ensure_built(TinyBuilder())
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A builder with a private cache, whose compiler can be made slow or bad."""
    library.load()
    from tests.deepspeed.tiny_op import SOURCE, SOURCES, TinyBuilder

    for name, folder in (("LIGHTNING_GAUDI_CACHE_DIR", "cache"), ("TORCH_EXTENSIONS_DIR", "ext")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-c*-o*)\necho $$ >> {tmp_path}/compiled\n'
        f'[ ! -e {tmp_path}/slow ] || sleep "$(cat {tmp_path}/slow)"\n'
        f"[ ! -e {tmp_path}/bad ] || {{ cat {tmp_path}/bad; exit 1; }}\nesac\n"
        f'exec {shutil.which("c++")} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(SOURCES, str(tmp_path))
    (tmp_path / "tiny_op.cpp").write_text(SOURCE)
    found = TinyBuilder()
    yield found
    type(found)._loaded_ops.pop(found.name, None)


def _compiled(tmp_path: Path) -> list[int]:
    """The compilers that were started on the source; those that link or tell a version are not."""
    path = tmp_path / "compiled"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def _leftovers(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "cache").rglob("*.building-*")]


def _together(*calls: Callable[[], Any]) -> list[Any]:
    """What the calls returned or raised, each made in a thread of its own."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except OpBuildError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.slow
def test_two_that_need_it_build_it_once(
    builder: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """What a killed build has left, torch's lock with it, keeps nobody waiting."""
    stale = tmp_path / "cache" / "deepspeed" / f"{build._describe(builder).folder.name}.building-x"
    (stale / "tiny_op").mkdir(parents=True)
    (stale / "tiny_op" / "lock").touch()
    first, second = _together(*[lambda: build.ensure_built(builder)] * 2)
    assert first == second
    assert capfd.readouterr().err.count("building DeepSpeed's tiny_op, once") == 1
    assert not _leftovers(tmp_path)
    # Torch's own lock is on nobody's way either: the folder holds the library and nothing else.
    assert [path.name for path in first.parent.iterdir()] == ["tiny_op.so"]

    assert len(_compiled(tmp_path)) == 1
    assert build.provide(builder).answer() == 42
    assert builder.load() is build.provide(type(builder)())
    assert len(_compiled(tmp_path)) == 1

    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.ensure_built(builder) == first


def test_a_broken_library_is_named(builder: Any) -> None:
    folder = build._describe(builder).folder
    folder.mkdir(parents=True)
    (folder / "tiny_op.so").write_bytes(b"half a library")
    with pytest.raises(OpBuildError, match=rf"{re.escape(str(folder))} does not load: .* Remove"):
        build.provide(builder)


def test_another_source_is_another_build(builder: Any, tmp_path: Path) -> None:
    before = build._describe(builder).folder
    (tmp_path / "tiny_op.cpp").write_text("// new\n")
    assert build._describe(builder).folder != before


@pytest.mark.slow
def test_a_build_that_fails_says_why_to_all_who_wait(builder: Any, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("x.cpp:1: error: nothing works")
    errors = _together(*[lambda: build.ensure_built(builder)] * 2)
    log = next((tmp_path / "cache" / "deepspeed").glob("*.log"))
    for error in errors:
        assert isinstance(error, OpBuildError)
        assert "tiny_op, which CPU offload needs, could not be built for torch 2." in str(error)
        assert f"x.cpp:1: error: nothing works (all of it: {log})" in str(error)
        assert "offload_optimizer=False" in str(error)
    assert "RuntimeError: Error building extension 'tiny_op'" in log.read_text()
    assert len(_compiled(tmp_path)) == 1
    assert not _leftovers(tmp_path)


def test_a_build_has_a_time_limit(builder: Any, tmp_path: Path) -> None:
    with pytest.raises(OpBuildError, match=r"could not be built .* it took more than 1 s"):
        build.ensure_built(builder, time_limit_seconds=1)
    assert not _leftovers(tmp_path)


def test_waiting_for_another_process_has_a_time_limit(
    builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_MARGIN_SECONDS", 0)
    folder = build._describe(builder).folder
    folder.parent.mkdir(parents=True)
    held = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    with held, pytest.raises(OpBuildError, match=r"more than 1 s and holds .*\.lock\. End that"):
        build.ensure_built(builder, time_limit_seconds=1)


@pytest.mark.slow
def test_a_stale_lock_of_torchs_is_named(
    builder: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It waits for it for ever itself; we do not."""
    (tmp_path / "bad").write_text("error: enough")
    locks = [tmp_path / "ext" / part / "tiny_op" / "lock" for part in ("", "py311_cpu")]
    for lock, age in zip(locks, (7200, 10), strict=True):
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, (time.time() - age,) * 2)
    with pytest.raises(OpBuildError, match="error: enough"):
        build.ensure_built(builder)
    said = capfd.readouterr().err
    assert f"{locks[0]} is 120 minutes old: a build of tiny_op was killed and left it" in said
    assert str(locks[1]) not in said


def test_a_missing_tool_is_named(
    builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OpBuildError, match=r"ninja is missing\. Install it"):
        build.ensure_built(builder)
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    with pytest.raises(OpBuildError, match=r"no C\+\+ compiler 'no-such-compiler --fast'. Install"):
        build.ensure_built(builder)
    assert not _compiled(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(
    builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(OpBuildError, match=r"file/deepspeed: Not a directory\. Set LIGHT"):
        build.ensure_built(builder)


@pytest.mark.slow
def test_a_killed_builder_leaves_nothing_broken_and_blocks_nobody(
    builder: Any, tmp_path: Path
) -> None:
    (tmp_path / "slow").write_text("600")
    process = subprocess.Popen(
        [sys.executable, "-c", _ENSURE],
        env=environment({"LIGHTNING_GAUDI_SIMULATE": None, "DS_ACCELERATOR": "cpu"}),
        start_new_session=True,
    )
    while not _compiled(tmp_path):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert _leftovers(tmp_path)
    (tmp_path / "slow").unlink()
    assert build.provide(builder).answer() == 42
    assert not _leftovers(tmp_path)
    for pid in _compiled(tmp_path):
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_compiler_ends_with_the_time_limit(builder: Any, tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("600")
    with pytest.raises(OpBuildError, match="it took more than 20 s"):
        build.ensure_built(builder, time_limit_seconds=20)
    pids = _compiled(tmp_path)
    assert pids
    for pid in pids:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or ") Z " in state.read_text()
