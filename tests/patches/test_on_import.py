from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lightning_gaudi
from lightning_gaudi import _patches
from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

TRAIN = """
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        assert batch.device.type == "hpu"
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pl.Trainer(accelerator={accelerator}, max_steps=3, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4))
print(type(trainer.strategy).__name__, trainer.strategy.root_device, trainer.global_step)
"""
TRAINED = "SingleHPUStrategy hpu:0 3"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow_but("fork_python-import torch; import pytorch_lightning as pl")
@pytest.mark.parametrize(
    ("run", "imports"),
    [
        (run_python, "import lightning as L; import torch; pl = L"),
        (fork_python, "import torch; import lightning.pytorch as pl"),
        (fork_python, "import torch; import pytorch_lightning as pl"),
    ],
)
def test_script_that_never_imports_us_trains_on_hpu(run: Run, imports: str) -> None:
    result = run(f"{imports}\n" + TRAIN.format(accelerator="'hpu'"))
    assert TRAINED in result.stdout
    assert "HPU available: True, using: 1 HPU" in result.stderr


@pytest.mark.slow_but(
    "fork_python-import lightning.pytorch as pl; import torch; import lightning_gaudi"
)
@pytest.mark.parametrize(
    ("run", "imports"),
    [
        pytest.param(
            *(run_python, "import lightning_gaudi; import lightning.pytorch as pl; import torch"),
            marks=pytest.mark.slow,
        ),
        (fork_python, "import lightning.pytorch as pl; import torch; import lightning_gaudi"),
        (fork_python, "import torch; import lightning_gaudi; import lightning.pytorch as pl"),
    ],
)
def test_explicit_import_activates_in_any_order(run: Run, imports: str) -> None:
    result = run(
        f"{imports}\n" + TRAIN.format(accelerator="'auto'"),
        env={"LIGHTNING_GAUDI_AUTOLOAD": "0"},
    )
    assert TRAINED in result.stdout


@pytest.mark.slow_but("import lightning_gaudi.strategies.single")
@pytest.mark.parametrize(
    "first",
    [
        "from lightning_gaudi import HPUAccelerator, HPUCheckpointIO",
        "import lightning_gaudi.strategies.single",
        "import lightning_gaudi.checkpoint.io",
        "import lightning_gaudi.fabric.strategies.selection",
        "from lightning_gaudi.pytorch_lightning import SingleHPUStrategy",
    ],
)
def test_our_classes_may_be_what_imports_lightning(first: str) -> None:
    pl = "pytorch_lightning" if "pytorch_lightning" in first else "lightning.pytorch"
    source = f"{first}; import torch, {pl} as pl\n" + TRAIN.format(accelerator="'hpu'")
    assert TRAINED in fork_python(source).stdout


def test_both_namespaces_can_be_used_in_one_process() -> None:
    result = fork_python(
        """
        import lightning.pytorch, pytorch_lightning
        from lightning_gaudi import HPUAccelerator
        import lightning_gaudi.pytorch_lightning as mirror
        for pl, ours in (
            (lightning.pytorch, HPUAccelerator),
            (pytorch_lightning, mirror.HPUAccelerator),
        ):
            trainer = pl.Trainer(accelerator="hpu", logger=False, enable_checkpointing=False)
            assert type(trainer.accelerator) is ours, type(trainer.accelerator)
            assert pl.accelerators.HPUAccelerator is ours
        """
    )
    assert result.returncode == 0


def test_autoload_0_leaves_everything_off() -> None:
    fork_python(
        """
        import sys, torch
        import lightning.pytorch as pl
        assert not [name for name in sys.modules if name.startswith("lightning_gaudi")]
        assert "HPUAccelerator" in str(pl.accelerators.HPUAccelerator)
        try:
            pl.accelerators.HPUAccelerator()
        except NotImplementedError:
            pass
        """,
        env={"LIGHTNING_GAUDI_AUTOLOAD": "0"},
    )


def test_activating_again_changes_nothing() -> None:
    from lightning.pytorch.trainer.connectors import accelerator_connector

    finders = list(sys.meta_path)
    wrapped = accelerator_connector._AcceleratorConnector._choose_strategy
    _patches.activate()
    assert sys.meta_path == finders
    assert accelerator_connector._AcceleratorConnector._choose_strategy is wrapped


def test_patched_modules_keep_their_own_loader() -> None:
    from lightning.pytorch.trainer.connectors import accelerator_connector

    spec = accelerator_connector.__spec__
    assert spec is not None
    assert type(spec.loader).__name__ == "SourceFileLoader"
    assert accelerator_connector.__loader__ is spec.loader


@pytest.fixture
def broken_package(tmp_path: Path) -> Path:
    (tmp_path / "lightning_gaudi").mkdir()
    (tmp_path / "lightning_gaudi" / "__init__.py").write_text("raise OSError('half installed')")
    return tmp_path


def test_torch_imports_with_one_warning_if_we_are_broken(broken_package: Path) -> None:
    result = fork_python(
        "import torch; print(torch.ones(2).sum().item())",
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        cwd=broken_package,
    )
    assert result.stdout.strip() == "2.0"
    assert result.stderr.count("could not be activated") == 1
    assert "OSError: half installed" in result.stderr


@pytest.mark.parametrize("module", ["_patches/on_import", "_patches/connector"])
def test_lightning_imports_with_one_warning_if_a_part_of_us_is_broken(
    module: str, tmp_path: Path
) -> None:
    package = Path(lightning_gaudi.__file__).parent
    copy = tmp_path / "lightning_gaudi"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("simulator", "__pycache__"))
    (copy / f"{module}.py").write_text("import no_such_dependency")
    result = fork_python(
        """
        import lightning as L
        print(type(L.Trainer(accelerator="auto", logger=False).accelerator).__name__)
        L.Fabric(accelerator="cpu")
        """,
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        cwd=tmp_path,
    )
    assert result.stdout.strip() == "CPUAccelerator"
    warned = re.findall(r": (lightning_gaudi(?:'s| could).*)", result.stderr)
    assert len(warned) == len(set(warned))
    assert all("No module named 'no_such_dependency'" in warning for warning in warned)
    names = re.findall(r"patch '([a-z-]+)' is off", result.stderr)
    off = ["precision-names", "four-bit-dtype", "fabric-connector", "trainer-connector"]
    assert names == ([] if "on_import" in module else off)
    assert warned


def test_failure_is_raised_if_the_simulator_is_asked_for(broken_package: Path) -> None:
    result = fork_python("import torch", cwd=broken_package, check=False)
    assert result.returncode != 0
    assert "OSError: half installed" in result.stderr


def test_simulator_error_reaches_the_user() -> None:
    result = fork_python("import torch", env={"LIGHTNING_GAUDI_SIMULATE": "9"}, check=False)
    assert result.returncode != 0
    assert "LIGHTNING_GAUDI_SIMULATE='9'" in result.stderr
