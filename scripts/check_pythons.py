"""Run the fast tests with each Python that the package promises; by hand, it takes an hour.

    python scripts/check_pythons.py python3.10 python3.12 python3.13
    python scripts/check_pythons.py --newest python3.11

Each gets a copy of the tracked files and an environment of its own below --folder, as `make setup`
makes it, and is removed again. With --newest the packages are the newest that our ranges admit, and
not those of scripts/constraints.txt; torch stays, since a newer one brings gigabytes. The table
says how many tests passed; what fails says why on stderr.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 7200
_TESTS = ("-m", "pytest", "tests", "-m", "not slow", "-q", "-n", "2", "--dist", "loadfile")
_EXTRAS = "recipes,diffusion,deepspeed,dev"


def main() -> int:
    """Checks every Python and prints the table; the status is 1 if any test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="a command, or a path")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pythons")
    parser.add_argument("--newest", action="store_true", help="the newest packages of our ranges")
    options = parser.parse_args()
    rows = []
    for number, python in enumerate(options.pythons):
        checkout = options.folder.absolute() / str(number)
        try:
            rows.append(_check(python, checkout, is_newest=options.newest))
        except subprocess.CalledProcessError as error:  # the others are tried all the same
            rows.append(f"| {python} | | failed: {error} |")
        finally:
            shutil.rmtree(checkout, ignore_errors=True)
        print(rows[-1], flush=True)
    print("\n| Python | transformers | tests |\n|---|---|---|")
    print("\n".join(rows))
    return int(any("failed" in row for row in rows))


def _check(python: str, checkout: Path, *, is_newest: bool) -> str:
    """Returns one row of the table."""
    checkout.mkdir(parents=True)
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=_REPOSITORY, text=True)
    for name in filter(None, files.split("\0")):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_REPOSITORY / name, target, follow_symlinks=False)
    for arguments in (("init", "-q"), ("add", "-A")):  # tests ask what is tracked
        subprocess.run(["git", *arguments], cwd=checkout, check=True)
    env = os.environ | {"PYTHON": python, "TORCH_EXTENSIONS_DIR": str(checkout / "extensions")}
    subprocess.run(["scripts/setup.sh"], cwd=checkout, env=env, check=True)
    own = str(checkout / ".venv" / "bin" / "python")
    if is_newest:
        torch = subprocess.check_output(
            [own, "-c", "import torch; print(torch.__version__.partition('+')[0])"], text=True
        )
        pip = [own, "-m", "pip", "install", "-q", "--upgrade", "--upgrade-strategy", "eager"]
        pip += ["--config-settings", "editable_mode=compat"]  # as `make setup`: tests are imported
        subprocess.run(
            [*pip, f"torch=={torch.strip()}", "-e", f".[{_EXTRAS}]"], cwd=checkout, check=True
        )
    source = "import platform, transformers as t; print(platform.python_version(), t.__version__)"
    found = subprocess.check_output([own, "-c", source], text=True).split()
    try:
        result = subprocess.run(
            [own, *_TESTS],
            cwd=checkout,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"| {' | '.join(found)} | failed: {_TIMEOUT_S} s are over |"
    if result.returncode:
        print(result.stdout, file=sys.stderr)
    last = re.findall(r"\d+ (?:passed|failed|errors?|skipped|xfailed)", result.stdout[-2000:])
    return f"| {' | '.join(found)} | {', '.join(last) or f'failed: {result.returncode}'} |"


if __name__ == "__main__":
    sys.exit(main())
