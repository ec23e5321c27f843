"""Compiled code in a cache that another user has put there, or may change."""

from __future__ import annotations

import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_gaudi.deepspeed.ops import build as deepspeed_build
from lightning_gaudi.simulator import build
from lightning_gaudi.simulator.settings import SimulatorError
from lightning_gaudi.untrusted import why_untrusted
from tests.helpers.ranks import call_forked

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Run as root: it becomes other users.")

OTHER, RANDOM = 12345, 1_000_650_000
NAME = "tiny"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _cache(home: Path) -> Path:
    library = home / "cache" / "simulator" / "torch-1" / f"{NAME}.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    return library


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "reason"),
    [
        (0, 0, 0o755, None),
        (0, 0, 0o775, None),  # an image that is made for any user of the group 0
        (0, 0, 0o777, "every user may write"),
        (0, OTHER, 0o775, f"every user of the group {OTHER} may write"),
        (0, OTHER, 0o755, None),
        (OTHER, 0, 0o755, f"belongs to the user {OTHER}, not to the user root"),
        (65534, 65534, 0o700, "belongs to the user nobody"),
    ],
)
def test_what_others_may_write_is_not_trusted(
    tmp_path: Path, part: int, owner: int, group: int, mode: int, reason: str | None
) -> None:
    library = _cache(tmp_path)
    changed = [library, *library.parents][part]
    os.chown(changed, owner, group)
    changed.chmod(mode)
    found = why_untrusted(library)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found
        assert str(changed) in found


def test_a_folder_as_tmp_is_trusted_and_a_file_in_it_by_its_owner(tmp_path: Path) -> None:
    library = _cache(tmp_path)
    (tmp_path / "cache").chmod(0o1777)
    assert why_untrusted(library) is None
    os.chown(library.parent.parent, OTHER, OTHER)
    assert "belongs to the user 12345" in str(why_untrusted(library))
    library.parent.parent.chmod(0o1777)
    assert "belongs to the user 12345" in str(why_untrusted(library))


def test_links_are_followed_to_what_is_loaded(tmp_path: Path) -> None:
    library = _cache(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(library.parent.parent)
    assert why_untrusted(link / "torch-1" / library.name) is None
    os.chown(library, OTHER, OTHER)
    assert str(library) in str(why_untrusted(link / "torch-1" / library.name))


@pytest.mark.slow_but("1000650000-1000650000-1000650000-448-True")
@pytest.mark.parametrize(
    ("uid", "gid", "owner", "mode", "is_trusted"),
    [
        (RANDOM, 0, 0, 0o775, True),  # OpenShift, with what root has compiled in the image
        (RANDOM, 0, RANDOM, 0o775, True),
        (RANDOM, 0, RANDOM - 1, 0o775, False),
        (RANDOM, RANDOM, 0, 0o755, True),
        (RANDOM, RANDOM, RANDOM, 0o700, True),
        (RANDOM, RANDOM, RANDOM, 0o702, False),
    ],
)
def test_any_user_of_the_group_root_loads_what_root_compiled(
    reachable: Path, uid: int, gid: int, owner: int, mode: int, is_trusted: bool
) -> None:
    library = _cache(reachable)
    for each in (library, *list(library.parents)[:3]):
        os.chown(each, owner, gid)
        each.chmod(mode)
    call_forked(_check_as, reachable, library, uid, gid, is_trusted, timeout=240)


def _check_as(home: Path, library: Path, uid: int, gid: int, is_trusted: bool) -> None:
    _become(uid, gid)
    assert (why_untrusted(library) is None) == is_trusted, why_untrusted(library)


BINDINGS = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&definition); }
"""


def test_the_device_of_another_user_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one compiled into a folder of his; what is made under any umask is loaded."""
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        pytest.skip("Install Python's headers.")
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "bindings.cpp").write_text(BINDINGS)
    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path / "cache"))
    umask = os.umask(0)
    try:
        assert build.load(sources, NAME).__name__ == NAME
    finally:
        os.umask(umask)
    library = build.find_built(sources, NAME)
    assert library is not None
    for changed in (library, library.parent.parent):
        os.chown(changed, OTHER, OTHER)
        with pytest.raises(SimulatorError, match=rf"{NAME}\.so is not loaded.*belongs to.*12345"):
            build.load(sources, NAME)
        os.chown(changed, 0, 0)
    library.unlink()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(SimulatorError, match=r"every user may write to .*cache .*chmod go-w"):
        build.load(sources, NAME)
    assert not library.exists()


def test_an_operation_of_deepspeeds_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    library = _cache(tmp_path)
    error = deepspeed_build.OpBuildError
    assert deepspeed_build.trusted(library, error, "X") == library.resolve()
    os.chown(library, OTHER, OTHER)
    with pytest.raises(error, match="is not loaded, since another user may"):
        deepspeed_build.trusted(library, error, "X")
