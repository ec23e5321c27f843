"""What a fit has saved is found again, and nothing that another run has saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi.strategies.jobs import FOLDER, JobRecord, TakenOverError
from tests.helpers.objects import address


def _record(folder: Path, job: str = "torchrun-a", fit: str = "0") -> JobRecord:
    return JobRecord(folder, job, "agent", ("train.py", "Model", fit))


def _save(record: JobRecord, path: Path, *, is_written: bool = True) -> None:
    record.is_about_to_save(str(path))
    path.with_name("temporary").write_text("ours")
    path.with_name("temporary").replace(path)
    record.has_saved(str(path), is_written=is_written)


def _read(folder: Path, **settings: str) -> list[Path]:
    record = _record(folder, **settings)
    assert record.read() == "agent"
    return record.saved()


def test_nothing_is_written_before_something_is_saved(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.begin(None)
    assert not (tmp_path / FOLDER).exists()
    assert _record(tmp_path).read() is None


def test_what_was_saved_is_found_the_newest_last(tmp_path: Path) -> None:
    record, paths = _record(tmp_path), [tmp_path / name for name in ("a", "last", "b")]
    record.begin("X")
    for path in (*paths, paths[1]):
        _save(record, path)
    assert _read(tmp_path) == [paths[0], paths[2], paths[1]]


def test_what_has_been_removed_is_forgotten(tmp_path: Path) -> None:
    record, paths = _record(tmp_path), [tmp_path / str(number) for number in range(20)]
    for path in paths:
        _save(record, path)
        path.unlink()
    assert _read(tmp_path) == []
    assert record.path.stat().st_size < 500


def test_what_another_run_has_left_counts_only_when_this_one_has_replaced_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "last.ckpt"
    path.write_text("another run's")
    record = _record(tmp_path)
    record.is_about_to_save(str(path))
    assert _read(tmp_path) == []
    _save(record, path, is_written=False)
    assert _read(tmp_path) == [path]


def test_a_folder_that_another_run_has_left_counts_when_it_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.mkdir()
    record = _record(tmp_path)
    record.is_about_to_save(str(path))
    assert _read(tmp_path) == []
    record.has_saved(str(path), is_written=True)
    assert _read(tmp_path) == [path]


def test_a_save_that_was_cut_off_leaves_the_newest_as_it_was(tmp_path: Path) -> None:
    record, last, step = _record(tmp_path), tmp_path / "last", tmp_path / "step"
    _save(record, last)
    _save(record, step)
    record.is_about_to_save(str(last))
    record.is_about_to_save(str(tmp_path / "next"))
    assert _read(tmp_path) == [last, step]


def test_each_job_and_each_fit_has_its_own(tmp_path: Path) -> None:
    for number, settings in enumerate(({}, {"job": "slurm/17"}, {"fit": "1"})):
        _save(_record(tmp_path, **settings), tmp_path / str(number))
    assert _read(tmp_path, job="slurm/17") == [tmp_path / "1"]
    assert _read(tmp_path, fit="1") == [tmp_path / "2"]
    assert len(list((tmp_path / FOLDER).iterdir())) == 3


def test_a_new_job_of_the_same_name_begins_with_nothing(tmp_path: Path) -> None:
    _save(_record(tmp_path), tmp_path / "old")
    record = _record(tmp_path)
    record.read()
    record.begin(None)
    assert record.saved() == []
    assert _record(tmp_path).read() is None


def test_what_a_thread_still_writes_is_not_forgotten(tmp_path: Path) -> None:
    record, paths = _record(tmp_path), [tmp_path / str(number) for number in range(3)]
    for path in paths:  # the one before comes to the disk after the next one has been noted
        record.is_about_to_save(str(path))
        if path != paths[0]:
            paths[paths.index(path) - 1].write_text("written")
        record.has_saved(str(path), is_written=False)
    assert _read(tmp_path) == paths[:2]
    paths[2].write_text("written")
    assert _read(tmp_path) == paths


@pytest.mark.parametrize("place", ["disk", "store"])
def test_the_earlier_of_two_starts_ends_once_the_later_has_saved(
    place: str, tmp_path: Path
) -> None:
    root = str(tmp_path) if place == "disk" else address(tmp_path)
    first, second = (JobRecord(root, "job-1", "", ("train.py", "Model", "0")) for _ in range(2))
    first.check_own()
    _save(first, tmp_path / "a")
    second.read()
    for record in (first, second, first):  # the later one has saved nothing yet
        record.check_own()
    _save(second, tmp_path / "b")
    with pytest.raises(TakenOverError, match=r"The job 'job-1' was started again .* process \d+"):
        first.check_own()
    second.check_own()
    third = JobRecord(root, "job-1", "", ("train.py", "Model", "0"))
    third.read()
    third.check_own()


def test_commands_by_which_a_job_has_saved_before(tmp_path: Path) -> None:
    _save(_record(tmp_path), tmp_path / "a")
    JobRecord(tmp_path, "torchrun-b", "", ("other.py", "Model", "0")).end()
    later = JobRecord(tmp_path, "torchrun-a", "", ("train.py", "--lr", "Model", "0"))
    assert later.commands_before() == [["train.py"]]
    second = JobRecord(tmp_path, "torchrun-a", "", ("train.py", "--lr", "Model", "1"))
    assert second.commands_before() == []
    (tmp_path / FOLDER / "torchrun-a-x.json").write_text('{"fit": ["a", 1, 2]}')
    assert later.commands_before() == [["train.py"]]
