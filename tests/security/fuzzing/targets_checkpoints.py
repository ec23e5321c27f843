"""Checkpoints: whole files, folders of shards, DeepSpeed's, and what lies beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import random as _random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.utils._pytree import tree_flatten

from lightning_gaudi._core import host_random
from lightning_gaudi.checkpoint import (
    candidates,
    files as checkpoint_files,
    io as checkpoint_io,
    leftovers,
    manifest,
    restricted,
    sealed_zip,
    stored_shards,
    verify,
)
from lightning_gaudi.checkpoint.checksum import checksum_of
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError, UntrustedCheckpointError
from lightning_gaudi.checkpoint.remote import RemotePath
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_checkpoint
from lightning_gaudi.strategies import jobs as job_record

from . import wild
from .target import Parser, WrongResultError, target

_PACKAGE = "lightning_gaudi.checkpoint"
_MARK = b"lightning_gaudi"


def checkpoint() -> dict[str, Any]:
    """A small one of a Trainer, with what its pickles consist of."""
    weight = torch.arange(12.0).reshape(3, 4)
    return {
        "epoch": 1,
        "global_step": 3,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {"weight": weight, "tied": weight, "half": torch.ones(2).bfloat16()},
        "loops": {"fit_loop": {"state_dict": {}, "epochs": [1, 2.5, None, True, "a"]}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": []}],
        "hyper_parameters": {"path": Path("a/b"), "shape": (1, 2), "names": {"x"}},
    }


def _saved(path: Path) -> bytes:
    checkpoint_files.save_file(checkpoint(), path)
    return path.read_bytes()


def is_equal(found: Any, expected: Any) -> bool:
    """Whether two checkpoints hold the same, to the bit."""
    ours, theirs = tree_flatten(found), tree_flatten(expected)
    return ours[1] == theirs[1] and all(map(_is_equal_leaf, ours[0], theirs[0]))


def _is_equal_leaf(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, Tensor):
        return isinstance(ours, Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    return type(ours) is type(theirs) and ours == theirs


def resigned(random: Any, data: bytes) -> bytes:
    """A manifest with other values and the digest that belongs to them."""
    text = data.split(b" ", 2)[2].removesuffix(b" " + _MARK)
    text = wild.json_text(random, json.loads(text))
    return b" ".join((_MARK, hashlib.sha256(text).hexdigest().encode(), text, _MARK))


@target(
    "checkpoint.manifest",
    f"{_PACKAGE}.manifest:decode",
    errors=(DamagedCheckpointError,),
)
def _manifest(folder: Path) -> Parser:
    seed = manifest.encode(
        manifest.with_files(manifest.describe({"epoch": 1}), {"": manifest.FileEntry(3, "ab" * 32)})
    )

    def damage(random: Any) -> bytes:
        return resigned(random, seed) if random.random() < 0.8 else wild.damaged_text(random, seed)

    def parse(given: bytes) -> Any:
        found = manifest.decode(given, Path("a.ckpt"))
        return None if found is None else (found, max(found.age, (0.0, -1, 0.0)), hash(found.run))

    return Parser(damage, parse)


@target(
    "checkpoint.sealed_zip",
    f"{_PACKAGE}.sealed_zip:inspect_open",
    f"{_PACKAGE}.sealed_zip:_inspect",
    f"{_PACKAGE}.sealed_zip:_length",
    errors=(DamagedCheckpointError,),
)
def _zip_file(folder: Path) -> Parser:
    path = folder / "a.ckpt"
    seed = _saved(path)
    end = seed.rindex(b"PK\x05\x06") + 22

    def damage(random: Any) -> bytes:
        if random.random() < 0.5:
            return _with_comment(seed[:end], resigned(random, seed[end:]))
        return wild.damaged_bytes(random, seed)

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        in_memory = _outcome(lambda: sealed_zip.inspect_bytes(given, path))
        found = sealed_zip.inspect(path)
        return found.entry, in_memory

    return Parser(damage, parse)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DamagedCheckpointError as error:
        return str(error)


def _with_comment(content: bytes, comment: bytes) -> bytes:
    comment = comment[:65535]
    size = len(content) + len(comment)
    whole = bytearray(content[:-2] + len(comment).to_bytes(2, "little") + comment)
    if whole[46:50] == b"FB\x0e\x00":
        whole[50:58] = size.to_bytes(8, "little")
    return bytes(whole)


def _archive(random: Any, seed: bytes, end: int) -> bytes:
    """A damaged archive: its manifest as it was, signed for what it is now, changed or none."""
    how = random.randrange(8)
    if how < 3:
        return wild.damaged_bytes(random, seed)
    if how < 5:
        return _with_comment(seed[:end], resigned(random, seed[end:]))
    plain = bytearray(seed[: end - 2] + b"\0\0")
    plain[50:58] = b"Z" * 8
    return wild.damaged_zip(random, bytes(plain), _record)


def _record(random: Any, name: str, content: bytes) -> bytes:
    if name.endswith("data.pkl"):
        return wild.damaged_pickle(random, content)
    return wild.damaged_bytes(random, content)


def _whole(name: str, *reads: str, load: Callable[[Path], Any], num_quick: int = 60) -> None:
    """A target that loads whole files."""

    @target(
        name,
        *reads,
        errors=(ValueError, DamagedCheckpointError, UntrustedCheckpointError),
        num_quick=num_quick,
    )
    def prepare(folder: Path) -> Parser:
        path = folder / "a.ckpt"
        seed = _saved(path)
        end = seed.rindex(b"PK\x05\x06") + 22
        original = restricted.load(path, weights_only=None)

        def parse(given: bytes) -> Any:
            path.unlink(missing_ok=True)
            path.write_bytes(given)
            return load(path)

        def check(given: bytes, found: Any) -> None:
            if given[end - 22 : end] == seed[end - 22 : end] and given.endswith(seed[end:]):
                covered = given[: end - 2] != seed[: end - 2] or len(given) != len(seed)
                if covered and not is_equal(found, original):
                    raise WrongResultError("what a checksum covers was changed, and was loaded")

        return Parser(lambda random: _archive(random, seed, end), parse, check)


_whole(
    "checkpoint.load",
    f"{_PACKAGE}.files:load_file",
    f"{_PACKAGE}.archive:read_directory",
    f"{_PACKAGE}.archive:_find",
    f"{_PACKAGE}.archive:_find64",
    f"{_PACKAGE}.archive:_entries",
    f"{_PACKAGE}.archive:_text",
    f"{_PACKAGE}.archive:_widened",
    f"{_PACKAGE}.opening:open_regular",
    f"{_PACKAGE}.restricted:_read",
    f"{_PACKAGE}.restricted:_load_by_torchs",
    f"{_PACKAGE}.unpickler:_Whole.read",
    f"{_PACKAGE}.unpickler:Unpickler._bytearray",
    f"{_PACKAGE}.unpickler:_load",
    f"{_PACKAGE}.numpy_values:scalar",
    load=lambda path: checkpoint_io.HPUCheckpointIO(True).load_checkpoint(path, "cpu"),
)
_whole(
    "checkpoint.open_mapped",
    f"{_PACKAGE}.files:open_mapped",
    load=lambda path: checkpoint_files.open_mapped(path, weights_only=None),
)
_whole(
    "checkpoint.read_remote",
    f"{_PACKAGE}.verify:read_remote",
    f"{_PACKAGE}.remote:RemotePath.open",
    f"{_PACKAGE}.remote:opened",
    load=lambda path: checkpoint_files.load_file(
        io.BytesIO(verify.read_remote(f"local://{path}")), "cpu", name="remote"
    ),
    num_quick=10,
)


@target(
    "checkpoint.load_pickle",
    f"{_PACKAGE}.restricted:load_pickle",
    errors=(ValueError, UntrustedCheckpointError),
)
def _pickles(folder: Path) -> Parser:
    """Files of the pickles alone, as of old and as of DCP."""
    path = folder / "a.pt"
    values = {"a": [1, 2.5, None, "x", (True, {"y"})], "b": b"c", "p": Path("x")}
    seeds = [pickle.dumps(values, protocol) for protocol in (2, 4, 5)]
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer, _use_new_zipfile_serialization=False)
    seeds.append(buffer.getvalue())

    def damage(random: Any) -> bytes:
        number = random.randrange(len(seeds))
        how = wild.damaged_bytes if number == 3 else wild.damaged_pickle
        return how(random, seeds[number])

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        return checkpoint_files.open_mapped(path, weights_only=None)

    return Parser(damage, parse)


@target("checkpoint.candidates", f"{_PACKAGE}.candidates:read_latest", errors=())
def _newest(folder: Path) -> Parser:
    """Whatever lies beside it, the good checkpoint is found; nothing raises."""
    good, bad = folder / "good.ckpt", folder / "bad.ckpt"
    seed = _saved(good)
    end = seed.rindex(b"PK\x05\x06") + 22
    shards = folder / "shards.ckpt"

    def damage(random: Any) -> tuple[str, bytes]:
        kind = random.choice(("file", "manifest", "latest"))
        if kind == "file":
            return kind, _archive(random, seed, end)
        if kind == "manifest":
            return kind, resigned(random, seed[end:])
        return kind, wild.damaged_text(random, b"checkpoint-2\n")

    def parse(given: tuple[str, bytes]) -> Any:
        kind, content = given
        shutil.rmtree(shards, ignore_errors=True)
        bad.unlink(missing_ok=True)
        if kind == "file":
            bad.write_bytes(content)
        else:
            shards.mkdir()
            (shards / (".metadata" if kind == "manifest" else "latest")).write_bytes(content)
            if kind == "manifest":
                (shards / manifest.FOLDER_MANIFEST).write_bytes(content)
        found = candidates.candidates([folder], [])
        candidates.fallbacks(bad if kind == "file" else shards)
        candidates.whole([good, bad, shards])
        return [each.path for each in found]

    def check(given: Any, found: list[Path]) -> None:
        if good not in found:
            raise WrongResultError(f"the good checkpoint was not found, but {found}")

    return Parser(damage, parse, check)


@target(
    "checkpoint.candidates.lengths",
    f"{_PACKAGE}.opening:read_limited",
    errors=(DamagedCheckpointError, ValueError),
    foreign=(FileNotFoundError,),
)
def _folder_manifest(folder: Path) -> Parser:
    """A manifest of a folder with any names and sizes; nothing outside of it is read."""
    inside, outside = folder / "a.ckpt", folder / "outside"
    inside.mkdir()
    (inside / "x.pt").write_bytes(b"some bytes")
    outside.write_bytes(b"secret")
    secret = checksum_of(outside, manifest.FileEntry(6, "")).sha256[:16]
    files = {"x.pt": checksum_of(inside / "x.pt", manifest.FileEntry(10, ""))}
    seed = manifest.encode(manifest.with_files(manifest.describe({}), files))

    def damage(random: Any) -> bytes:
        if random.random() < 0.3:
            name = random.choice((str(outside), "../outside", "x.pt", "\0", "x" * 5000))
            entry = {"num_bytes": 6, "sha256": "0" * 64, "chunk_bytes": wild.value(random, 1)}
            text = json.dumps({"format": 1, "files": {name: entry}}).encode()
            return b" ".join((_MARK, hashlib.sha256(text).hexdigest().encode(), text, _MARK))
        return resigned(random, seed)

    def parse(given: bytes) -> Any:
        (inside / manifest.FOLDER_MANIFEST).write_bytes(given)
        try:
            return verify.check_folder(inside)
        except Exception as error:
            if secret in str(error):
                raise WrongResultError("a file outside the folder was read") from error
            raise

    return Parser(damage, parse)


@target(
    "checkpoint.stored_shards",
    f"{_PACKAGE}.remote:RemotePath.read_small",
    f"{_PACKAGE}.stored_shards:find_version",
    errors=(DamagedCheckpointError,),
    foreign=(FileNotFoundError,),
)
def _stored(folder: Path) -> Parser:
    """What names a version in a store, and what that says of itself; nothing else is read."""
    inside, outside = folder / "a.ckpt", folder / "outside"
    version = inside / "checkpoint-1"
    version.mkdir(parents=True)
    outside.mkdir()
    (version / "x.pt").write_bytes(b"some bytes")
    (outside / "secret").write_bytes(b"secret")
    files = {"x.pt": checksum_of(version / "x.pt", manifest.FileEntry(10, ""))}
    seed = manifest.encode(manifest.with_files(manifest.describe({}), files))

    def damage(random: Any) -> tuple[str, bytes]:
        if random.random() < 0.5:
            names = (b"checkpoint-1", b"../outside", b"..", b".", b"", str(outside).encode())
            return "latest", wild.damaged_text(random, random.choice(names))
        return f"checkpoint-1/{manifest.FOLDER_MANIFEST}", resigned(random, seed)

    def parse(given: tuple[str, bytes]) -> Any:
        (inside / "latest").write_bytes(b"checkpoint-1")
        (version / manifest.FOLDER_MANIFEST).write_bytes(seed)
        (inside / given[0]).write_bytes(given[1])
        stored_shards.check_stored(RemotePath(f"local://{inside}"))
        with stored_shards.fetched(f"local://{inside}", is_alone=True) as found:
            return [each.name for each in Path(found).rglob("*")]

    def check(given: Any, found: list[str]) -> None:
        if "secret" in found:
            raise WrongResultError("a folder beside the checkpoint was read")

    return Parser(damage, parse, check)


@target(
    "strategies.jobs.JobRecord",
    "lightning_gaudi.strategies.jobs:JobRecord.read",
    "lightning_gaudi.strategies.jobs:JobRecord.check_own",
    "lightning_gaudi.strategies.jobs:JobRecord.commands_before",
    "lightning_gaudi.strategies.jobs:_read_own",
    foreign=(OSError,),
)
def _job_record(folder: Path) -> Parser:
    record = job_record.JobRecord(folder, "slurm-17", "a:/tmp", ["python", "train.py"])
    record.path.parent.mkdir()
    seed = {
        "agent": "a:/tmp",
        "start": "host 17 0a1b",
        "fit": ["train.py", "Model", "0"],
        "first_path": None,
        "saved": [["/x/a.ckpt", [1, 2, 3]], ["b", None]],
    }
    other = job_record.JobRecord(folder, "slurm-17", "a:/tmp", ["other.py", "Model", "0"])

    def parse(given: bytes) -> Any:
        record.path.write_bytes(given)
        commands = other.commands_before()
        with contextlib.suppress(job_record.TakenOverError):
            other.check_own()
            record.check_own()
        return record.read(), commands, [str(each) for each in record.saved()]

    return Parser(lambda random: wild.json_text(random, seed), parse)


@target(
    "checkpoint.leftovers",
    f"{_PACKAGE}.leftovers:_words",
    f"{_PACKAGE}.leftovers:_opened",
    f"{_PACKAGE}.leftovers:_open_lock",
    errors=(),
)
def _litter(folder: Path) -> Parser:
    """Whatever a lock says, nothing but what a save has left is removed."""
    inside, outside = folder / "runs", folder / "outside"
    target_ = inside / "last.ckpt"
    digest = hashlib.sha256(b"last.ckpt").hexdigest()[:32]
    kept = (outside / "keep", inside / "mine" / "keep", target_ / "checkpoint-1" / "keep")
    domain = leftovers._lock_domain(folder)
    names = (f".saving-{digest}.lock", ".saving-0.lock", f".saving-file-{domain}-x.tmp")
    for each in kept:
        each.parent.mkdir(parents=True)
        each.write_text("kept")
    (target_ / leftovers.LATEST).write_text("checkpoint-1")

    def damage(random: Any) -> tuple[str, bytes, bool]:
        words = [domain, "last.ckpt", "checkpoint-2"]
        paths = (str(outside), "../outside", "mine", ".", "..", "", "last.ckpt", "last.ckpt/..")
        for place in random.sample(range(3), 1 + random.randrange(2)):
            words[place] = random.choice((*paths, wild.text(random)))
        content = "\n".join(words).encode("utf-8", "surrogatepass")
        if random.random() < 0.3:
            content = wild.damaged_text(random, content)
        return random.choice(names), content, random.random() < 0.5

    def parse(given: tuple[str, bytes, bool]) -> Any:
        name, content, is_old = given
        path = inside / name
        path.write_bytes(content)
        if is_old:
            os.utime(path, (time.time() - 9999,) * 2)
        leftovers.sweep(inside)
        path.write_bytes(content)
        leftovers.SaveLock(target_, "checkpoint-1").release()
        return [each.is_file() for each in kept]

    def check(given: Any, found: list[bool]) -> None:
        if not all(found):
            for each in kept:
                each.parent.mkdir(parents=True, exist_ok=True)
                each.write_text("kept")
            (target_ / leftovers.LATEST).write_text("checkpoint-1")
            raise WrongResultError(f"removed what is no litter: {found}")

    return Parser(damage, parse, check)


@target(
    "checkpoint.host_random",
    "lightning_gaudi._core.host_random:_put",
    "lightning_gaudi._core.host_random:_tensor",
)
def _host_random(folder: Path) -> Parser:
    seed = host_random.to_tensors(host_random.take())

    def damage(random: Any) -> dict[str, Any]:
        found: dict[str, Any] = dict(seed)
        name = random.choice(sorted(found))
        content = wild.damaged_bytes(random, found[name].numpy().tobytes())
        found[name] = random.choice(
            (
                None,
                torch.frombuffer(bytearray(content or b"x"), dtype=torch.uint8),
                torch.ones(2),
                7,
            )
        )
        return found

    return Parser(damage, lambda given: host_random.put(host_random.from_tensors(given)))


def _sharded(folder: Path) -> None:
    """A folder as FSDP leaves it: tensors, optimizer, `meta.pt` and a manifest."""
    state = {
        "model": {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)},
        "optimizer_0": {
            "state": {"weight": {"step": torch.tensor(1.0), "exp_avg": torch.ones(3, 4)}},
            "param_groups": [{"lr": 0.1, "params": ["weight", "bias"]}],
        },
    }
    save(state, storage_writer=FileSystemWriter(folder, single_file_per_rank=True), no_dist=True)
    rest = {"epoch": 1, "pytorch-lightning_version": "2.6.6", "loops": {}}
    torch.save(rest, folder / "meta.pt")


def _sign(folder: Path) -> None:
    """A manifest of what is in a folder now."""
    (folder / manifest.FOLDER_MANIFEST).unlink(missing_ok=True)
    files = {
        each.name: checksum_of(each, manifest.FileEntry(each.stat().st_size, ""))
        for each in folder.iterdir()
    }
    manifest.write_folder_manifest(folder, manifest.with_files(manifest.describe({}), files))


def _changed_metadata(random: Any, seed: Any) -> bytes:
    """`.metadata` in which chunks, sizes, offsets, files or names are others."""
    found = pickle.loads(pickle.dumps(seed))
    tensors = [key for key, each in found.state_dict_metadata.items() if hasattr(each, "chunks")]
    key = random.choice(tensors)
    stored = found.state_dict_metadata[key]
    part = random.choice(list(found.storage_data))
    how = random.randrange(12)
    wrong = wild.value(random, 1) if random.random() < 0.3 else wild.number(random)
    sizes = random.choice((torch.Size([10**6, 10**6]), torch.Size([0]), (-1, 4), [3], None, wrong))
    chunk = stored.chunks[0]
    if how == 0:
        stored.chunks = random.choice(([], stored.chunks * 2, None, stored.chunks * 1000, wrong))
    elif how == 1:
        stored.size = sizes
    elif how == 2:
        chunk.sizes = sizes
    elif how == 3:
        chunk.offsets = random.choice((torch.Size([2**40, 0]), (-1, 0), torch.Size([1, 1]), wrong))
    elif how == 4:
        path = random.choice(("../outside.distcp", "/etc/hostname", "x\0", "missing", "", wrong))
        found.storage_data[part] = dataclasses.replace(found.storage_data[part], relative_path=path)
    elif how == 5:
        field = random.choice(("offset", "length"))
        found.storage_data[part] = dataclasses.replace(found.storage_data[part], **{field: wrong})
    elif how == 6:
        del found.storage_data[part]
    elif how == 7:
        found.storage_data[random.choice((MetadataIndex("x"), "x", part))] = wrong
    elif how == 8:
        name = random.choice(("state_dict_metadata", "planner_data", "storage_data", "version"))
        setattr(found, name, random.choice((None, {}, [], wrong)))
    elif how == 9:
        name = random.choice(list(found.planner_data))
        path = random.choice(
            ((), ("model",), ("model", 10**9), (0, "x"), "model", None, ("model", "weight", "a"))
        )
        found.planner_data[name] = path
    elif how == 10:
        dtype = random.choice((torch.int8, torch.float64, torch.complex128, None, wrong))
        stored.properties = dataclasses.replace(stored.properties, dtype=dtype)
    else:
        return wild.damaged_pickle(random, pickle.dumps(seed))
    return pickle.dumps(found)


@target(
    "checkpoint.shards",
    f"{_PACKAGE}.torch_dcp.layout:load_rest",
    f"{_PACKAGE}.torch_dcp.load:Reader.read_metadata",
    f"{_PACKAGE}.torch_dcp.load:Planner.load_bytes",
    f"{_PACKAGE}.torch_dcp.load:Reader._read",
    errors=(ValueError, DamagedCheckpointError, UntrustedCheckpointError),
    num_quick=13,
)
def _shards(folder: Path) -> Parser:
    """A folder of shards of which one file is damaged, with the manifest of what was saved or
    of what is there now."""
    seed, work = folder / "seed", folder / "work.ckpt"
    _sharded(seed)
    _sign(seed)
    shutil.copy(next(seed.glob("*.distcp")), folder / "outside.distcp")
    files = {each.name: each.read_bytes() for each in seed.iterdir()}
    metadata = pickle.loads(files[".metadata"])
    original = load_full_checkpoint(seed)
    fill = _random.Random(0).randbytes

    def damage(random: Any) -> tuple[str, bytes, bool]:
        name = random.choice((".metadata", ".metadata", "meta.pt", "__0_0.distcp", "manifest.json"))
        if name == ".metadata":
            content = _changed_metadata(random, metadata)
        elif name == "meta.pt":
            content = wild.damaged_zip(random, files[name], _record)
        elif name == "manifest.json":
            content = resigned(random, files[name])
        else:
            content = wild.damaged_bytes(random, files[name])
        return name, content, random.random() < 0.85

    def parse(given: tuple[str, bytes, bool]) -> Any:
        name, content, is_signed = given
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for each, data in {**files, name: content}.items():
            (work / each).write_bytes(data)
        if is_signed and name != "manifest.json":
            (work / "manifest.json").unlink()
        fill(8)
        return load_full_checkpoint(work)

    def check(given: tuple[str, bytes, bool], found: Any) -> None:
        name, content, is_signed = given
        covered = name != "manifest.json" and not is_signed and content != files[name]
        if covered and not is_equal(found, original):
            raise WrongResultError(f"{name} was changed, and was loaded")

    return Parser(damage, parse, check)
