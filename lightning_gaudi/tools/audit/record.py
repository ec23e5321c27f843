"""Defines the record that a process writes of itself as JSON: plain numbers and names."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lightning_gaudi._core.decoding import decode
from lightning_gaudi._patches.on_import import TOOL
from lightning_gaudi.simulator.settings import RULES
from lightning_gaudi.untrusted import parse_json, printable

FOLDER = "LIGHTNING_GAUDI_AUDIT"
"""The environment variable that names the folder for the records."""
STEPS = "LIGHTNING_GAUDI_AUDIT_STEPS"
"""The environment variable with the number of steps after which the program is ended."""
WARM_UP = 3
"""The number of steps that are shown and not judged.

They set up: states of the optimizer, first graphs.
"""
_PREFIX = "record-"
_MAX_DETAILS = 8
_MAX_BYTES = 2**28
_MAX_RANKS = 2**16


def environment(folder: str, num_steps: int) -> dict[str, str]:
    """Returns the variables that make a program record itself.

    Args:
        folder: Where its processes write their records.
        num_steps: After how many steps it is ended.
    """
    tool = "lightning_gaudi.tools.audit.process"
    return {RULES: "warn", TOOL: tool, FOLDER: folder, STEPS: str(num_steps)}


@dataclass
class Step:
    """The training work that the card was given from the end of one step to the end of the next.

    Validation and saving do not count.
    """

    launches: int = 0
    """Operators of eager mode, compiled graphs, and graphs of lazy mode."""
    graph_launches: int = 0
    """The compiled graphs and the graphs of lazy mode among the launches."""
    compilations: int = 0
    recompilations: int = 0
    """The compilations of a known graph for other shapes."""
    host_syncs: int = 0
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    peak_bytes: int = 0
    """The most that was in use from the start of the process to the end of the step."""

    def add(self, kind: str, what: str, amount: int, is_compiled: bool) -> None:
        """Counts an event; see `simulator.observer`."""
        if kind == "launch":
            self.launches += amount
            self.graph_launches += amount if is_compiled else 0
        elif kind == "graph":
            self.launches += 1
            self.graph_launches += 1
        elif kind == "host_sync":
            self.host_syncs += 1
        elif kind == "transfer" and what == "host_to_device":
            self.host_to_device_bytes += amount
        elif kind == "transfer":
            self.device_to_host_bytes += amount
        elif kind == "collective":
            self.collectives += 1
            self.collective_bytes += amount
        if kind in ("graph", "compilation") and what != "reused":
            self.compilations += 1
            self.recompilations += what == "recompiled"


@dataclass
class Line:
    """The events of one kind at one line."""

    kind: str
    """See `simulator.observer`."""
    what: str
    file: str
    line: int
    function: str
    via: str
    """The line of a library that the user's line got to, and its function, or "":
    "transformers/trainer.py:1914, _run_epoch"."""
    stage: str
    """"training", "validation" or "checkpoint"."""
    phase: str
    """"model" (in a call of a module), "forward" (and all else), "backward" or "optimizer"."""
    is_compiled: bool
    """Whether a compiled graph did it."""
    count: int = 0
    amount: int = 0
    """Bytes, launches or operations: see `simulator.observer`."""
    steps: list[int] = field(default_factory=list)
    """In which steps it happened, from 0 on."""
    details: dict[str, int] = field(default_factory=dict)
    """What else was told, and how often; if there is very much, only the first of it."""

    def add(self, amount: int, step: int, detail: str) -> None:
        """Counts an event."""
        self.count += 1
        self.amount += amount
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)
        if detail and (detail in self.details or len(self.details) < _MAX_DETAILS):
            self.details[detail] = self.details.get(detail, 0) + 1


@dataclass
class Loader:
    """The batches that a loader gave."""

    name: str
    """The name of its data set's class."""
    file: str
    line: int
    """Where the user's code has made it, or has had it made."""
    collate: str
    """The function that makes its batches, with its place if it is the user's."""
    stage: str
    shapes: list[dict[str, list[int]]] = field(default_factory=list)
    """The distinct shapes, by name of tensor, in the order in which they came first."""
    batches: list[int] = field(default_factory=list)
    """For each batch the number of its shapes among those."""
    steps: list[int] = field(default_factory=list)
    """For each batch the step that it was fetched in."""
    has_bounded_shapes: bool = False
    """Whether its sampler sorts samples into buckets, of which each is a shape."""
    drops_last: bool = True
    num_tokens: int | None = None
    """The places of batches that hold no padding; None if nothing marks them."""
    num_places: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    """How many samples have each length."""
    buckets: list[int] = field(default_factory=list)
    """The boundaries that pad these lengths the least."""


@dataclass
class Record:
    """The record of one process."""

    rank: int = 0
    world_size: int = 1
    pid: int = 0
    is_lazy: bool = False
    card: str = ""
    release: str = ""
    measured: str = ""
    """The file of measurements that the card follows; empty where it follows the tables."""
    trainer: str = ""
    """The package whose loop trains, "lightning" or "transformers"; "" for the user's own."""
    is_ended: bool = False
    """Whether it was ended after its steps, instead of ending by itself."""
    steps: list[Step] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    loaders: list[Loader] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    """The bytes of each category at the end of a step."""
    peak_bytes: int = 0
    limit_bytes: int = 0

    def write(self, folder: Path) -> None:
        """Writes the record into the folder, in one step."""
        target = folder / f"{_PREFIX}{self.rank}-{self.pid}.json"
        # A rank may be killed as it writes. `read_all` looks for .json alone, and a rename is
        # atomic.
        draft = target.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(self)), "utf-8")
        draft.replace(target)


def read_all(folder: Path) -> list[Record]:
    """Returns a folder's records by rank; one that makes no sense is reported and left out."""
    records = []
    for path in sorted(folder.glob(f"{_PREFIX}*.json")):
        try:
            records.append(_read(path))
        except (OSError, ValueError) as error:
            said = printable(f"{path.name}, what a process has noted, is left out: {error}")
            print(f"lightning-gaudi: {said}", file=sys.stderr)
    return sorted(records, key=lambda record: (record.rank, record.pid))


def _read(path: Path) -> Record:
    # The audited program may have written anything there: what is read is bounded and checked.
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"It has more than {_MAX_BYTES} bytes.")
    record = decode(Record, parse_json(data), "the record")
    if not 0 <= record.rank < _MAX_RANKS or not 0 < record.world_size <= _MAX_RANKS:
        raise ValueError(f"It is of rank {record.rank} of {record.world_size}.")
    for loader in record.loaders:
        if any(not 0 <= each < len(loader.shapes) for each in loader.batches):
            raise ValueError("A batch has a shape that is none of its loader's.")
    return record
