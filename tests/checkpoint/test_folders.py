from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi.checkpoint import folders
from lightning_gaudi.checkpoint.folders import prepare, put_in_place, recover, temporary_for


def _folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "part").write_text(content)
    return path


def _file(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def _read(path: Path) -> str:
    return (path / "part").read_text() if path.is_dir() else path.read_text()


@pytest.fixture(params=["exchanged", "in two steps"], name="way")
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in two steps":  # as on a file system without an exchange
        monkeypatch.setattr(folders, "_exchange", lambda first, second: False)


@pytest.mark.parametrize("before", [None, _file, _folder])
@pytest.mark.parametrize("after", [_file, _folder])
@pytest.mark.usefixtures("way")
def test_new_one_takes_the_place_of_any_other(
    tmp_path: Path, before: object, after: object
) -> None:
    target = tmp_path / "x"
    if callable(before):
        before(target, "old")
    assert callable(after)
    put_in_place(after(tmp_path / "new", "new"), target)
    assert _read(target) == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_place_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done after the exchange, all of the new one is there."""
    target, seen = _folder(tmp_path / "x", "old"), []
    monkeypatch.setattr(folders, "_replace_in_two_steps", lambda *_: pytest.fail("not exchanged"))
    monkeypatch.setattr(folders, "remove", lambda path: seen.append((_read(target), _read(path))))
    put_in_place(_folder(tmp_path / "new", "new"), target)
    assert seen == [("new", "old")]


def test_old_one_comes_back_if_the_second_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, temporary = _folder(tmp_path / "x", "old"), _folder(tmp_path / "new", "new")
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_exchange", lambda first, second: False)
        replace = Path.replace

        def failing(path: Path, to: Path) -> Path:
            if path == temporary and not to.exists():
                raise OSError("no")
            return replace(path, to)

        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="no"):
            put_in_place(temporary, target)
    assert _read(target) == "old"


def test_recover_puts_back_what_was_set_aside(tmp_path: Path) -> None:
    target = tmp_path / "x"
    aside = temporary_for(target).with_suffix(".old")
    _folder(aside, "old")
    recover(target)
    assert _read(target) == "old"
    _folder(aside, "older")
    recover(target)
    assert _read(target) == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_next_save_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "none" / "x"
    (prepare(target) / "half").write_text("half")
    temporary = prepare(target)
    assert not list(temporary.iterdir())
    assert "x" not in temporary.stem.removeprefix(".saving")
    assert not target.exists()
