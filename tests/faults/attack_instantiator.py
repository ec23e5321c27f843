"""Checkpoints that name a function to call: `python -m tests.faults.attack_instantiator FOLDER`.

Prints as JSON what was tried, and what was called. Beside any Lightning, in either mode.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.core import saving

from lightning_gaudi import vendor
from tests.faults.attack import Data, Model
from tests.helpers.malicious import Canaries
from tests.helpers.tiny import QUIET

LEGITIMATE = "lightning.pytorch.cli.instantiate_module"

NAMES: dict[str, dict[str, Any]] = {
    "a function": {"_instantiator": "tests.faults.attack_instantiator.call"},
    "a module": {"_instantiator": "tests.faults.evil_module.Evil"},
    "os.system": {"_instantiator": "os.system"},
    "exec": {"_instantiator": "builtins.exec"},
    "like ours": {"_instantiator": "lightning.pytorch.cli.instantiate_module.__call__"},
    "no text": {"_instantiator": ["os", "system"]},
    "a class": {"_instantiator": LEGITIMATE, "_class_path": "tests.faults.evil_module.Evil"},
    "another class": {"_instantiator": LEGITIMATE, "_class_path": "subprocess.Popen"},
}
"""What hyperparameters name."""

REFUSALS = (
    "its hyperparameter _instantiator=",
    "its hyperparameter _class_path=",
    "was blocked to prevent arbitrary code execution",  # Lightning's own, since 2.6.6
)


def call(cls: type, config: dict[str, Any]) -> Any:
    """What a checkpoint must not have called."""
    Path(os.environ["CANARY"], "called").touch()
    return cls()


def poisoned(folder: Path, good: dict[str, Any]) -> dict[str, tuple[Any, Path]]:
    """Files with each of `NAMES`, where Lightning looks for hyperparameters."""
    places = {
        "hyper_parameters": Model,
        "hparams": Model,
        "module_arguments": Model,
        "datamodule_hyper_parameters": Data,
    }
    found = {}
    for place, kind in places.items():
        for name, evil in NAMES.items():
            path = folder / f"{place}-{name}.ckpt".replace(" ", "-")
            torch.save({**good, place: {**good.get(place, {}), **evil}}, path)
            found[f"{name} in {place}"] = (kind, path)
    # Lightning takes pairs as well.
    path = folder / "pairs.ckpt"
    torch.save({**good, "hparams": [*NAMES["a function"].items()]}, path)
    found["a function in pairs"] = (Model, path)
    return found


def from_cli(folder: Path, *, subclass: bool) -> list[str]:
    """Whether what LightningCLI has made is made again from its checkpoint."""
    sys.modules["tests.faults.attack_instantiator"] = sys.modules[__name__]
    model = ["--model=tests.faults.attack.Model"] if subclass else []
    cli = LightningCLI(
        Model,
        run=False,
        save_config_callback=None,
        subclass_mode_model=subclass,
        trainer_defaults={"accelerator": "hpu", "devices": 1, "max_epochs": 1, **QUIET},
        args=[*model, "--model.dropout=0.25" if not subclass else "--model.init_args.dropout=0.25"],
    )
    cli.trainer.fit(cli.model, Data())
    path = folder / f"cli-{subclass}.ckpt"
    cli.trainer.save_checkpoint(path)
    hparams = torch.load(path, weights_only=True)["hyper_parameters"]
    assert hparams["_instantiator"] == LEGITIMATE, hparams
    loaded = Model.load_from_checkpoint(path)
    good = loaded.hparams["dropout"] == 0.25 and type(loaded) is Model
    return [] if good else [f"LightningCLI's own, subclass={subclass}: {loaded.hparams}"]


def main(folder: Path) -> None:
    """Run all of it."""
    warnings.simplefilter("ignore")
    canaries = Canaries(folder / "ran")
    os.environ["CANARY"] = str(folder / "ran")
    faults = [*from_cli(folder, subclass=False), *from_cli(folder, subclass=True)]
    good = torch.load(folder / "cli-False.ckpt", weights_only=True)
    good["hyper_parameters"] = {"dropout": 0.1}
    files = poisoned(folder, good)
    for label, (kind, path) in files.items():
        try:
            kind.load_from_checkpoint(path)
        except Exception as error:
            if not any(each in str(error) for each in REFUSALS):
                faults.append(f"{label} raised {type(error).__name__}: {error}"[:300])
        else:
            faults.append(f"{label} was loaded")
    executed, imported = canaries.num_executed, "tests.faults.evil_module" in sys.modules
    # The same file, trusted: so that it is not for another reason that nothing was called.
    os.environ["LIGHTNING_GAUDI_RELIABILITY"] = "trust_checkpoints=on"
    if not hasattr(saving, "_ALLOWED_INSTANTIATORS"):
        Model.load_from_checkpoint(files["a function in hyper_parameters"][1])
    found = {
        "lightning": pl.__version__,
        "is_lazy": vendor.is_lazy(),
        "files": len(files),
        "executed": executed,
        "imported": imported,
        "executed_if_trusted": canaries.num_executed - executed,
        "faults": faults,
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
