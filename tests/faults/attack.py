"""Poisoned checkpoints at every entry point: `python -m tests.faults.attack FOLDER`.

Prints as JSON what was tried, and what ran, was loaded, or failed in another way than it should.
Works beside any version of Lightning that we support, in either mode.
"""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict

from lightning_gaudi import HPUCheckpointIO, vendor
from lightning_gaudi.checkpoint.files import open_mapped
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate
from tests.helpers.archives import DISGUISES, program
from tests.helpers.malicious import FORMS, OBJECTS, STREAMS, Canaries, forge_manifest
from tests.helpers.tiny import QUIET, TinyModule, batches

Entry = Callable[[Path], Any]
REFUSAL = "was not loaded: it holds"
DAMAGE = "damaged"
"""What a disguise of a program is taken for, of which no reader sees the same as another."""


class Model(TinyModule):
    """With all of Trainer's stages."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.test_step(batch, batch_idx)


class Data(pl.LightningDataModule):
    """With a hyperparameter."""

    def __init__(self, num_batches: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return batches(self.hparams.num_batches)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def trainer(strategy: Any = "auto", **settings: Any) -> pl.Trainer:
    """For two steps beyond those of the checkpoint."""
    options = {"max_epochs": 2, "devices": 1, "strategy": strategy, **QUIET, **settings}
    return pl.Trainer(accelerator="hpu", **options)


class Attack:
    """Gives files to entry points, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canaries = Canaries(folder / "ran")
        self.entries: set[str] = set()
        self.files = 0
        self.attempts = 0
        self.faults: list[str] = []

    def run(self, entries: dict[str, Entry], good: Path, poisoned: dict[str, Path]) -> None:
        """All files at all entries; the good one has to load at each."""
        for name, entry in entries.items():
            entry(good)
            for label, path in poisoned.items():
                self._try(f"{name} of {label}", entry, path)
        self.entries |= entries.keys()
        self.files += len(poisoned)

    def _try(self, label: str, entry: Entry, path: Path) -> None:
        before = self.canaries.num_executed
        self.attempts += 1
        try:
            entry(path)
        except Exception as error:
            is_damage = "TorchScript" in label and DAMAGE in str(error)
            if REFUSAL not in str(error) and not is_damage:
                self.faults.append(f"{label} raised {type(error).__name__}: {error}"[:300])
        else:
            self.faults.append(f"{label} was loaded")
        if self.canaries.num_executed > before:
            self.faults.append(f"{label} RAN")

    def payload(self, kind: str) -> Any:
        """A poisoned object; each leaves a trace of its own."""
        self.files_made = getattr(self, "files_made", 0) + 1
        return OBJECTS[kind](self.canaries.path(f"{self.files_made}"))

    def program(self, kind: str) -> bytes:
        """A program of TorchScript in a disguise; the same."""
        self.files_made = getattr(self, "files_made", 0) + 1
        return DISGUISES[kind](program(Path(self.canaries.path(f"{self.files_made}"))))

    def stream(self, kind: str) -> bytes:
        """A poisoned pickle; the same."""
        self.files_made = getattr(self, "files_made", 0) + 1
        return STREAMS[kind](self.canaries.path(f"{self.files_made}"))


