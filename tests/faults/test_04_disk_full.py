"""What has no room is said before it is written, with what it needs; the old one stays."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import saving
from tests.faults.saving import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 10 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs takes root")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_disk_is_full(
    disk: Path, measured: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save, load = KINDS[kind]
    save(disk / "step=1.ckpt", 1)
    monkeypatch.setattr(saving, "NUM_FLOATS", 2 * saving.NUM_FLOATS)
    before = sorted(disk.rglob("*"))
    for name in ("step=1.ckpt", "step=2.ckpt"):
        with pytest.raises(OSError, match=rf"Could not save .*{name}: No space left") as raised:
            save(disk / name, 2)
        message = str(raised.value)
        found = re.search(r"It needs ([\d.]+) MiB, and ([\d.]+) MiB are free there\.", message)
        assert found is not None, message
        assert float(found[1]) > float(found[2])
        assert 8 <= float(found[1]) < 8.5
        assert "\n" not in message
        assert ("was there before is intact" in message) == (name == "step=1.ckpt")
        assert sorted(disk.rglob("*")) == before
    assert load(disk / "step=1.ckpt") == 1
    measured(f"{kind}: needs {found[1]} MiB, {found[2]} are free; the old one loads")
