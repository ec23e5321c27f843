"""Whole files say what they are, and what differs from it is found."""

from __future__ import annotations

import os
import random
import zipfile
from dataclasses import asdict
from pathlib import Path

import fsspec
import pytest
import torch

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi._core.progress import begin_session, continue_run
from lightning_gaudi.checkpoint import checksum, sealed_zip
from lightning_gaudi.checkpoint.checksum import Checksum, ReadingChecksum, checksum_of
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.files import open_mapped
from lightning_gaudi.checkpoint.manifest import CHUNK_BYTES, FileEntry, decode, describe, encode

STATE = {
    "state_dict": {"weight": torch.arange(3000.0), "bias": torch.ones(3)},
    "optimizer_states": [],
    "loops": {},
    "epoch": 2,
    "global_step": 7,
    "pytorch-lightning_version": "2.6.6",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.ckpt"
    HPUCheckpointIO().save_checkpoint(STATE, path)
    return path


def _flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_file_tells_what_it_is(path: Path) -> None:
    found = sealed_zip.inspect(path).manifest
    assert found is not None
    assert (found.epoch, found.global_step, found.num_ranks, found.resumes) == (2, 7, 1, True)
    assert found.versions.keys() == {"lightning_gaudi", "torch", "lightning"}
    assert found.files[""].num_bytes < path.stat().st_size


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_and_zip_tools_read_it(path: Path, mmap: bool) -> None:
    loaded = torch.load(path, mmap=mmap, weights_only=True)
    assert torch.equal(loaded["state_dict"]["weight"], STATE["state_dict"]["weight"])  # type: ignore[index]
    assert zipfile.ZipFile(path).testzip() is None


def test_session_orders_checkpoints_before_the_step() -> None:
    begin_session()
    first = describe({"global_step": 10})
    begin_session()
    assert first.age < describe({"global_step": 3}).age < describe({"global_step": 4}).age


def test_run_goes_on_with_its_name() -> None:
    begin_session()
    run, began = describe({}).run, describe({}).began
    continue_run("earlier")
    assert run != "earlier"
    assert (describe({}).run, describe({}).began) == ("earlier", began)


def test_weights_alone_do_not_resume() -> None:
    weights = {key: STATE[key] for key in ("state_dict", "pytorch-lightning_version")}
    assert not describe(weights).resumes
    assert describe({"model": {}}).resumes


def test_any_flipped_bit_is_found(path: Path) -> None:
    """In the headers, the pickle, tensors, the directory, the end record and the manifest."""
    whole, rng = path.read_bytes(), random.Random(0)
    found = sealed_zip.inspect(path).manifest
    assert found is not None
    end = found.files[""].num_bytes
    positions = [0, 46, 50, 57, 60, 100, end - 20, end - 1, end, end + 1, end + 3, len(whole) - 1]
    positions += [rng.randrange(len(whole)) for _ in range(200)]
    for position in positions:
        path.write_bytes(whole)
        _flip(path, position, rng.randrange(8))
        for load in (HPUCheckpointIO().load_checkpoint, _mapped):
            with pytest.raises(DamagedCheckpointError, match=r"x\.ckpt is (damaged|cut short)"):
                load(path)


def _mapped(path: Path) -> None:
    open_mapped(path, weights_only=True)


def test_flip_is_named_with_both_checksums(path: Path) -> None:
    _flip(path, 5000)
    expected = r"x\.ckpt is damaged: its [\d,]+ bytes have the SHA-256 \w{16}, expected \w{16}\."
    with pytest.raises(DamagedCheckpointError, match=expected):
        HPUCheckpointIO().load_checkpoint(path)
    HPUCheckpointIO(verify=False).load_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_cut_is_named_with_both_lengths(path: Path, share: float) -> None:
    size = path.stat().st_size
    os.truncate(path, int(size * share))
    expected = rf"{int(size * share):,} bytes of {size:,}" if share else "it has 0 bytes"
    for load in (HPUCheckpointIO().load_checkpoint, _mapped):
        with pytest.raises(DamagedCheckpointError, match=rf"x\.ckpt is cut short .*{expected}"):
            load(path)


def test_file_of_another_program_loads_and_its_cut_is_named(tmp_path: Path) -> None:
    for name, is_zip in (("zip", True), ("pickle", False)):
        path = tmp_path / name
        torch.save(STATE, path, _use_new_zipfile_serialization=is_zip)
        assert HPUCheckpointIO().load_checkpoint(path)["epoch"] == 2
        if is_zip:
            os.truncate(path, 5000)
            with pytest.raises(DamagedCheckpointError, match=r"zip is cut short .* 5,000 bytes"):
                HPUCheckpointIO().load_checkpoint(path)


def test_address_is_read_once_and_compared() -> None:
    HPUCheckpointIO().save_checkpoint(STATE, "memory://folder/x.ckpt")
    assert HPUCheckpointIO().load_checkpoint("memory://folder/x.ckpt")["epoch"] == 2
    system = fsspec.filesystem("memory")
    data = bytearray(system.cat("/folder/x.ckpt"))
    data[5000] ^= 1
    system.pipe("/folder/x.ckpt", bytes(data))
    with pytest.raises(DamagedCheckpointError, match=r"x\.ckpt is damaged"):
        HPUCheckpointIO().load_checkpoint("memory://folder/x.ckpt")


def test_checksum_is_the_same_in_pieces_and_in_threads(tmp_path: Path) -> None:
    data, path, rng = random.Random(1).randbytes(1000), tmp_path / "x", random.Random(2)
    path.write_bytes(data)
    for num_bytes in (0, 1, 63, 64, 65, 128, 1000):
        found, position = Checksum(chunk_bytes=64), 0
        while position < num_bytes:
            step = min(rng.randrange(1, 200), num_bytes - position)
            found.update(data[position : position + step])
            position += step
        assert found.entry().num_bytes == num_bytes
        assert found.entry() == checksum_of(path, FileEntry(num_bytes, "", 64))


def test_checksum_is_the_same_whatever_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "_SHARED_BYTES", 100)
    data, path, rng = random.Random(1).randbytes(1000), tmp_path / "x", random.Random(2)
    path.write_bytes(data)
    for num_bytes in (0, 1, 63, 64, 65, 128, 950, 1000):
        expected = checksum_of(path, FileEntry(num_bytes, "", 64))
        for _ in range(20):
            with ReadingChecksum(path, expected) as file:
                for _ in range(rng.randrange(8)):
                    start, length = rng.randrange(1100), rng.randrange(1100)
                    part = bytearray(length)
                    assert file.seek(start) == start
                    num_read = file.readinto(part)
                    assert part[:num_read] == data[start : start + length]
                    assert file.tell() == start + num_read
                assert file.entry() == expected
    with ReadingChecksum(
        path, FileEntry(1000, "", 64), lambda part: part.__setitem__(0, 7)
    ) as file:
        part = bytearray(1000)
        assert file.readinto(part) == len(data)
        assert part == data
        path.write_bytes(b"\7" + data[1:])
        assert file.entry() == checksum_of(path, FileEntry(1000, "", 64))
    expected = checksum_of(path, FileEntry(1000, "", 64))
    with ReadingChecksum(path, expected) as file:
        assert file.readinto(part) == 1000
        path.write_bytes(data)  # other bytes in the first chunk, which are read as well
        file.seek(0)
        assert file.readinto(part) == 1000
        assert file.entry() != expected
        assert expected != checksum_of(path, expected)


