"""Small files that claim to be large."""

from __future__ import annotations

import collections
import fractions
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from lightning_gaudi.checkpoint import restricted
from lightning_gaudi.checkpoint.errors import RefusedError, UntrustedCheckpointError
from lightning_gaudi.checkpoint.manifest import DamagedCheckpointError
from lightning_gaudi.checkpoint.unpickler import Unpickler
from tests.helpers.malicious import FORMS


class Reduced:
    """Is pickled as a call."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


def _doubled(kind: Callable[[Any], Any], times: int = 60) -> Any:
    value = kind((1,))
    for _ in range(times):
        value = kind((value, value))
    return value


def _nested(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


BILLION = range(10**9)

VALUES: dict[str, Callable[[], Any]] = {
    "list of a range": lambda: Reduced(list, (BILLION,)),
    "tuple of a range": lambda: Reduced(tuple, (BILLION,)),
    "set of a range": lambda: Reduced(set, (BILLION,)),
    "frozenset of a range": lambda: Reduced(frozenset, (BILLION,)),
    "deque of a range": lambda: Reduced(collections.deque, (BILLION,)),
    "counter of a range": lambda: Reduced(collections.Counter, (BILLION,)),
    "bytes": lambda: Reduced(bytes, (10**11,)),
    "bytearray": lambda: Reduced(bytearray, (10**11,)),
    "fraction": lambda: Reduced(fractions.Fraction, ("1e999999999",)),
    "storage": lambda: Reduced(torch.UntypedStorage, (10**12,)),
    "codec": lambda: Reduced(__import__("_codecs").encode, ("a" * 100, "idna")),
    "lists that hold themselves twice": lambda: _doubled(list),
    "a key that takes long to hash": lambda: Reduced(dict, ([(_doubled(tuple), 1)],)),
    "an item that takes long to hash": lambda: Reduced(set, ([_doubled(tuple)],)),
    "keys of one hash": lambda: {index * (2**61 - 1): 0 for index in range(8)},
}
"""What takes a second or a gigabyte to load as usual, or much longer."""


@pytest.mark.parametrize("kind", VALUES)
def test_a_short_pickle_makes_nothing_large(kind: str) -> None:
    file = io.BytesIO()
    # Pickling marks what it has seen by its address, so that this stays short.
    torch.save({"value": VALUES[kind]()}, file)
    file.seek(0)
    with pytest.raises(UntrustedCheckpointError, match="it holds "):
        restricted.load(file)


STREAMS = {
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 10**11) + b".",
    "bytes": b"\x80\x05\x8e" + struct.pack("<Q", 10**11) + b".",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 10**11) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 10**11) + b".",
    "depth": _nested(100_000),
    "nothing on the stack": b"\x80\x02a.",
    "no memo": b"\x80\x02h\x05.",
    "not text": b"\x80\x02X\x01\x00\x00\x00\xff.",
}


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"tar"}))
@pytest.mark.parametrize("kind", STREAMS)
def test_lengths_that_a_pickle_claims_are_not_believed(
    kind: str, form: str, tmp_path: Path
) -> None:
    FORMS[form](STREAMS[kind], tmp_path / "bad.ckpt")
    with pytest.raises((DamagedCheckpointError, UntrustedCheckpointError), match=r"bad\.ckpt"):
        restricted.load(tmp_path / "bad.ckpt")
    (tmp_path / "bad").write_bytes(STREAMS[kind])
    with pytest.raises((DamagedCheckpointError, UntrustedCheckpointError), match="bad"):
        restricted.load_pickle(tmp_path / "bad")


def _rewritten(change: Callable[[str, bytes], bytes], mode: int = zipfile.ZIP_STORED) -> io.BytesIO:
    file, made = io.BytesIO(), io.BytesIO()
    torch.save({"x": torch.arange(1000)}, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w", mode) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    made.seek(0)
    return made


@pytest.mark.parametrize("mmap", [False, True])
def test_a_storage_is_no_longer_than_its_record(mmap: bool, tmp_path: Path) -> None:
    """Torch would read what lies behind the record in memory."""

    def claim_more(name: str, data: bytes) -> bytes:
        return data.replace(b"M\xe8\x03", b"M\xe8\x33") if name.endswith("data.pkl") else data

    path = tmp_path / "x.ckpt"
    path.write_bytes(_rewritten(claim_more).getvalue())
    with pytest.raises(UntrustedCheckpointError, match="a storage of 13288 x 8 bytes, of 8000"):
        restricted.load(path, mmap=mmap)


def test_a_compressed_archive_is_refused_before_it_is_read() -> None:
    bomb = _rewritten(lambda name, data: data + b"\0" * 10**7, zipfile.ZIP_DEFLATED)
    with pytest.raises(UntrustedCheckpointError, match=r"records of 7\d,\d{3},\d{3} bytes in a"):
        restricted.load(bomb)


def test_a_pickle_does_not_change_an_enumeration() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    state = Reduced(_MEM_FORMAT_ENCODING, (member.value,), {"_value_": 7, "evil": 1})
    with pytest.raises(RefusedError, match=r"a state for .*_MEM_FORMAT_ENCODING"):
        Unpickler(io.BytesIO(pickle.dumps(state))).load()
    assert not hasattr(member, "evil")
    assert member.value == _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT.value != 7


def test_nor_by_the_way_of_a_tensor() -> None:
    """`_rebuild_from_type_v2` calls what it is given, and gives the result any state."""
    kind = _MEM_FORMAT_ENCODING
    arguments = (kind, kind, (kind.TORCH_PRESERVE_FORMAT.value,), {"evil": 1})
    value = Reduced(torch._tensor._rebuild_from_type_v2, arguments)
    with pytest.raises(RefusedError, match="_rebuild_from_type_v2"):
        Unpickler(io.BytesIO(pickle.dumps(value))).load()
    assert not hasattr(kind.TORCH_PRESERVE_FORMAT, "evil")
