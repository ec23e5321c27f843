"""Small files that stand for more than a machine has, or for a change of the process."""

from __future__ import annotations

import collections
import decimal
import fractions
import io
import pickle
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from lightning_gaudi.checkpoint import archive, restricted
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError, UntrustedCheckpointError
from lightning_gaudi.checkpoint.unpickler import Unpickler
from tests.helpers.malicious import write_legacy, write_stream

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of some of its own

_REFUSED = (UntrustedCheckpointError, DamagedCheckpointError)
_LIMIT_BYTES = 2**30


class _Calls:
    """Pickles as a call."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call[0], self._call[1:]


def _deep(levels: int, kind: Any) -> Any:
    value: Any = kind(())
    for _ in range(levels):
        value = kind((value,))
    return value


def _doubled(levels: int) -> Any:
    value: Any = ("x",)
    for _ in range(levels):
        value = (value, value)
    return value


def _tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Any:
    storage = torch.ones(4).untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    hooks: Any = collections.OrderedDict()
    return _Calls(torch._utils._rebuild_tensor_v2, typed, offset, size, stride, False, hooks)


VALUES: dict[str, Any] = {
    "fraction": _Calls(fractions.Fraction, "1e999999999"),
    "fraction of large numbers": _Calls(fractions.Fraction, 3**40000, 7**40000),
    "whole decimal": _Calls(int, decimal.Decimal("1e999999999")),
    "list of a range": _Calls(list, range(10**9)),
    "tuple of a range": _Calls(tuple, range(10**30)),
    "set of a range": _Calls(set, range(10**9)),
    "bytes": _Calls(bytes, 10**11),
    "bytearray": _Calls(bytearray, 10**11),
    "text of a doubled tuple": _Calls(str, _doubled(60)),
    "tensor without a file": _Calls(torch.FloatTensor, 10**10),
    "storage without a file": _Calls(torch.UntypedStorage, 10**11),
    "tensor beyond its storage": _tensor((10**9,), (1,)),
    "tensor before its storage": _tensor((2,), (1,), -2),
    "repeated values": _tensor((10**12,), (0,)),
    "doubled tuple": _doubled(60),
    "doubled key": _Calls(dict, [(_doubled(60), 1)]),
    "doubled item": _Calls(frozenset, [_doubled(60)]),
    "deep lists": _deep(300, list),
    "keys of one hash": _Calls(dict, [(k * (2**61 - 1), 1) for k in range(1, 20_000)]),
    "complex keys of one hash": _Calls(set, [complex(1000003 * k, -k) for k in range(20_000)]),
    "slow encoding": _Calls(__import__("codecs").encode, "x" * 100_000, "punycode"),
}


@pytest.fixture(autouse=True)
def little_memory() -> Any:
    """Lets the process have as much more memory than now as a file may cost."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_stands_for_too_much_is_refused(name: str) -> None:
    file = io.BytesIO()
    torch.save({"value": VALUES[name]}, file)
    file.seek(0)
    with pytest.raises(_REFUSED):
        restricted.load(file)


