"""The environment: what is missing, misspelt, in conflict or harmful."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_gaudi.tools.doctor import variables
from lightning_gaudi.tools.doctor.findings import Finding, Level
from tests.helpers.recorded import ENVIRONMENT, Recorded, gaudi2_server, laptop

ROOT = Path(__file__).parents[3]
Check = Callable[[Recorded], Iterator[Finding]]


def _found(check: Check, environment: dict[str, str]) -> list[Finding]:
    machine = laptop()
    machine.environment = environment
    return list(check(machine))


def test_an_empty_environment_and_the_vendors_have_nothing_wrong() -> None:
    checks: tuple[Check, ...] = (
        *(variables.check_installed, variables.check_names, variables.check_mode),
        *(variables.check_harm, variables.check_recipe_cache, variables.check_scale_out),
    )
    assert not [each for check in checks for each in check(laptop())]
    assert not [each for check in checks for each in check(gaudi2_server())]


def test_what_the_installation_sets_must_reach_the_process() -> None:
    machine = gaudi2_server()
    machine.environment = {
        name: value for name, value in ENVIRONMENT.items() if not name.startswith("GC_")
    }
    (found,) = variables.check_installed(machine)
    assert found.level is Level.ERROR
    assert found.found.startswith("GC_KERNEL_PATH not set")
    assert "/etc/profile.d/habanalabs" in found.fix


def test_what_it_names_must_be_there() -> None:
    machine = gaudi2_server()
    own = "/home/ann/kernels.so"
    machine.environment = ENVIRONMENT | {"GC_KERNEL_PATH": f"{own}:{ENVIRONMENT['GC_KERNEL_PATH']}"}
    (found,) = variables.check_installed(machine)
    assert found.found == f"GC_KERNEL_PATH={own}, which does not exist"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PT_HPU_LAZYMODE", "PT_HPU_LAZY_MODE"),
        ("HABANA_VISIBLE_MODULE", "HABANA_VISIBLE_MODULES"),
        ("LIGHTNING_GAUDI_SIMULATED", "LIGHTNING_GAUDI_SIMULATE"),
        ("LIGHTNING_GAUDI_FUSED_ATTN", "LIGHTNING_GAUDI_FUSED_ATTENTION"),
    ],
)
def test_a_name_that_nothing_reads_is_a_warning_with_the_nearest(name: str, meant: str) -> None:
    (found,) = _found(variables.check_names, {name: "1"})
    assert found.level is Level.WARNING
    assert found.fix == f"Did you mean {meant}?"


def test_names_that_mean_something_are_left_alone() -> None:
    names = ["PT_HPU_LAZY_MODE", "HABANA_PROFILE", "PT_SOMETHING_ELSE", *variables.OURS]
    assert not _found(variables.check_names, dict.fromkeys(names, "1"))


def test_our_variables_are_those_that_our_sources_name() -> None:
    sources = [*(ROOT / "lightning_gaudi").rglob("*.py"), ROOT / "_lightning_gaudi_autoload.py"]
    pattern = re.compile(r"(?<![A-Z_])LIGHTNING_GAUDI(?:_[A-Z]+)+(?![A-Z_*])")
    named = {name for path in sources for name in pattern.findall(path.read_text())}
    assert named | {"LIGHTNING_GAUDI_TEST_ON"} == set(variables.OURS)


def test_a_mode_that_is_none_and_one_that_excludes_the_other() -> None:
    (found,) = _found(variables.check_mode, {"PT_HPU_LAZY_MODE": "2"})
    assert found.found == "PT_HPU_LAZY_MODE=2 is neither"
    both = {"PT_HPU_LAZY_MODE": "1", "LIGHTNING_GAUDI_COMPILE": "regions"}
    (found,) = _found(variables.check_mode, both)
    assert found.level is Level.WARNING
    assert "LIGHTNING_GAUDI_COMPILE=regions" in found.found
    assert not _found(variables.check_mode, both | {"LIGHTNING_GAUDI_COMPILE": "none"})
    eager = {"PT_HPU_LAZY_MODE": "0", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"}
    assert _found(variables.check_mode, eager)[0].level is Level.NOTE


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("PT_COMPILE_ONLY_MODE", "1", Level.ERROR),
        ("HABANA_RUNTIME_ERROR", "no device found", Level.ERROR),
        ("PT_HPU_GPU_MIGRATION", "1", Level.WARNING),
        ("HLS_MODULE_ID", "3", Level.WARNING),
        ("DS_ACCELERATOR", "cuda", Level.ERROR),
        ("PT_HPU_AUTOCAST_FP32_OPS_LIST", "/nowhere/ops.txt", Level.ERROR),
    ],
)
def test_what_does_harm_is_named(name: str, value: str, level: Level) -> None:
    (found,) = _found(variables.check_harm, {name: value})
    assert found.level is level
    assert name in found.found
    assert found.fix


def test_a_module_of_a_rank_is_its_own() -> None:
    rank = {"HLS_MODULE_ID": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    assert not _found(variables.check_harm, rank)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("/tmp/recipes,false,1024", Level.OK),
        ("/tmp/recipes,false,1024,false", Level.OK),
        ("/tmp/recipes", Level.ERROR),
        ("/tmp/recipes,no,1024", Level.ERROR),
        ("/shared/recipes,false,1024", Level.WARNING),
    ],
)
def test_the_recipe_cache_is_on_a_disk_of_this_server(value: str, level: Level) -> None:
    machine = laptop()
    machine.files["/proc/self/mounts"] += "nas:/x /shared nfs4 rw 0 0\n"
    machine.environment = {"PT_HPU_RECIPE_CACHE_CONFIG": value}
    (found,) = variables.check_recipe_cache(machine)
    assert found.level is level


def test_direct_transfers_need_safe_forks() -> None:
    asked = {"FI_EFA_USE_DEVICE_RDMA": "1"}
    (found,) = _found(variables.check_scale_out, asked)
    assert found.level is Level.WARNING
    assert not _found(variables.check_scale_out, asked | {"RDMAV_FORK_SAFE": "1"})
    assert _found(variables.check_scale_out, {"HCCL_OVER_OFI": "1"})[0].level is Level.NOTE


def test_a_report_shows_settings_without_secrets_and_names() -> None:
    machine = laptop()
    machine.environment = {
        "HOME": "/home/ann",
        "PYTHONPATH": "/home/ann/project",
        "PT_HPU_LAZY_MODE": "1",
        "HABANA_API_KEY": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "PATH": "/usr/bin",
    }
    assert variables.settings(machine) == {
        "HABANA_API_KEY": "<not shown>",
        "PT_HPU_LAZY_MODE": "1",
        "PYTHONPATH": "~/project",
    }
