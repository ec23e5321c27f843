"""What a checkpoint may hold, and what is refused."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import io
import pathlib
import pickle
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from lightning_gaudi.checkpoint import restricted
from lightning_gaudi.checkpoint.errors import UntrustedCheckpointError
from lightning_gaudi.reliability import settings
from tests.helpers.malicious import FORMS, OBJECTS, STREAMS, Canaries

PLAIN = {
    "namespace": argparse.Namespace(a=1, b=[2.5]),
    "counter": collections.Counter("aab"),
    "ordered": collections.OrderedDict(a=1),
    "default": collections.defaultdict(list, {"a": [1]}),
    "deque": collections.deque([1, 2], maxlen=3),
    "set": {1, 2},
    "frozen": frozenset({1}),
    "bytes": b"\x00\xff",
    "complex": 1 + 2j,
    "path": pathlib.PurePosixPath("/a/b"),
    "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
    "delta": datetime.timedelta(seconds=3),
    "decimal": decimal.Decimal("1.5"),
    "uuid": uuid.UUID(int=5),
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "scalar": np.float64(2.5),
    "integer": np.int64(-3),
    "text": np.str_("abc"),
}


class Own:
    """A user's class."""

    def __init__(self) -> None:
        self.x = 1


def _saved(value: Any, protocol: int = 2) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"value": value}, file, pickle_protocol=protocol)
    file.seek(0)
    return file


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_data_is_loaded_of_any_protocol(protocol: int) -> None:
    assert restricted.load(_saved(PLAIN, protocol))["value"] == PLAIN


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_and_arrays_are_loaded(protocol: int) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight = torch.nn.Parameter(torch.randn(3, 2))
    value = {"array": array, "bools": array > 2, "weight": weight, "view": weight.data.T[1:]}
    found = restricted.load(_saved(value, protocol))["value"]
    for name in ("array", "bools"):
        assert found[name].dtype == value[name].dtype
        assert np.array_equal(found[name], value[name])
    assert isinstance(found["weight"], torch.nn.Parameter)
    assert torch.equal(found["weight"], weight)
    assert torch.equal(found["view"], value["view"])


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.zeros(1, "i4,f4"), np.zeros(1, "M8[s]")]
)
def test_arrays_that_could_hold_addresses_are_refused(array: Any) -> None:
    with pytest.raises(UntrustedCheckpointError, match="it holds "):
        restricted.load(_saved(array))


def test_bytes_of_a_pickle_become_no_objects(tmp_path: Path) -> None:
    """`numpy.ndarray(1, object, buffer=...)` would take them for addresses."""
    path = tmp_path / "array.pt"
    stream = b"\x80\x02cnumpy\nndarray\nK\x01cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R\x86R."
    with pytest.raises(UntrustedCheckpointError, match="an array of dtype object"):
        _load(stream, path)
    stream = b"\x80\x02cnumpy\nndarray\nK\x01\x85R."
    with pytest.raises(UntrustedCheckpointError, match="it holds a call of"):
        _load(stream, path)


def _load(stream: bytes, path: Path) -> Any:
    FORMS["zip"](stream, path)
    return restricted.load(path)


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_that_runs_code_is_refused(kind: str, tmp_path: Path) -> None:
    canaries, path = Canaries(tmp_path / "ran"), tmp_path / "bad.pt"
    torch.save({"a": [OBJECTS[kind](canaries.path("x"))]}, path)
    with pytest.raises(UntrustedCheckpointError, match=r"bad\.pt was not loaded: it holds .*trust"):
        restricted.load(path)
    assert canaries.num_executed == 0


class Attribute:
    """Is pickled as the first releases of Python 3.11 pickle a member of an enumeration."""

    def __init__(self, *of: Any) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self._of


@pytest.mark.parametrize("protocol", [2, 4])
def test_members_of_enumerations_are_loaded_as_any_python_pickles_them(protocol: int) -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    for value in (member, Attribute(_MEM_FORMAT_ENCODING, member.name)):
        assert restricted.load(_saved(value, protocol))["value"] is member


@pytest.mark.parametrize(
    "of",
    [
        (_MEM_FORMAT_ENCODING, "__class__"),
        (_MEM_FORMAT_ENCODING, "mro"),
        (_MEM_FORMAT_ENCODING, ["TORCH_PRESERVE_FORMAT"]),
        (_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT", 1),
        (dict, "fromkeys"),
        (collections.OrderedDict, "__members__"),
        ("text", "format"),
    ],
)
def test_other_attributes_are_refused(of: tuple[Any, ...]) -> None:
    with pytest.raises(UntrustedCheckpointError, match=r"it holds builtins\.getattr, which is"):
        restricted.load(_saved(Attribute(*of)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", STREAMS)
def test_a_pickle_made_by_hand_is_refused(kind: str, form: str, tmp_path: Path) -> None:
    canaries, path = Canaries(tmp_path / "ran"), tmp_path / "bad.pt"
    FORMS[form](STREAMS[kind](canaries.path("x")), path)
    with pytest.raises(UntrustedCheckpointError, match="it holds "):
        restricted.load(path)
    (tmp_path / "plain").write_bytes(STREAMS[kind](canaries.path("y")))
    with pytest.raises(UntrustedCheckpointError, match="it holds "):
        restricted.load_pickle(tmp_path / "plain")
    assert canaries.num_executed == 0


def test_a_program_of_torchscript_is_refused(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "script.pt")
    with zipfile.ZipFile(tmp_path / "script.pt", "a") as archive:
        archive.writestr("script/constants.pkl", pickle.dumps(()))
    with pytest.raises(UntrustedCheckpointError, match="a program of TorchScript"):
        restricted.load(tmp_path / "script.pt")


def test_a_class_of_the_users_is_named_and_can_be_allowed() -> None:
    with pytest.raises(UntrustedCheckpointError, match=r"it holds .*test_restricted\.Own"):
        restricted.load(_saved(Own()))
    with torch.serialization.safe_globals([Own]):
        assert restricted.load(_saved(Own()))["value"].x == 1


def test_who_trusts_is_warned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    monkeypatch.setenv("LIGHTNING_GAUDI_RELIABILITY", "trust_checkpoints=on")
    with pytest.warns(UserWarning, match=r"Checkpoints are trusted \(trust_checkpoints\)"):
        assert restricted.load(_saved(Own()))["value"].x == 1
    assert restricted.load(_saved(Own()))["value"].x == 1
    with pytest.raises(UntrustedCheckpointError):
        restricted.load(_saved(Own()), weights_only=True)
    with settings.trusting(False), pytest.raises(UntrustedCheckpointError):
        restricted.load(_saved(Own()))


def test_torchs_own_variable_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with (
        settings.trusting(False),
        pytest.warns(UserWarning, match=r"trusted \(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD\)"),
    ):
        assert restricted.load(_saved(Own()))["value"].x == 1
    with settings.trusting(False, weights_only=True), pytest.raises(UntrustedCheckpointError):
        restricted.load(_saved(Own()))


def test_torchs_variable_that_forbids_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    assert restricted.load(_saved([1]))["value"] == [1]
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        restricted.load(_saved(Own()))
