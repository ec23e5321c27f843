"""Manifests of any JSON: the error is ours, and the newest valid checkpoint is found."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.checkpoint import sealed_zip
from lightning_gaudi.checkpoint.candidates import candidates
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.manifest import FOLDER_MANIFEST, FileEntry, Manifest, decode, encode
from lightning_gaudi.checkpoint.verify import check_folder

_DIGEST = "0" * 64


def _encoded(text: bytes) -> bytes:
    digest = hashlib.sha256(text).hexdigest().encode()
    return b" ".join((b"lightning_gaudi", digest, text, b"lightning_gaudi"))


def _values(**changes: Any) -> Any:
    files = {"a.pt": {"num_bytes": 3, "sha256": _DIGEST, "chunk_bytes": 2**18}}
    return json.loads(encode(Manifest({})).split(b" ", 2)[2][: -len(b" lightning_gaudi")]) | {
        "files": files,
        **changes,
    }


_ODD: list[Any] = [None, True, -1, 1.5, "x", [], {}, [[1]], {"a": {}}, 10**30, -(10**30)]
_ENTRY = {"num_bytes": 3, "sha256": _DIGEST, "chunk_bytes": 2**18}

TEXTS = [
    b"",
    b"{",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 10_000,
    b'{"files": {}, "began": Infinity}',
    b'{"files": {}, "began": 1e999}',
    b'{"files": {}, "began": NaN}',
    b"\xff\xfe",
    b"null",
    *(json.dumps(each).encode() for each in _ODD),
    *(
        json.dumps(_values(files={"a.pt": {**_ENTRY, name: each}})).encode()
        for name in ("num_bytes", "sha256", "chunk_bytes")
        for each in [*_ODD, 1]
        if not (name == "num_bytes" and each == 1)
    ),
    json.dumps(_values(files={"a.pt": {**_ENTRY, "other": 1}})).encode(),
    *(json.dumps(_values(files=each)).encode() for each in _ODD if each != {}),
]
WRONG = {
    "epoch": [True, 1.5, "x", [], {}, 10**30],
    "global_step": [True, 1.5, "x", [], {}, 10**30],
    "resumes": [None, 0, 1, "x", []],
    "num_ranks": [None, True, 0, -1, 1.5, "x", 10**30],
    "versions": [None, [], "x", {"a": 1}, {"a": None}],
    "run": [None, 1, [], {}, "x" * 10**5],
    "began": [None, True, "x", [], -1, -0.5, 10**30],
    "saved": [None, True, "x", [], -1, -0.5, 10**30],
}


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_a_manifest_of_other_json_is_damaged(number: int, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        decode(_encoded(TEXTS[number]), tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_kind_is_named(name: str, tmp_path: Path) -> None:
    assert decode(_encoded(json.dumps(_values()).encode()), tmp_path) is not None
    for value in WRONG[name]:
        with pytest.raises(DamagedCheckpointError, match=f"its '{name}' is missing or of another"):
            decode(_encoded(json.dumps(_values(**{name: value})).encode()), tmp_path)


def _save(path: Path, **changes: Any) -> None:
    """A file with a manifest of our own."""
    HPUCheckpointIO().save_checkpoint({"loops": {}, "weight": torch.ones(3)}, path)
    content = path.read_bytes()
    at = content.rindex(b"PK\x05\x06") + 22
    manifest = sealed_zip.inspect(path).manifest
    assert manifest is not None
    values = json.loads(encode(manifest).split(b" ", 2)[2][: -len(b" lightning_gaudi")])
    comment = _encoded(json.dumps(values | changes).encode())
    head = bytearray(content[: at - 2])
    head[50:58] = b"Z" * 8
    path.write_bytes(bytes(head) + len(comment).to_bytes(2, "little") + comment)


@pytest.mark.parametrize(
    "changes",
    [
        {"began": float("inf")},
        {"began": -1},
        {"began": {}},
        {"files": {}},
        {"files": {"a": _ENTRY}},
        {"files": {"": {**_ENTRY, "num_bytes": 10**15}}},
        {"global_step": [10**9]},
        {"resumes": "yes"},
    ],
)
def test_the_newest_valid_checkpoint_is_found_beside_a_forged_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    _save(tmp_path / "step=2.ckpt")
    _save(tmp_path / "forged.ckpt", **changes)
    damaged: list[str] = []
    assert [each.path.name for each in candidates([tmp_path], damaged)] == ["step=2.ckpt"]
    assert len(damaged) == 1
    assert "forged.ckpt" in damaged[0]


def test_one_that_comes_from_the_future_is_not_the_newest(tmp_path: Path) -> None:
    _save(tmp_path / "step=2.ckpt", began=time.time())
    _save(tmp_path / "future.ckpt", began=time.time() + 10**9)
    found = [each.path.name for each in candidates([tmp_path])]
    assert found == ["step=2.ckpt", "future.ckpt"]


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "a/../../secret", "x" * 5000, "a\0"]
)
def test_a_folder_s_manifest_names_files_of_the_folder_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"abc")
    folder = tmp_path / "x.ckpt"
    folder.mkdir()
    manifest = Manifest({name: FileEntry(3, _DIGEST, 2**18)})
    (folder / FOLDER_MANIFEST).write_bytes(encode(manifest))
    digest = hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
    with pytest.raises(DamagedCheckpointError, match="names a file that is not its own") as error:
        check_folder(folder)
    assert digest[:8] not in str(error.value)


def test_a_folder_s_manifest_is_no_link_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"secret")
    folder = tmp_path / "x.ckpt"
    folder.mkdir()
    (folder / "meta.pt").touch()
    (folder / FOLDER_MANIFEST).symlink_to(tmp_path / "other")
    with pytest.raises(DamagedCheckpointError, match="is not a file within"):
        check_folder(folder)


def test_text_of_a_manifest_moves_no_cursor(tmp_path: Path) -> None:
    folder = tmp_path / "x.ckpt"
    folder.mkdir()
    name = "a\x1b[2Jb\nThe checkpoint is verified"
    (folder / FOLDER_MANIFEST).write_bytes(encode(Manifest({name: FileEntry(3, _DIGEST, 2**18)})))
    with pytest.raises(DamagedCheckpointError) as error:
        check_folder(folder)
    assert str(error.value).isprintable()
