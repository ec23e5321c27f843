"""What importing costs, without a clock: the modules that are not imported."""

from __future__ import annotations

from tests.helpers.process import run_python

OURS = {
    "_lightning_gaudi_autoload",
    "lightning_gaudi",
    "lightning_gaudi.activation",
    "lightning_gaudi._core",
    "lightning_gaudi._core.mirror",
}

UNUSED = {"LIGHTNING_GAUDI_SIMULATE": None}


def _imported(statement: str) -> set[str]:
    result = run_python(f"{statement}; import sys; print(' '.join(sys.modules))", env=UNUSED)
    return set(result.stdout.split())


def test_importing_torch_loads_three_small_modules_of_ours() -> None:
    modules = _imported("import torch")
    ours = {name for name in modules if "lightning_gaudi" in name and "editable" not in name}
    assert ours == OURS
    roots = {name.split(".")[0] for name in modules}
    assert roots.isdisjoint({"lightning", "pytorch_lightning", "habana_frameworks", "_hpu_sim"})


def test_importing_us_loads_the_standard_library_only() -> None:
    modules = _imported("import lightning_gaudi")
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