STREAMS = {
    "bytearray of a terabyte": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "bytes of a terabyte": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
    "text of a terabyte": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b".",
    "frame of a terabyte": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b".",
    "number of two gigabytes": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "copies of copies": (
        b"\x80\x02cbuiltins\nlist\nq\x00("
        + b"N" * 100_000
        + b"lq\x01"
        + b"h\x00h\x01\x85R0" * 20_000
        + b"N."
    ),
    "a list within itself": b"\x80\x02]q\x00h\x00a.",
    "a list within its tuple": b"\x80\x02]q\x00h\x00\x85a.",
    "nothing": b"",
    "an empty stack": b"\x80\x02R.",
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("write", [write_stream, write_legacy])
@pytest.mark.parametrize("name", STREAMS)
def test_a_pickle_that_claims_too_much_is_refused(name: str, write: Any, tmp_path: Path) -> None:
    write(STREAMS[name], tmp_path / "x.ckpt")
    with pytest.raises(_REFUSED):
        restricted.load(tmp_path / "x.ckpt")
    (tmp_path / "x.pickle").write_bytes(STREAMS[name])
    with pytest.raises(_REFUSED):
        restricted.load_pickle(tmp_path / "x.pickle")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("record", ["archive/version", "archive/data.pkl", "archive/data/0"])
def test_a_small_archive_does_not_grow(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_EXCESS_BYTES", 2**20)
    file = io.BytesIO()
    torch.save({"weight": torch.ones(4)}, file)
    path = tmp_path / "bomb.ckpt"
    with (
        zipfile.ZipFile(file) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            with new.open(name, "w") as opened:
                opened.write(old.read(name))
                for _ in range(3 if name == record else 0):
                    opened.write(bytes(2**20))
    with pytest.raises(DamagedCheckpointError, match="made to exhaust this machine"):
        restricted.load(path)


@pytest.mark.parametrize("mmap", [False, True])
def test_a_storage_has_no_more_than_its_record(mmap: bool, tmp_path: Path) -> None:
    """Torch would copy as many bytes as the pickle says, from behind the record's memory."""
    path = tmp_path / "x.ckpt"
    torch.save({"weight": torch.zeros(1000)}, path)
    content = path.read_bytes()
    before = b"M\xe8\x03"  # 1000, first of the storage and then of the tensor
    assert content.count(before) == 2
    path.write_bytes(content.replace(before, b"M\xff\xff"))
    with pytest.raises(DamagedCheckpointError, match=r"in a record of 4,000|damaged"):
        restricted.load(path, mmap=mmap)


def test_a_member_of_an_enumeration_is_not_changed() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    module = _MEM_FORMAT_ENCODING.__module__.encode()
    found = b"c" + module + b"\n_MEM_FORMAT_ENCODING\nK\x00\x85R"
    state = b"}X\x07\x00\x00\x00_value_K\x05s"
    streams = [
        b"\x80\x04" + found + state + b"b.",
        b"\x80\x04ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\ngetattr\nc"
        + module
        + b"\n_MEM_FORMAT_ENCODING\n(c"
        + module
        + b"\n_MEM_FORMAT_ENCODING\nX\x17\x00\x00\x00TORCH_CONTIGUOUS_FORMATt"
        + state
        + b"tR.",
    ]
    for stream in streams:
        with pytest.raises(pickle.UnpicklingError, match=r"a state for|a tensor"):
            Unpickler(io.BytesIO(stream)).load()
    assert member.value == 0
    assert _MEM_FORMAT_ENCODING(0) is member


def test_an_object_calls_nothing_of_its_own_for_its_state() -> None:
    """What BUILD asks an object for may be a key or an attribute that the pickle has set."""
    stream = (
        b"\x80\x04cargparse\nNamespace\n)\x81}X\x0c\x00\x00\x00__setstate__cbuiltins\nlist\nsb"
        b"}X\x01\x00\x00\x00aK\x01sb."
    )
    found = Unpickler(io.BytesIO(stream)).load()
    assert found.a == 1


def test_hooks_of_a_tensor_are_refused() -> None:
    hooks = collections.OrderedDict({1: list})
    typed = torch.ones(1).storage()
    call = _Calls(torch._utils._rebuild_tensor_v2, typed, 0, (1,), (1,), True, hooks)
    file = io.BytesIO()
    torch.save(call, file)
    file.seek(0)
    with pytest.raises(UntrustedCheckpointError, match="hooks of a tensor"):
        restricted.load(file)


def test_indices_of_a_sparse_tensor_are_within_it() -> None:
    sparse = torch.sparse_coo_tensor([[0, 5]], [1.0, 2.0], (6,))
    file = io.BytesIO()
    torch.save(sparse, file)
    file.seek(0)
    assert torch.equal(restricted.load(file).to_dense(), sparse.to_dense())
    bad = torch.sparse_coo_tensor([[0, 500]], [1.0, 2.0], (6,), check_invariants=False)
    file = io.BytesIO()
    torch.save(bad, file)
    file.seek(0)
    with pytest.raises(DamagedCheckpointError):
        restricted.load(file)
