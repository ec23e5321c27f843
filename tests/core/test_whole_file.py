"""A file takes its place whole, or what was there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi._core.whole_file import put_whole


def _write_half(target: Path) -> None:
    with put_whole(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_file_is_whole_or_as_before(tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    target.symlink_to(elsewhere)
    with put_whole(target) as file:
        file.write(b"new")
        assert target.read_text() == "kept"
    assert target.read_text() == "new"
    assert elsewhere.read_text() == "kept"
    with pytest.raises(KeyboardInterrupt):
        _write_half(target)
    assert target.read_text() == "new"
    assert {each.name for each in tmp_path.iterdir()} == {"target", "elsewhere"}
