from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lightning_gaudi._core import vendor
from tests.helpers.forked import fork_python


def test_device_is_described() -> None:
    assert vendor.is_installed()
    assert vendor.is_available()
    assert vendor.device_count() == 8
    assert vendor.device_name() == "GAUDI2"
    assert not vendor.is_lazy()


def test_memory_stats_have_the_vendors_names() -> None:
    assert set(vendor.memory_stats()) == {
        "Limit", "InUse", "MaxInUse", "NumAllocs", "NumFrees", "ActiveAllocs", "MaxAllocSize",
        "TotalSystemAllocs", "TotalSystemFrees", "TotalActiveAllocs",
    }  # fmt: skip


def test_peak_memory_starts_anew() -> None:
    before = vendor.memory_stats()["InUse"]
    torch.zeros(2**20, dtype=torch.uint8, device="hpu")
    assert vendor.memory_stats()["MaxInUse"] >= before + 2**20
    vendor.reset_peak_memory_stats()
    stats = vendor.memory_stats()
    assert stats["MaxInUse"] == stats["InUse"]


def test_seed_and_state_of_the_generator() -> None:
    vendor.manual_seed(3)
    state = vendor.get_rng_state()
    first = torch.rand(4, device="hpu").cpu()
    vendor.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="hpu").cpu(), first)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="hpu").cpu(), first)


def test_metrics_are_dicts_and_unknown_ones_none() -> None:
    syncs = vendor.metric("host_sync")
    assert syncs is not None
    torch.ones(1, device="hpu").item()
    after = vendor.metric("host_sync")
    assert after is not None
    assert after["TotalNumber"] == syncs["TotalNumber"] + 1
    assert vendor.metric("graph_compilation") is not None
    assert vendor.metric("no_such_metric") is None


def test_mark_step_and_synchronize_do_nothing_harmful_in_eager_mode() -> None:
    total = torch.ones(4, device="hpu") + 1
    vendor.mark_step()
    vendor.synchronize()
    assert total.sum().item() == 8


def test_nothing_is_thrown_without_the_vendors_package() -> None:
    result = fork_python(
        """
        from lightning_gaudi import vendor
        print(vendor.is_available(), vendor.device_count(), vendor.unavailable_reason())
        """,
        env={"LIGHTNING_GAUDI_SIMULATE": None},
    )
    assert result.stdout.strip() == (
        "False 0 the vendor's package habana_frameworks.torch is not installed"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('libSynapse.so: no such file')", "OSError: libSynapse.so: no such file"),
        ("from . import hpu, utils", "its driver reports no card"),
        (
            "raise AssertionError('Upstream PyTorch 2.11.0 is not supported in Lazy mode.')",
            "Lazy mode. PT_HPU_LAZY_MODE=1 asks for lazy mode, which needs the vendor's build of "
            "torch. Set PT_HPU_LAZY_MODE=0 for eager mode. In a recipe's command write "
            "--environment.PT_HPU_LAZY_MODE=0, and --model.engine=auto",
        ),
        ("raise AssertionError('Compile-time version differs.')", "(AssertionError: Compile-time"),
    ],
    ids=["broken", "no-card", "lazy-mode-refused", "another-assertion"],
)
def test_a_vendor_package_without_a_card_is_explained(
    source: str, reason: str, tmp_path: Path
) -> None:
    package = tmp_path / "habana_frameworks" / "torch"
    for module in ("hpu/metrics", "utils/internal"):
        (package / module).mkdir(parents=True)
        (package / module / "__init__.py").touch()
    (package / "hpu" / "__init__.py").write_text("def device_count(): return 0")
    (package / "utils" / "__init__.py").touch()
    (package / "__init__.py").write_text(source)
    result = fork_python(
        """
        import lightning.pytorch as pl
        pl.Trainer(accelerator="hpu", logger=False)
        """,
        env={
            "LIGHTNING_GAUDI_SIMULATE": None,
            "PT_HPU_LAZY_MODE": "1",
            "PYTHONPATH": str(tmp_path),
        },
        check=False,
    )
    assert reason in result.stderr.strip().splitlines()[-1]


def test_seed_set_before_the_vendor_was_there_reaches_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4, device="hpu").cpu()
    torch.default_generator.manual_seed(5)  # as before the vendor wraps torch.manual_seed
    monkeypatch.setattr(vendor, "_seed_is_due", True)
    vendor.seed_if_due()
    assert torch.equal(torch.rand(4, device="hpu").cpu(), expected)
    vendor.seed_if_due()
    assert not torch.equal(torch.rand(4, device="hpu").cpu(), expected)


def test_fused_adamw_is_the_vendors() -> None:
    assert vendor.fused_adamw().__module__.startswith("habana_frameworks.torch.hpex")
    assert isinstance(sys.modules["habana_frameworks.torch"], ModuleType)


def test_processes_without_an_hpu_connect_as_without_the_vendors_package(tmp_path: Path) -> None:
    result = fork_python(
        """
        import sys
        import lightning, torch
        dist = torch.distributed
        assert "habana_frameworks.torch" in sys.modules
        arguments = dict(init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
        try:
            dist.init_process_group("gloo", device_id=torch.device("hpu", 0), **arguments)
        except TypeError as error:
            print(error)
        dist.init_process_group("gloo", device_id=None, **arguments)
        print(dist.get_backend())
        """,
        str(tmp_path / "store"),
        env={"LIGHTNING_GAUDI_SIMULATE_RELEASE": "1.20"},  # later ones take a device
    )
    refused, backend = result.stdout.splitlines()
    assert "unexpected keyword argument 'device_id'" in refused
    assert backend == "gloo"
