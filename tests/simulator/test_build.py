"""Builds of a tiny extension, which takes a second where the device takes half a minute."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_gaudi.simulator import SimulatorError, build, toolchain
from tests.helpers.process import environment, run, run_python

_NAME = "tiny"
_BINDINGS = """
#include "distributed/answer.h"
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(compute()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&definition); }
"""
_LOAD = """\
import sys
from pathlib import Path
from lightning_gaudi.simulator import build
print(build.ensure_built(Path(sys.argv[1]), "tiny"))
"""
_PRINT_HEAVY = """\
heavy = ("torch", "torch.utils.cpp_extension", "setuptools", "filelock")
print([name for name in heavy if name in sys.modules])
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A private cache, a folder of sources, and a compiler that can be made slow or bad."""
    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path / "cache"))
    real = toolchain.find_compiler()
    assert real is not None
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho $$ >> compiled\n"
        f'[ ! -e slow ] || sleep "$(cat slow)"\n[ ! -e bad ] || {{ cat bad; exit 1; }}\n'
        'if [ -e empty ]; then while [ "$1" != -o ]; do shift; done; : > "$2"; exit; fi\n'
        f'exec {real.command[0]} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "sources"
    (folder / "distributed").mkdir(parents=True)
    (folder / "distributed/answer.h").write_text("int compute();\n")
    source = '#include "distributed/answer.h"\nint compute() { return 42; }\n'
    (folder / "distributed/answer.cpp").write_text(source)
    (folder / "bindings.cpp").write_text(_BINDINGS)
    return folder


@pytest.fixture
def empty_builds(tmp_path):
    """Let the compiler make empty files where nothing is loaded: half a second less for each."""
    (tmp_path / "empty").touch()


def _ensure_built(sources):
    return build.ensure_built(sources, _NAME)


def _num_compiled(tmp_path):
    compiled = tmp_path / "compiled"
    return len(compiled.read_text().split()) if compiled.exists() else 0


def _start_builder(sources):
    """A builder in a process group of its own, once it has said that it builds or waits."""
    builder = subprocess.Popen(
        [sys.executable, "-c", _LOAD, sources],
        env=environment({"LIGHTNING_GAUDI_SIMULATE": None}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert builder.stderr is not None
    return builder, builder.stderr.readline()


def _wait_for_compiler(tmp_path):
    deadline = time.monotonic() + 30
    while not _num_compiled(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.1)


def _leftovers(tmp_path):
    return list((tmp_path / "cache").rglob("*.building-*"))


def test_a_build_loads_and_says_that_it_happens_once(sources, capfd):
    module = build.load(sources, _NAME)
    assert module.answer() == 42
    assert sys.modules.pop(_NAME) is module
    said = capfd.readouterr().err
    assert "building the simulated HPU for torch 2." in said
    assert "once, about" in said


@pytest.mark.usefixtures("empty_builds")
def test_a_cached_build_is_found_without_torch_and_without_tools(sources, tmp_path):
    path = _ensure_built(sources)
    compiled = _num_compiled(tmp_path)
    env = {"LIGHTNING_GAUDI_SIMULATE": None}
    result = run_python(_LOAD + _PRINT_HEAVY, str(sources), env=env)
    assert result.stdout.splitlines() == [str(path), "[]"]
    assert result.stderr == ""
    assert _num_compiled(tmp_path) == compiled


@pytest.mark.usefixtures("empty_builds")
def test_finding_a_cached_build_takes_milliseconds(sources):
    _ensure_built(sources)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        _ensure_built(sources)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.02


@pytest.mark.usefixtures("empty_builds")
def test_of_two_builders_one_builds_and_the_other_waits(sources, tmp_path):
    (tmp_path / "slow").write_text("1")
    first, said_by_first = _start_builder(sources)
    second, said_by_second = _start_builder(sources)
    paths = {builder.communicate(timeout=60)[0] for builder in (first, second)}
    assert (first.returncode, second.returncode) == (0, 0)
    assert "building the simulated HPU" in said_by_first
    assert "waiting for another process" in said_by_second
    assert len(paths) == 1
    assert _num_compiled(tmp_path) == 3  # two units, and the link


@pytest.mark.slow
def test_a_killed_builder_leaves_nothing_broken_and_blocks_nobody(sources, tmp_path):
    (tmp_path / "slow").write_text("60")
    builder, said = _start_builder(sources)
    assert "building" in said
    _wait_for_compiler(tmp_path)
    builder.kill()  # its compiler lives on for now
    pids = (tmp_path / "compiled").read_text().split()
    assert builder.wait(timeout=30) == -signal.SIGKILL
    (tmp_path / "slow").unlink()
    assert _leftovers(tmp_path)
    start = time.monotonic()
    assert build.load(sources, _NAME).answer() == 42
    assert time.monotonic() - start < 20
    assert not _leftovers(tmp_path)
    for pid in pids:
        os.killpg(int(pid), signal.SIGKILL)
    builder.communicate()


@pytest.mark.slow
def test_an_interrupted_builder_ends_its_compiler_and_cleans_up(sources, tmp_path):
    (tmp_path / "slow").write_text("60")
    builder, _ = _start_builder(sources)
    _wait_for_compiler(tmp_path)
    builder.send_signal(signal.SIGINT)
    builder.communicate(timeout=30)
    assert builder.returncode != 0
    assert not _leftovers(tmp_path)
    for pid in (tmp_path / "compiled").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.usefixtures("empty_builds")
def test_a_stale_lock_file_does_not_block(sources):
    path = _ensure_built(sources)
    lock = path.parent.parent / f"{path.parent.name}.lock"
    shutil.rmtree(path.parent)
    lock.write_text("pid 1")
    assert _ensure_built(sources) == path


@pytest.mark.usefixtures("empty_builds")
def test_the_key_follows_sources_and_compiler(sources, tmp_path, monkeypatch):
    first = _ensure_built(sources)
    (sources / "distributed/answer.h").write_text("int compute();  // changed\n")
    second = _ensure_built(sources)
    compiler = tmp_path / "compiler"
    os.utime(compiler, (1, 1))
    third = _ensure_built(sources)
    monkeypatch.setenv("CXX", f"{compiler} -DANYTHING")
    fourth = _ensure_built(sources)
    assert len({first, second, third, fourth}) == 4


@pytest.mark.usefixtures("empty_builds")
def test_the_key_follows_the_folders_of_sources(sources):
    first = _ensure_built(sources)
    (sources / "api").mkdir()
    (sources / "bindings.cpp").rename(sources / "api/bindings.cpp")  # the order stays
    assert _ensure_built(sources) != first


@pytest.mark.usefixtures("empty_builds")
def test_the_key_follows_torch(sources, monkeypatch):
    first = _ensure_built(sources)
    torch = toolchain.find_torch()
    other = toolchain.Torch(torch.root, "2.13.0+cu999", torch.git_version)
    monkeypatch.setattr(toolchain, "find_torch", lambda: other)
    second = _ensure_built(sources)
    assert second != first
    assert "torch-2.13.0+cu999-" in str(second)


def test_without_a_compiler_the_error_says_what_to_install(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(SimulatorError, match=r"no C\+\+ compiler .*CXX='g\+\+-99'.*install g\+\+"):
        _ensure_built(sources)


@pytest.mark.usefixtures("empty_builds")
def test_without_a_compiler_a_cached_build_still_serves(sources, tmp_path, monkeypatch):
    path = _ensure_built(sources)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX")
    assert _ensure_built(sources) == path


def test_without_python_headers_the_error_says_what_to_install(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(SimulatorError, match=r"Python\.h is missing.*python3-dev"):
        _ensure_built(sources)


@pytest.mark.parametrize(
    ("version", "message"),
    [("1.9.0", r"torch 1\.9\.0 is too old.*torch 2\.6 or newer"), (None, "torch, which is not")],
)
def test_a_torch_that_cannot_be_served_is_an_error(
    sources, tmp_path, monkeypatch, version, message
):
    spec = None
    if version is not None:
        (tmp_path / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
        spec = toolchain.importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(SimulatorError, match=message):
        _ensure_built(sources)


def test_another_system_is_an_error(sources, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SimulatorError, match="runs on Linux; this is darwin"):
        _ensure_built(sources)


def test_a_failed_compilation_names_its_cause_and_its_log(sources, tmp_path):
    (sources / "distributed/answer.cpp").write_text("int compute() { return forty_two; }\n")
    with pytest.raises(SimulatorError, match="could not be compiled for torch 2") as caught:
        _ensure_built(sources)
    message = str(caught.value)
    assert "forty_two" in message
    assert "\n" not in message
    (log,) = (tmp_path / "cache" / "simulator").glob("*.log")
    assert str(log) in message
    assert "forty_two" in log.read_text()
    assert not _leftovers(tmp_path)


@pytest.mark.usefixtures("empty_builds")
def test_a_build_that_does_not_load_is_an_error_naming_its_folder(sources):
    path = _ensure_built(sources)
    path.write_bytes(b"not an ELF file")
    with pytest.raises(SimulatorError, match="does not load") as caught:
        build.load(sources, _NAME)
    assert str(path.parent) in str(caught.value)


def test_a_full_disk_is_named(sources, tmp_path):
    (tmp_path / "bad").write_text("/tmp/x.s: No space left on device\n")
    with pytest.raises(SimulatorError, match=r"No space left.*LIGHTNING_GAUDI_CACHE_DIR"):
        _ensure_built(sources)
    assert not _leftovers(tmp_path)


def test_a_cache_below_a_file_is_an_error(sources, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(SimulatorError, match=r"file/cache.*LIGHTNING_GAUDI_CACHE_DIR"):
        _ensure_built(sources)


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write anywhere; setpriv (util-linux) would take that right away",
)
def test_a_read_only_cache_is_an_error(sources, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    unprivileged = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    source = "from tests.simulator.test_build import build_and_print_error as f; f()"
    result = run(
        [*(unprivileged if os.geteuid() == 0 else []), sys.executable, "-c", source, str(sources)],
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        cwd=Path(__file__).parents[2],
    )
    assert f"cannot be built in {cache}/simulator: Permission denied" in result.stdout
    assert "LIGHTNING_GAUDI_CACHE_DIR" in result.stdout


def build_and_print_error():
    """For a process of its own: prints the error, and nothing if there is none."""
    try:
        build.ensure_built(Path(sys.argv[1]), _NAME)
    except SimulatorError as error:
        print(error)