def poison_whole(attack: Attack, good: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Files with something evil in each place, and in each way; the first of them are some."""
    places: dict[str, Callable[[Any, Any], Any]] = {
        "hyper_parameters": lambda file, evil: file["hyper_parameters"].update(dropout=evil),
        "optimizer_states": lambda file, evil: file["optimizer_states"].append(evil),
        "callbacks": lambda file, evil: file["callbacks"].update(x=evil),
        "state_dict": lambda file, evil: file["state_dict"].update({"net.0.bias": evil}),
        "loops": lambda file, evil: file["loops"].update(fit_loop=evil),
    }
    some, others = {}, {}
    content = torch.load(good, weights_only=False)
    for kind in OBJECTS:
        for place, put in places.items() if kind == "os.system" else [*places.items()][:1]:
            poisoned = copy.deepcopy(content)
            put(poisoned, attack.payload(kind))
            path = attack.folder / f"{kind}-{place}.ckpt"
            torch.save(poisoned, path)
            (some if kind == "os.system" else others)[f"{kind} in {place}"] = path
    for form, write in FORMS.items():
        for kind in STREAMS:
            path = attack.folder / f"{form}-{kind}.ckpt".replace(" ", "-")
            write(attack.stream(kind), path)
            (some if kind == "INST" else others)[f"{kind} as {form}"] = path
    for kind in DISGUISES:
        path = attack.folder / f"script-{kind}.ckpt".replace(" ", "-")
        path.write_bytes(attack.program(kind))
        (some if kind in HARDEST else others)[f"TorchScript, {kind}"] = path
    return some, others


def whole_entries() -> tuple[dict[str, Entry], dict[str, Entry]]:
    """What loads a file: slowly, and fast."""
    fabric = Fabric(accelerator="hpu", devices=1)
    slow = {
        "Trainer.fit": lambda path: trainer().fit(Model(), Data(), ckpt_path=path),
        "Trainer.validate": lambda path: trainer().validate(Model(), Data(), ckpt_path=path),
        "Trainer.test": lambda path: trainer().test(Model(), Data(), ckpt_path=path),
        "Trainer.predict": lambda path: trainer().predict(Model(), Data(), ckpt_path=path),
        "Trainer(plugins=TorchCheckpointIO()).test": lambda path: trainer(
            plugins=TorchCheckpointIO()
        ).test(Model(), Data(), ckpt_path=path),
        "DeepSpeedStrategy, Trainer.test": lambda path: trainer(DeepSpeedStrategy(stage=2)).test(
            Model(), Data(), ckpt_path=path
        ),
    }
    if not vendor.is_lazy():
        slow["FSDPStrategy, Trainer.fit"] = lambda path: trainer(FSDPStrategy()).fit(
            Model(), Data(), ckpt_path=path
        )
    fast = {
        "LightningModule.load_from_checkpoint": Model.load_from_checkpoint,
        "load_from_checkpoint of an open file": _load_opened,
        "LightningDataModule.load_from_checkpoint": Data.load_from_checkpoint,
        "Fabric.load": lambda path: fabric.load(path),
        "Fabric.load into a state": lambda path: fabric.load(path, {"epoch": 0}),
        "Fabric.load_raw": lambda path: fabric.load_raw(path, _Anything()),
        "HPUCheckpointIO": HPUCheckpointIO().load_checkpoint,
        "TorchCheckpointIO": TorchCheckpointIO().load_checkpoint,
        "open_mapped": lambda path: open_mapped(path, weights_only=None),
    }
    return slow, fast


def _load_opened(path: Path) -> Any:
    with path.open("rb") as file:
        return Model.load_from_checkpoint(file)


class _Anything(torch.nn.Module):
    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        assert state["epoch"] == 1


def attack_whole(attack: Attack) -> None:
    """Files that a Trainer saved."""
    good = attack.folder / "good.ckpt"
    first = trainer(max_epochs=1)
    first.fit(Model(), Data())
    first.save_checkpoint(good)
    some, others = poison_whole(attack, good)
    slow, fast = whole_entries()
    attack.run(slow, good, some)
    attack.run(fast, good, {**some, **others})
    attack.files -= len(some)


def copies(
    attack: Attack, good: Path, names: list[str], kinds: list[str], note: str = ""
) -> Iterator[Any]:
    """For each file of a folder, a copy of the folder in which that one is to be poisoned."""
    for name in names:
        for kind in kinds:
            path = attack.folder / f"{good.name}-{name}-{kind}{note}".replace("/", "-")
            shutil.copytree(good, path)
            evil = attack.payload(kind) if kind in OBJECTS else None
            yield f"{kind} in {name}", path, path / name, evil


HARDEST = ("false extra field", "two zip64 ends")
"""The disguises that are tried at what is slow, too."""

KINDS = ["os.system", "exec", "setstate", "new", "nested"]


def attack_deepspeed(attack: Attack, stage: int) -> None:
    """Folders that DeepSpeed saved."""
    good = attack.folder / f"zero{stage}.ckpt"
    first = trainer(DeepSpeedStrategy(stage=stage), max_epochs=1)
    first.fit(Model(), Data())
    first.save_checkpoint(good)
    version = good / (good / "latest").read_text()
    poisoned = {}
    names = sorted(f"{version.name}/{path.name}" for path in version.glob("*.pt"))
    for label, folder, file, evil in copies(attack, good, names, KINDS[: 5 if stage == 2 else 2]):
        content = torch.load(file, weights_only=False)
        torch.save({**content, "evil": evil}, file)
        forge_manifest(folder)
        poisoned[label] = folder
    for label, folder, file, _ in copies(attack, good, names, list(HARDEST), "-script"):
        kind = label.partition(" in ")[0]
        file.write_bytes(attack.program(kind))
        forge_manifest(folder)
        poisoned[f"TorchScript, {label}"] = folder
    output = attack.folder / "out.ckpt"
    attack.run(
        {
            f"ZeRO-{stage}, Trainer.fit": lambda path: trainer(DeepSpeedStrategy(stage=stage)).fit(
                Model(), Data(), ckpt_path=path
            ),
            f"ZeRO-{stage}, consolidate": lambda path: consolidate(path, output),
        },
        good,
        poisoned,
    )
    if stage == 2:
        tool = partial(convert_zero_checkpoint_to_fp32_state_dict, output_file=output)
        attack.run({"convert_zero_checkpoint_to_fp32_state_dict": tool}, good, poisoned)
        attack.files -= len(poisoned)


def attack_shards(attack: Attack) -> None:
    """Folders that torch's DCP saved; FSDP, which makes them, is for eager mode."""
    good = attack.folder / "shards.ckpt"
    if vendor.is_lazy():
        groups = {"param_groups": [{"lr": 0.1, "params": ["net.0.weight"]}], "state": {}}
        save_sharded(good, {"model": Model().state_dict(), "optimizer_0": groups}, {"epoch": 1})
    else:
        first = trainer(FSDPStrategy(state_dict_type="sharded"), max_epochs=1)
        first.fit(Model(), Data())
        first.save_checkpoint(good)
    poisoned = {}
    for label, folder, file, evil in copies(attack, good, [".metadata", "meta.pt"], KINDS):
        if file.name == "meta.pt":
            torch.save({**torch.load(file, weights_only=False), "evil": evil}, file)
        else:
            metadata = pickle.loads(file.read_bytes())
            file.write_bytes(pickle.dumps(replace(metadata, version=evil)))
        forge_manifest(folder)
        poisoned[label] = folder
    for label, folder, file, evil in copies(attack, good, [".metadata"], KINDS, "-value"):
        _poison_value(file, evil)
        forge_manifest(folder)
        poisoned[f"{label}'s value"] = folder
    for label, folder, file, _ in copies(attack, good, ["meta.pt"], list(HARDEST), "-script"):
        file.write_bytes(attack.program(label.partition(" in ")[0]))
        forge_manifest(folder)
        poisoned[f"TorchScript, {label}"] = folder
    for label, folder, file, _ in copies(attack, good, [".metadata"], list(HARDEST), "-values"):
        _append_to_all(file, attack.program(label.partition(" in ")[0]))
        forge_manifest(folder)
        poisoned[f"TorchScript, {label}'s values"] = folder
    entries: dict[str, Entry] = {
        "shards, consolidate": lambda path: consolidate(path, attack.folder / "out.ckpt"),
        "shards, HPUCheckpointIO": HPUCheckpointIO().load_checkpoint,
    }
    if not vendor.is_lazy():
        entries["shards, Trainer.fit"] = lambda path: trainer(
            FSDPStrategy(state_dict_type="sharded")
        ).fit(Model(), Data(), ckpt_path=path)
    attack.run(entries, good, poisoned)


def _poison_value(file: Path, evil: Any) -> None:
    """Have a value that is no tensor be an evil one, behind all others in a file of shards."""
    metadata = pickle.loads(file.read_bytes())
    stored = metadata.state_dict_metadata
    names = [name for name, each in stored.items() if "Bytes" in type(each).__name__]
    index = next(each for each in metadata.storage_data if each.fqn == names[0])
    info = metadata.storage_data[index]
    shard = file.parent / info.relative_path
    start = shard.stat().st_size
    with shard.open("ab") as opened:
        torch.save(evil, opened)
    end = shard.stat().st_size
    metadata.storage_data[index] = replace(info, offset=start, length=end - start)
    file.write_bytes(pickle.dumps(metadata))


def _append_to_all(file: Path, content: bytes) -> None:
    """Have each value, tensors too, be something else, behind all others in its file of shards."""
    metadata = pickle.loads(file.read_bytes())
    for index, info in [*metadata.storage_data.items()]:
        shard = file.parent / info.relative_path
        place = replace(info, offset=shard.stat().st_size, length=len(content))
        metadata.storage_data[index] = place
        with shard.open("ab") as opened:
            opened.write(content)
    file.write_bytes(pickle.dumps(metadata))


def attack_torch(attack: Attack) -> None:
    """The vendor's `torch.load` of lazy mode, which trusts all files."""
    good = attack.folder / "good.ckpt"
    for kind in OBJECTS:
        path = attack.folder / f"{kind}-plain.pt"
        torch.save({"x": attack.payload(kind)}, path)
        before = attack.canaries.num_executed
        try:
            torch.load(path)
        except Exception:
            attack.attempts += 1
        if attack.canaries.num_executed > before:
            attack.faults.append(f"torch.load of {kind} RAN")
    torch.load(good)
    attack.entries.add("torch.load")
    attack.files += len(OBJECTS)


def main(folder: Path) -> None:
    """Run all of it."""
    warnings.simplefilter("ignore")
    attack = Attack(folder)
    attack_whole(attack)
    attack_torch(attack)
    attack_deepspeed(attack, 2)
    attack_deepspeed(attack, 3)
    attack_shards(attack)
    executed = attack.canaries.num_executed
    # The same files, trusted: so that it is not for another reason that nothing has run.
    for path in folder.glob("os.system-*.ckpt"):
        HPUCheckpointIO().load_checkpoint(path, weights_only=False)
    found = {
        "lightning": pl.__version__,
        "is_lazy": vendor.is_lazy(),
        "entries": sorted(attack.entries),
        "files": attack.files,
        "attempts": attack.attempts,
        "executed": executed,
        "executed_if_trusted": attack.canaries.num_executed - executed,
        "faults": attack.faults,
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
