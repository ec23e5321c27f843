"""Run the tests of the recipes with each version of transformers; by hand, it takes a while.

    python scripts/check_transformers_versions.py                # oldest to newest supported
    python scripts/check_transformers_versions.py 4.57.6 5.23.0

transformers of a version, and what it requires at another version than the installed one, goes into
a folder of its own below --folder, ahead of the installed packages, and is removed again: torch and
the rest stay as they are. The table says how many tests passed of each property that depends on
transformers, and with --all of all fast tests of the recipes. What fails says why on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

_REPOSITORY = Path(__file__).resolve().parents[1]
_VERSIONS = ("4.49.0", "4.57.6", "5.0.0", "5.23.0", "5.24.0")
_TIMEOUT_S = 1800
# By column of the table, what the names of its tests contain.
_PROPERTIES = {
    "packed = unpacked": "unpacked",
    "checkpointing": "checkpointing",
    "own forward pass": "transformers",
    "export": "export",
}


def main() -> int:
    """Check every version and print the table; the status is 1 if any test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=_VERSIONS, metavar="VERSION")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "transformers")
    parser.add_argument("--tests", type=Path, default=_REPOSITORY / "tests" / "recipes")
    parser.add_argument("--all", action="store_true", help="run all fast tests, not only these")
    options = parser.parse_args()
    folder, tests = options.folder.absolute(), options.tests.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    words = _PROPERTIES | ({"all": ""} if options.all else {})
    rows = []
    for version in options.versions:
        rows.append(f"| {' | '.join(_check_version(version, folder, tests, words))} |")
        print(rows[-1], flush=True)
    columns = ["transformers", "tokenizers", *words]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    print("\n".join(rows))
    return int(any("failed" in row for row in rows))


def _check_version(version: str, folder: Path, tests: Path, words: dict[str, str]) -> list[str]:
    """The cells of one row."""
    packages = folder / f"transformers-{version}"
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(packages), str(_REPOSITORY)]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        _install(version, packages)
        source = (
            "import tokenizers, transformers as t; print(t.__version__, tokenizers.__version__)"
        )
        command = [sys.executable, "-c", source]
        found = subprocess.check_output(command, env=env, cwd=folder, text=True).split()
        if found[0] != version:
            raise RuntimeError(f"Wanted transformers {version}, but {found[0]} was imported.")
        return [*found, *_test(tests, env, folder, list(words.values()))]
    finally:
        shutil.rmtree(packages, ignore_errors=True)


def _install(version: str, packages: Path) -> None:
    """Install a version, and what it needs at other versions than those that are here."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # datasets too: a recent one does not work with the huggingface_hub of an old transformers.
    plan = [*pip, "--dry-run", "--report", "-", f"transformers=={version}", "datasets"]
    report = json.loads(subprocess.check_output(plan, text=True))
    found = [item["metadata"] for item in report["install"]]
    missing = [f"{metadata['name']}=={metadata['version']}" for metadata in found]
    if missing:
        target = ["--no-deps", "--no-cache-dir", "--target", str(packages)]
        subprocess.run([*pip, *target, *missing], check=True)


def _test(tests: Path, env: dict[str, str], folder: Path, words: list[str]) -> list[str]:
    """One cell for each word, from one run of the fast tests whose names have one of them."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(tests), "-q", "-m", "not slow", "--tb=short"]
    command += ["-p", "no:cacheprovider", "--junit-xml", str(report)]
    command += ["-k", " or ".join(words)] if all(words) else []
    try:
        result = subprocess.run(
            command,
            env=env,
            cwd=_REPOSITORY,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"failed: {_TIMEOUT_S} s are over"] * len(words)
    if result.returncode:
        print(*command, result.stdout, result.stderr, sep="\n", file=sys.stderr)
    if not report.exists():
        return [f"failed: status {result.returncode}"] * len(words)
    outcomes = _outcomes(report)
    cells = [_cell(outcomes, word) for word in words]
    if result.returncode and not any("failed" in cell for cell in cells):  # it broke off
        cells[-1] = f"failed: status {result.returncode}"
    return cells


def _outcomes(report: Path) -> list[tuple[str, str]]:
    """Name without parameters, and passed, skipped, failure or error, of each test."""
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag for child in case} & {"skipped", "failure", "error"}
        outcomes.append((str(case.get("name")).partition("[")[0], next(iter(found), "passed")))
    return outcomes


def _cell(outcomes: list[tuple[str, str]], word: str) -> str:
    """Returns how many of the tests with this word passed; none at all is a failure too."""
    found = [outcome for name, outcome in outcomes if word in name]
    passed, skipped = found.count("passed"), found.count("skipped")
    note = f", {skipped} skipped" if skipped else ""
    if not passed or passed + skipped < len(found):
        return f"failed: {len(found) - passed - skipped} of {len(found)}{note}"
    return f"{passed} ok{note}"


if __name__ == "__main__":
    sys.exit(main())
