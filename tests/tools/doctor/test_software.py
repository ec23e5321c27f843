"""Packages, against the releases, the tested pairs and the security floor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_gaudi import releases
from lightning_gaudi.tools.doctor import software
from lightning_gaudi.tools.doctor.findings import Finding, Level
from tests.helpers.recorded import Recorded, gaudi2_server, laptop

ROOT = Path(__file__).parents[3]


def _one(check: Callable[[Recorded], Iterator[Finding]], machine: Recorded) -> Finding:
    (found,) = check(machine)
    return found


def _torch(version: str, software: str = "1.23.0.695", **environment: str) -> Finding:
    machine = gaudi2_server()
    machine.packages |= {"torch": version, "habana-torch-plugin": software}
    machine.environment = environment
    return _one(_check_torch, machine)


def _check_torch(machine: Recorded) -> Iterator[Finding]:
    return software.check_torch(machine)


def test_the_table_of_releases_is_the_one_of_the_documentation() -> None:
    text = (ROOT / "docs" / "how-to" / "on-a-gaudi.md").read_text()
    rows = re.findall(r"^\| (1\.\d+(?:\.\d+)?) \| (\d+\.\d+\.\d+) \|", text, re.MULTILINE)
    assert rows == [(each.software, each.torch) for each in releases.RELEASES]


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("1.24.0.695", "1.24.0"),
        ("1.24.1.482", "1.24.1"),
        ("1.24.2", "1.24.1"),  # a patch that came later
        ("1.23.3-2eae87a", "1.23"),
        ("1.19.2", None),
        ("1.25.0", None),
    ],
)
def test_a_version_is_of_a_release(version: str, release: str | None) -> None:
    found = releases.find_release(version)
    assert (found and found.software) == release


@pytest.mark.parametrize(
    "version", ["2.9.0+hpu.1.23.0.695", "2.9.0a0+git4952fce", "2.9.0+cpu", "2.9.0"]
)
def test_both_builds_of_the_releases_torch_are_fine(version: str) -> None:
    assert _torch(version).level is Level.OK


def test_another_torch_than_the_releases_is_an_error_with_both() -> None:
    found = _torch("2.13.0+cpu")
    assert found.level is Level.ERROR
    assert "torch 2.13.0+cpu with Gaudi software 1.23.0.695" in found.found
    assert "built for torch 2.9.0" in found.found


def test_a_torch_for_gpus_is_an_error_with_the_one_to_install() -> None:
    found = _torch("2.9.0+cu128")
    assert found.level is Level.ERROR
    assert "torch==2.9.0 --index-url https://download.pytorch.org/whl/cpu" in found.fix


def test_lazy_mode_refuses_stock_torch() -> None:
    assert "lazy mode" in _torch("2.9.0+cpu", PT_HPU_LAZY_MODE="1").found
    assert _torch("2.9.0+hpu.1.23.0.695", PT_HPU_LAZY_MODE="1").level is Level.OK


def test_torch_and_software_older_than_what_is_supported() -> None:
    assert "2.5.1a0+git1 is not supported: >=2.6" in _torch("2.5.1a0+git1", "1.19.0.561").found
    assert "older than 1.20" in _torch("2.6.0", "1.19.0.561").found


def test_software_newer_than_what_is_known_is_a_note() -> None:
    found = _torch("2.12.0", "1.25.0.1")
    assert found.level is Level.NOTE
    assert "1.24.1 is the newest release that is known" in found.found


def test_no_torch_is_an_error() -> None:
    machine = laptop()
    del machine.packages["torch"]
    assert _one(software.check_torch, machine).level is Level.ERROR


def test_simulated_cards_take_any_supported_torch() -> None:
    machine = laptop()
    machine.environment = {"LIGHTNING_GAUDI_SIMULATE": "1"}
    assert _one(software.check_torch, machine).level is Level.OK


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("2.6.6", Level.OK, "2.6.6"),
        ("2.6.5", Level.WARNING, "CVE-2026-58659"),
        ("2.5.6", Level.WARNING, "CVE-2026-58659"),
        ("2.6.3", Level.ERROR, "was malware"),
        ("2.5.5", Level.ERROR, "2.5.5 is not supported: "),
        ("2.7.0", Level.ERROR, "2.7.0 is not supported: "),
    ],
)
def test_lightning_is_supported_and_safe(version: str, level: Level, words: str) -> None:
    for name in software.LIGHTNINGS:
        machine = laptop()
        machine.packages = {name: version}
        found = _one(software.check_lightning, machine)
        assert (found.level, found.area) == (level, name)
        assert words in found.found
        assert level is Level.OK or f"pip install '{name}>=2.6.6,<2.7'" in found.fix


def test_no_lightning_is_an_error() -> None:
    machine = laptop()
    del machine.packages["lightning"]
    assert _one(software.check_lightning, machine).level is Level.ERROR


def test_lightning_habana_is_not_needed_any_more() -> None:
    machine = laptop()
    machine.packages["lightning-habana"] = "1.6.0"
    *_, found = software.check_lightning(machine)
    assert found.level is Level.WARNING
    assert "pip uninstall lightning-habana" in found.fix


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("0.19.8", Level.NOTE, "nobody is known to have run 0.19.8"),
        ("0.16.1+hpu.synapse.v1.24.0", Level.ERROR, "is not supported"),
        (None, Level.OK, "not installed"),
    ],
)
def test_deepspeed_is_held_against_the_tested_pairs(
    version: str | None, level: Level, words: str
) -> None:
    machine = gaudi2_server()
    if version:
        machine.packages["deepspeed"] = version
    found = _one(software.check_deepspeed, machine)
    assert found.level is level
    assert words in found.found


@pytest.mark.parametrize(
    ("version", "level"),
    [("4.48.0", Level.ERROR), ("4.57.6", Level.OK), ("5.24.1", Level.OK), ("5.25.0", Level.NOTE)],
)
def test_transformers_is_held_against_those_tested(version: str, level: Level) -> None:
    machine = laptop()
    machine.packages["transformers"] = version
    assert _one(software.check_transformers, machine).level is level


def test_tested_versions_of_transformers_are_the_scripts() -> None:
    script = (ROOT / "scripts" / "check_transformers_versions.py").read_text()
    versions = re.findall(r'"(\d+\.\d+\.\d+)"', script.partition("_VERSIONS = (")[2].split(")")[0])
    assert (versions[0], versions[-1]) == software.TESTED_TRANSFORMERS


def test_malware_and_the_safe_release_are_those_that_pip_is_told() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert all(f"!={version}" in project for version in software.MALWARE)
    assert f"{software.SAFE_LIGHTNING} is the first release without CVE-2026-58659" in project


def test_this_package_switched_off_is_a_warning() -> None:
    machine = laptop()
    machine.environment = {"LIGHTNING_GAUDI_AUTOLOAD": "0"}
    *_, found = software.check_python(machine)
    assert found.level is Level.WARNING
    machine.packages.pop("lightning-gaudi")
    *_, found = software.check_python(machine)
    assert "not installed but found on the path" in found.found
