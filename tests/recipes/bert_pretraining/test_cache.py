import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from recipes.bert_pretraining import cache
from recipes.bert_pretraining.cache import cached_folder


class Maker:
    """Writes a file and counts how often."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, folder: Path) -> None:
        self.num_calls += 1
        (folder / "data").write_text("content")


@pytest.fixture
def make() -> Maker:
    return Maker()


def test_a_folder_is_made_once(tmp_path, make):
    folders = {cached_folder(tmp_path, "text", {"size": 1}, make) for _ in range(3)}
    (folder,) = folders
    assert make.num_calls == 1
    assert (folder / "data").read_text() == "content"
    assert folder.name.startswith("text-")


def test_another_key_is_another_folder(tmp_path, make):
    keys = [{"size": 1}, {"size": 2}, {"size": "1"}, {"size": None}]
    assert len({cached_folder(tmp_path, "text", key, make) for key in keys}) == 4


def test_a_name_becomes_one_of_a_file(tmp_path, make):
    assert cached_folder(tmp_path, "../wiki/en.v2", 0, make).parent == tmp_path


@pytest.mark.parametrize("damage", ["missing", "shorter", "list", "cut off list"])
def test_an_incomplete_folder_is_made_again(tmp_path, make, damage):
    folder = cached_folder(tmp_path, "text", 0, make)
    if damage == "missing":
        (folder / "data").unlink()
    elif damage == "shorter":
        (folder / "data").write_text("con")
    elif damage == "list":
        (folder / cache._LIST).unlink()
    else:
        (folder / cache._LIST).write_text('{"sizes": {')
    assert cached_folder(tmp_path, "text", 0, make) == folder
    assert make.num_calls == 2
    assert (folder / "data").read_text() == "content"


def test_what_fails_leaves_nothing_behind_and_is_tried_again(tmp_path, make):
    def fail(folder: Path) -> None:
        make(folder)
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        cached_folder(tmp_path, "text", 0, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert (cached_folder(tmp_path, "text", 0, make) / "data").exists()


def _die(root: str) -> None:
    def make(folder: Path) -> None:
        (folder / "data").write_text("cont")
        os._exit(1)

    cached_folder(Path(root), "text", 0, make)


def test_what_a_killed_process_left_is_removed(tmp_path, make):
    process = multiprocessing.get_context("fork").Process(target=_die, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    folder = cached_folder(tmp_path, "text", 0, make)
    assert (folder / "data").read_text() == "content"
    assert not list(tmp_path.glob("*.tmp"))


def test_a_full_disk_is_said_with_the_folder(tmp_path, make):
    def fill(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device.*data\.cache_dir") as error_info:
        cached_folder(tmp_path / "cache", "text", 0, fill)
    assert str(tmp_path / "cache") in str(error_info.value)
    assert error_info.value.errno == errno.ENOSPC
    assert cached_folder(tmp_path / "cache", "text", 0, make)


def test_a_cache_that_cannot_be_made_is_said_with_the_folder(tmp_path, make):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be kept in .*file/cache: .*data\.cache_dir"):
        cached_folder(tmp_path / "file" / "cache", "text", 0, make)


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_cache(tmp_path):
    with pytest.raises(FileNotFoundError, match="no/such/corpus"):
        cached_folder(tmp_path, "text", 0, lambda folder: Path("/no/such/corpus").read_text())


def _slow(root: str) -> None:
    def make(folder: Path) -> None:
        with (Path(root) / "calls").open("a") as file:
            file.write("x")
        time.sleep(0.5)
        (folder / "data").write_text("content")

    folder = cached_folder(Path(root) / "cache", "text", 0, make)
    assert (folder / "data").read_text() == "content"


def test_of_eight_processes_one_makes_it_and_the_others_wait(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_slow, args=(str(tmp_path),)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert (tmp_path / "calls").read_text() == "x"


def test_another_machine_that_was_first_is_accepted(tmp_path, make, monkeypatch):
    """Where a network file system locks within a machine only."""

    def make_late(folder: Path) -> None:
        lock = next(tmp_path.glob("*.lock"))
        lock.unlink()  # so that the lock does not reach the other one
        monkeypatch.setattr("socket.gethostname", lambda: "other")
        other = Maker()
        cached_folder(tmp_path, "text", 0, other)
        assert other.num_calls == 1
        make(folder)

    assert (cached_folder(tmp_path, "text", 0, make_late) / "data").read_text() == "content"


def test_what_nobody_used_for_long_is_removed_when_another_is_made(tmp_path, make):
    old, used = (cached_folder(tmp_path, "text", key, make) for key in (0, 1))
    long_ago = time.time() - (cache._DAYS_UNUSED + 1) * 24 * 3600
    for folder in (old, used):
        os.utime(folder / cache._LIST, (long_ago, long_ago))
    cached_folder(tmp_path, "text", 1, make)  # which uses it
    cached_folder(tmp_path, "text", 2, make)
    assert not old.exists()
    assert used.exists()
