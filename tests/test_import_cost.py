"""What importing costs, without a clock: the modules that are not imported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

Run = Callable[..., subprocess.CompletedProcess[str]]

OURS = {
    "_lightning_gaudi_autoload",
    "lightning_gaudi",
    "lightning_gaudi._core",
    "lightning_gaudi._core.mirror",
    "lightning_gaudi._patches",
    "lightning_gaudi._patches.on_import",
    "lightning_gaudi._patches.register",
    "lightning_gaudi.strategy_table",
}

UNUSED: dict[str, str | None] = {"LIGHTNING_GAUDI_SIMULATE": None}


def _imported(
    statement: str, env: dict[str, str | None] = UNUSED, run: Run = fork_python
) -> set[str]:
    """What is imported then; the fork has torch, and what Lightning imports of others, before."""
    result = run(f"{statement}; import sys; print(' '.join(sys.modules))", env=env)
    return set(result.stdout.split())


def test_importing_torch_loads_a_few_small_modules_of_ours() -> None:
    modules = _imported("import torch", run=run_python)
    ours = {name for name in modules if "lightning_gaudi" in name and "editable" not in name}
    assert ours == OURS
    roots = {name.split(".")[0] for name in modules}
    assert roots.isdisjoint({"lightning", "pytorch_lightning", "habana_frameworks", "_hpu_sim"})


def test_importing_us_loads_the_standard_library_only() -> None:
    modules = _imported("import lightning_gaudi", run=run_python)
    roots = {name.split(".")[0] for name in modules}
    assert roots.isdisjoint({"torch", "numpy", "lightning", "pytorch_lightning"})
    assert "dataclasses" not in modules


def test_a_cpu_run_never_loads_the_vendor_or_the_simulator() -> None:
    modules = _imported(
        "import lightning.pytorch as pl; pl.Trainer(accelerator='cpu', logger=False)"
    )
    roots = {name.split(".")[0] for name in modules}
    assert roots.isdisjoint({"habana_frameworks", "_hpu_sim"})
    assert "lightning_gaudi.simulator" not in modules


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_importing_lightning_loads_what_patches_it_and_nothing_of_an_hpu(package: str) -> None:
    """No strategy, no accelerator, and nothing that torch and Lightning do not load themselves."""
    ours = {name for name in _imported(f"import {package}") if "lightning_gaudi" in name}
    assert len({name for name in ours if "editable" not in name}) <= 12
    rooms = {name.split(".")[1] for name in ours if name.startswith("lightning_gaudi.")}
    assert rooms == {"_core", "_patches", "strategy_table"}


def test_a_form_is_imported_when_its_strategy_is_asked_for() -> None:
    modules = _imported(
        "import lightning.pytorch as pl; pl.Trainer(accelerator='hpu', devices=2, logger=False)",
        env={"LIGHTNING_GAUDI_SIMULATE": "2"},
    )
    assert "lightning_gaudi.strategies.ddp" in modules
    others = {"deepspeed", "fsdp", "model_parallel", "sharded"}
    assert modules.isdisjoint({f"lightning_gaudi.strategies.{name}" for name in others})
    assert not [name for name in modules if "distributed.checkpoint" in name]


def test_nothing_of_the_extras_is_needed_for_one_card() -> None:
    """A plain installation brings neither DeepSpeed nor what comes with it."""
    fork_python(
        """
        import sys, warnings
        from importlib.abc import MetaPathFinder

        class Absent(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.split(".")[0] in ("deepspeed", "ninja", "psutil"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Absent())
        warnings.simplefilter("error", RuntimeWarning)
        import lightning.pytorch as pl
        strategy = pl.Trainer(accelerator="hpu", devices=1, logger=False).strategy
        assert type(strategy).__name__ == "SingleHPUStrategy"
        """
    )