def test_what_was_used_is_what_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives other bytes the second time does not get the first ones by."""
    path = tmp_path / "x.ckpt"
    weight = torch.arange(2.0**20)
    HPUCheckpointIO().save_checkpoint({"weight": weight}, path)
    assert torch.equal(HPUCheckpointIO().load_checkpoint(path)["weight"], weight)
    whole, read = path.read_bytes(), os.preadv
    seen: set[int] = set()

    def flips_once(descriptor: int, buffers: list[memoryview], position: int) -> int:
        num_bytes = read(descriptor, buffers, position)
        if position <= 2_000_000 < position + num_bytes and position not in seen:
            seen.add(position)
            buffers[0][2_000_000 - position] ^= 1
        return num_bytes

    monkeypatch.setattr(checksum.os, "preadv", flips_once)
    with pytest.raises(
        DamagedCheckpointError, match=r"x\.ckpt is damaged: its .* have the SHA-256"
    ):
        HPUCheckpointIO().load_checkpoint(path)
    assert len(seen) == 1
    assert path.read_bytes() == whole


def test_manifest_without_a_size_of_chunks_is_compared(path: Path) -> None:
    """As they were before they told it."""
    found = sealed_zip.inspect(path)
    assert found.entry is not None
    old = asdict(found.entry)
    assert old.pop("chunk_bytes") == CHUNK_BYTES
    assert FileEntry(**old).chunk_bytes == 4 * 2**20


def test_manifest_that_was_changed_is_found(tmp_path: Path) -> None:
    text = encode(describe({"epoch": 1}))
    found = decode(text, tmp_path)
    assert found is not None
    assert found.epoch == 1
    assert decode(b"somebody else's", tmp_path) is None
    for position in range(len(text)):
        changed = bytearray(text)
        changed[position] ^= 1
        with pytest.raises(DamagedCheckpointError, match="its manifest has the checksum"):
            decode(bytes(changed), tmp_path)
