"""Runs benchmarks, and writes their results, the page of them and its plots."""

from __future__ import annotations

import argparse
import datetime
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.harness import machine, report, results
from benchmarks.harness.catalog import BENCHMARKS, LAZY, Benchmark
from benchmarks.harness.results import Result, Run
from benchmarks.harness.rows import Row, table

_LAST_LINES = 30
_EPILOG = """\
exit status: 0 all was measured and keeps its limits, 1 a figure misses its limit, 2 something
was not measured. With --quick nothing is held to a limit."""


class NotMeasuredError(Exception):
    """Says that a benchmark failed, with the last lines of its output."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what the simulated card, the plugin and the recipes cost or gain.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="where to write (default: benchmarks/results; with --quick a new folder in TMPDIR)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="three rounds: to see that it works, not for figures"
    )
    options = parser.parse_args(args)
    for name in options.names:
        if name not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, 1) or sorted(BENCHMARKS)
            parser.error(f"there is no benchmark {name!r}; choose from: {', '.join(near)}")
    if options.list:
        print("\n".join(f"{each.name:20} {each.about}" for each in BENCHMARKS.values()))
        return 0
    folder = _folder(options.results, options.quick, parser)
    names = options.names or list(BENCHMARKS)
    status = _run_all([BENCHMARKS[name] for name in names], folder, options.quick)
    report.write(folder)
    print(f"Results: {folder / 'README.md'}")
    return status


def _folder(asked: Path | None, is_quick: bool, parser: argparse.ArgumentParser) -> Path:
    if is_quick and asked is None:
        return Path(tempfile.mkdtemp(prefix="benchmarks_"))
    folder = asked or results.FOLDER
    if is_quick and folder.resolve() == results.FOLDER:
        parser.error("--quick measures too little for benchmarks/results; name another --results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run_all(benchmarks: Sequence[Benchmark], folder: Path, is_quick: bool) -> int:
    if (load := machine.load_average()) > machine.BUSY_SHARE * machine.num_cores():
        _warn(
            f"the load average is {load:.2f} on {machine.num_cores()} cores. If something else "
            "runs here, wait for its end: figures of a busy machine are doubtful."
        )
    found, has_failed = [], False
    for benchmark in benchmarks:
        print(f"{benchmark.name}: {benchmark.about}", flush=True)
        try:
            result = Result(
                benchmark.name, [_run(benchmark, mode, is_quick) for mode in benchmark.modes]
            )
        except NotMeasuredError as error:
            _warn(str(error))
            has_failed = True
            continue
        result.write(folder)
        found.append(result)
        print(f"{table(result.rows())}\n", flush=True)
    if has_failed:
        return 2
    return 0 if is_quick or results.is_kept(found) else 1


def _run(benchmark: Benchmark, mode: str, is_quick: bool) -> Run:
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    load, watch, begin = machine.load_average(), machine.OthersWatch(), perf_counter()
    rows = _measure(benchmark, mode, is_quick)
    others = watch.num_cores()
    run = Run(
        mode=mode,
        date=date,
        seconds=round(perf_counter() - begin, 1),
        load_average=round(load, 2),
        other_cores=None if others is None else round(others, 2),
        is_busy=machine.is_busy(others),
        is_quick=is_quick,
        machine=machine.describe(),
        versions=machine.versions(),
        rows=rows,
    )
    if run.is_busy:
        _warn(
            f"others used {run.other_cores} of {run.machine['cores']} cores while {benchmark.name} "
            "was measured, which the result says. Measure it again when the machine is idle."
        )
    return run


def _measure(benchmark: Benchmark, mode: str, is_quick: bool) -> list[Row]:
    """Runs a benchmark in a new process, and returns the rows that it writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        worker = [sys.executable, "-m", "benchmarks.harness.worker", benchmark.name, str(file)]
        worker += ["--quick"] if is_quick else []
        if benchmark.num_cards:
            cards = ("--cards", str(benchmark.num_cards))
            simulate = [
                sys.executable,
                "-m",
                "lightning_gaudi.tools.command_line",
                "simulate",
                *cards,
            ]
            worker = [*simulate, "--", *worker]
        done = subprocess.run(
            worker,
            cwd=machine.ROOT,
            env=os.environ | {"PT_HPU_LAZY_MODE": "1" if mode == LAZY else "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode or not file.exists():
            said = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
            raise NotMeasuredError(
                f"{benchmark.name} ended with status {done.returncode} in {mode} mode:\n{said}"
            )
        return [Row.from_json(row) for row in json.loads(file.read_text())]


def _warn(message: str) -> None:
    print(f"benchmarks: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
