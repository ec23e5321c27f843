from __future__ import annotations

import importlib
import pickle
import traceback

import lightning.pytorch
import lightning_gaudi.pytorch_lightning as mirror
import pytest
import pytorch_lightning
from jsonargparse import ArgumentParser
from pytorch_lightning.plugins.precision import Precision as OtherPrecision

import lightning_gaudi
from lightning_gaudi._core.mirror import translate
from tests.helpers.forked import fork_python

NAMES = [name for name in lightning_gaudi.__all__ if name.startswith(("HPU", "Single"))]
NAMES.remove("HPU_AVAILABLE")


@pytest.mark.parametrize("name", NAMES)
def test_mirror_has_each_class_in_its_own_tree(name: str) -> None:
    ours, other = getattr(lightning_gaudi, name), getattr(mirror, name)
    assert ours is not other
    assert other.__module__ == ours.__module__.replace("lightning_gaudi", mirror.__name__, 1)
    roots = {base.__module__.split(".")[0] for base in other.__mro__}
    assert roots <= {
        "builtins", "abc", "typing", "lightning_gaudi", "pytorch_lightning", "lightning_fabric",
    }  # fmt: skip


@pytest.mark.parametrize("package", [lightning_gaudi, mirror])
def test_instances_pickle(package: object) -> None:
    plugin = package.HPUPrecisionPlugin("bf16-mixed")  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(plugin))
    assert type(copy) is type(plugin)
    assert copy.precision == "bf16-mixed"


def test_class_path_in_yaml_names_a_mirrored_class() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--plugin", type=OtherPrecision)
    config = parser.parse_args(
        ["--plugin", f"{mirror.__name__}.HPUPrecisionPlugin", "--plugin.precision", "bf16-true"]
    )
    plugin = parser.instantiate(config).plugin
    assert isinstance(plugin, mirror.HPUPrecisionPlugin)
    assert plugin.precision == "bf16-true"


def test_traceback_shows_the_real_file_and_line() -> None:
    with pytest.raises(Exception, match="64-true") as raised:
        mirror.HPUPrecisionPlugin("64-true")
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (
        frame.filename
        == importlib.import_module("lightning_gaudi.fabric.precision.plugin").__file__
    )
    assert frame.line is not None
    assert frame.line.startswith("raise MisconfigurationException(")


def test_the_families_do_not_load_each_other() -> None:
    source = """
        import {ours}.strategies.single, {ours}.checkpoint, {ours}.fabric.strategies.selection, sys
        roots = {{name.split(".")[0] for name in sys.modules}}
        assert "{other}" not in roots and "{ours}.strategies.single" in sys.modules
        """
    fork_python(source.format(ours="lightning_gaudi", other="pytorch_lightning"))
    fork_python(source.format(ours="lightning_gaudi.pytorch_lightning", other="lightning"))


def test_replaced_names_keep_their_length() -> None:
    source = "import lightning.pytorch as pl\nfrom lightning.fabric.plugins import CheckpointIO\n"
    translated = translate(source)
    assert "lightning.pytorch" not in translated
    assert "lightning.fabric" not in translated
    assert len(translated) == len(source)


def test_shared_module_is_not_mirrored() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"Import lightning_gaudi\._core\."):
        importlib.import_module(f"{mirror.__name__}._core.vendor")


def test_each_namespace_takes_its_own_classes() -> None:
    settings = {"logger": False, "enable_checkpointing": False, "devices": 1}
    for pl, ours in ((lightning.pytorch, lightning_gaudi), (pytorch_lightning, mirror)):
        trainer = pl.Trainer(accelerator=ours.HPUAccelerator(), precision="bf16-mixed", **settings)
        assert type(trainer.strategy) is ours.SingleHPUStrategy
        assert type(trainer.precision_plugin) is ours.HPUPrecisionPlugin
        assert type(trainer.strategy.checkpoint_io) is ours.HPUCheckpointIO
