"""`lightning-gaudi copy`: all of a recipe or nothing, and nothing of the user's is overwritten."""

from __future__ import annotations

import errno
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_gaudi.tools.command_line import catalog, main
from tests.helpers.process import run

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/__main__.py"))


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_copy_is_the_recipe_and_what_it_shares(home: Path) -> None:
    assert main(["copy", "mrpc"]) == 0
    names = {path.name for path in (home / "recipes").iterdir()}
    assert names == {"__init__.py", "common", "mrpc"}
    for name in ("common", "mrpc"):
        assert _files(home / "recipes" / name) == _files(RECIPES / name)
    assert [path.name for path in home.iterdir()] == ["recipes"]


def test_the_copy_runs_by_its_name(home: Path) -> None:
    main(["copy", "mrpc", "new/folder"])
    folder = home / "new" / "folder"
    env = {"PYTHONPATH": str(RECIPES.parent)}
    shown = run([sys.executable, "-m", "recipes.mrpc", "--help"], cwd=folder, env=env).stdout
    assert str(folder / "recipes" / "mrpc" / "README.md") in shown


def test_what_is_installed_read_only_can_be_changed_in_the_copy(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RECIPES, home / "installed" / "recipes")
    for path in (home / "installed").rglob("*"):
        path.chmod(path.stat().st_mode & 0o555)
    monkeypatch.setattr(catalog, "find_root", lambda: home / "installed")
    main(["copy", "mrpc"])
    assert {path.stat().st_mode & 0o200 for path in (home / "recipes").rglob("*")} == {0o200}


def test_another_recipe_goes_beside_the_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        assert main(["copy", name]) == 0
    assert _files(home / "recipes") == _files(RECIPES)
    assert "left as it is" not in capsys.readouterr().out


def test_a_recipe_that_is_there_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["copy", "mrpc"])
    mine = home / "recipes" / "mrpc" / "module.py"
    mine.write_text("mine")
    before = _files(home)
    assert main(["copy", "mrpc"]) == 2
    error = capsys.readouterr().err
    assert "recipes/mrpc is there already, and nothing was copied. Name another folder" in error
    assert _files(home) == before


def test_what_is_changed_stays_and_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["copy", "mrpc"])
    folder = home / "recipes"
    (folder / "common" / "cli.py").write_text("mine")
    (folder / "common" / "hub.py").unlink()
    (folder / "common" / "more.py").write_text("mine")
    (folder / "__init__.py").write_text("mine")
    before = _files(folder)
    assert main(["copy", "t5_summarization"]) == 0
    out = capsys.readouterr().out
    assert "recipes/common was there and is left as it is" in out
    assert "differs in cli.py, hub.py." in out
    assert before.items() <= _files(folder).items()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("file", "file is a file. Name a folder to copy to."),
        ("file/below", "Nothing was copied to file/below: Not a directory."),
        ("/proc/nowhere", "Nothing was copied to /proc/nowhere: No such file or directory."),
    ],
)
def test_a_folder_that_cannot_be_written_is_a_line(
    home: Path, folder: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "file").touch()
    assert main(["copy", "mrpc", folder]) == 2
    assert capsys.readouterr().err == f"lightning-gaudi: {message}\n"
    assert [path.name for path in home.iterdir()] == ["file"]


def _failing(function: Callable[..., object], error: BaseException, after: int) -> object:
    calls = iter(range(after + 1))

    def fails(*arguments: object) -> object:
        if next(calls) == after:
            raise error
        return function(*arguments)

    return fails


@pytest.mark.parametrize("is_there", [False, True], ids=["empty", "beside"])
@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.ENOSPC, "No space left on device"), 2), (KeyboardInterrupt(), 130)],
    ids=["full", "ctrl-c"],
)
@pytest.mark.parametrize("place", ["copyfile", "rename"])
def test_nothing_is_left_of_a_copy_that_ends_midway(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: BaseException,
    status: int,
    is_there: bool,
) -> None:
    target = home / "new"
    if is_there:  # __init__.py and the recipe are renamed one by one
        main(["copy", "mrpc", str(target)])
        (target / "recipes" / "__init__.py").unlink()
    before = _files(home)
    if place == "rename":
        monkeypatch.setattr(Path, "rename", _failing(Path.rename, error, after=is_there))
    else:
        monkeypatch.setattr(shutil, "copyfile", _failing(shutil.copyfile, error, after=3))
    assert main(["copy", "bert_pretraining", str(target)]) == status
    assert _files(home) == before
    assert target.exists() == is_there


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_the_documentation_name_files_of_the_copy(home: Path, name: str) -> None:
    main(["copy", name])
    folder = home / "recipes" / name
    files = [path for path in folder.rglob("*.yaml") if path.name != catalog.REGISTRY]
    texts = [path.read_text() for path in [folder / "README.md", *files]]
    commands = " ".join(texts)
    named = set(re.findall(r"(?<![\w/])recipes/[\w/]+\.\w+", commands))
    assert {str(path.relative_to(home)) for path in files} <= named
    assert [each for each in named if not (home / each).exists()] == []
    modules = {module.replace(".", "/") for module in re.findall(r"-m (recipes[\w.]+)", commands)}
    assert {f"recipes/{name}"} <= modules
    for module in modules:
        assert (home / module / "__main__.py").exists() or (home / f"{module}.py").exists()
    # These need a checkout.
    assert not re.findall(r"^\s*(?:make|scripts/|benchmarks/)", commands, re.MULTILINE)
