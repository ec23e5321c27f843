"""scripts/test_gaudi.py: what `make test-gaudi` runs, here on simulated cards or on none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lightning_gaudi.simulator.settings import RELEASE, RELEASES, read_release
from tests.helpers.process import run

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "test_gaudi.py")
NO_SIMULATOR = {"LIGHTNING_GAUDI_SIMULATE": None}
NO_SEVERAL = "--ignore=tests/contract/several_cards"
ONE_CARD = (NO_SEVERAL, "-m", "not slow")
SEVERAL_CARDS = ("--ignore=tests/contract/one_card", "--ignore=tests/contract/other_trainers")


def test_a_machine_without_the_vendors_package_is_refused() -> None:
    result = run([sys.executable, SCRIPT], env=NO_SIMULATOR, check=False)
    assert result.returncode == 2
    assert "no Gaudi environment here" in result.stderr
    assert "has no package 'habana_frameworks'" in result.stderr
    assert "`make test`" in result.stderr
    assert result.stdout == ""


def test_a_server_without_a_card_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "habana_frameworks" / "torch"
    for module in ("hpu/metrics", "utils/internal"):
        (package / module).mkdir(parents=True)
        (package / module / "__init__.py").touch()
    (package / "hpu" / "__init__.py").write_text("def device_count(): return 0")
    (package / "utils" / "__init__.py").touch()
    (package / "__init__.py").write_text("from . import hpu, utils")
    env = {**NO_SIMULATOR, "PYTHONPATH": str(tmp_path)}
    result = run([sys.executable, SCRIPT], env=env, check=False)
    assert result.returncode == 2
    assert "no Gaudi here: habana_frameworks.torch is installed, but its driver" in result.stderr


def _run_simulated(
    report: Path, *args: str, release: str | None = None, verify: bool = False
) -> str:
    command = [sys.executable, SCRIPT, "--simulator", "--report", str(report), *args]
    command += [] if verify else ["--skip-verify"]
    env = {
        "HABANA_LOGS": "/tmp/logs",
        "HABANA_API_TOKEN": "very-private",
        "AWS_SECRET_ACCESS_KEY": "very-private",
        RELEASE: release,
    }
    run(command, env={**NO_SIMULATOR, **env}, timeout=880)
    return report.read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one card in lazy mode; in eager mode this suite runs tests/contract itself."""
    path = tmp_path_factory.mktemp("gaudi") / "report.txt"
    return _run_simulated(path, "--mode=lazy", *ONE_CARD)


def test_contract_holds_in_lazy_mode(report: str) -> None:
    assert "lazy mode: passed" in report
    assert "needs lazy mode" not in report
    assert "several_cards" not in report


def test_other_trainers_work_in_lazy_mode(tmp_path: Path) -> None:
    report = _run_simulated(tmp_path / "report.txt", "--mode=lazy", NO_SEVERAL, "-m", "slow")
    assert "lazy mode: passed" in report
    assert re.search(r"\d passed", report)


@pytest.mark.timeout(900)
def test_contract_of_several_cards_holds_in_lazy_mode(tmp_path: Path) -> None:
    report = _run_simulated(tmp_path / "report.txt", "--mode=lazy", *SEVERAL_CARDS)
    assert "lazy mode: passed" in report


@pytest.mark.parametrize("key", [key for key in RELEASES if key != read_release().key])
def test_contract_holds_in_older_releases(key: str, tmp_path: Path) -> None:
    """In both modes; of the newest, the default, the tests above do."""
    report = _run_simulated(tmp_path / "report.txt", *ONE_CARD, release=key)
    assert "eager mode: passed" in report
    assert "lazy mode: passed" in report


@pytest.mark.parametrize("key", [key for key in RELEASES if key != read_release().key])
@pytest.mark.timeout(900)
def test_contract_of_several_cards_holds_in_older_releases(key: str, tmp_path: Path) -> None:
    report = _run_simulated(tmp_path / "report.txt", "--mode=eager", *SEVERAL_CARDS, release=key)
    assert "eager mode: passed" in report


def test_one_test_alone_runs_in_both_modes(tmp_path: Path) -> None:
    report = _run_simulated(
        tmp_path / "report.txt",
        *(NO_SEVERAL, "-k", "test_there_is_a_card"),
        verify=True,
    )
    assert "nothing is otherwise than the tables say" in report
    assert (tmp_path / "card.json").is_file()
    assert "eager mode: passed" in report
    assert "lazy mode: passed" in report
    assert report.count("1 passed") == 2


def test_report_tells_versions_and_no_secret(report: str) -> None:
    assert "\ntorch 2." in report
    assert "\nlightning-gaudi " in report
    assert "\nHABANA_LOGS=/tmp/logs" in report
    assert "\nHABANA_API_TOKEN=<not shown>" in report
    assert "very-private" not in report
    assert str(Path.home()) + "/" not in report
    assert re.search(r"\d passed", report)
