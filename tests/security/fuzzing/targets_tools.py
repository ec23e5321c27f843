"""What processes tell one another, and what tools, the driver and the kernel print."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import mmap
import os
import socket
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning_gaudi import measured_card
from lightning_gaudi._core import processes, progress
from lightning_gaudi.data import embedded
from lightning_gaudi.distributed import elastic_rendezvous
from lightning_gaudi.profiler import trace
from lightning_gaudi.reliability import hang_detection, heartbeat_store, links, stacks, watcher
from lightning_gaudi.tools.audit import record as audit_record, text as audit_text
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.doctor import (
    cards,
    comparison,
    files,
    findings,
    hl_smi,
    hosts,
    memory,
    mode,
    network,
    variables,
)
from lightning_gaudi.tools.doctor.machine import Answer, Machine
from lightning_gaudi.tools.doctor.wire_format import Joiner, cut
from lightning_gaudi.tools.plan import forks, request as plan_request
from lightning_gaudi.tools.verify import hosts as verified_hosts
from tests.helpers import recorded

from . import wild
from .target import Parser, WrongResultError, environment, target

_PACKAGE = "lightning_gaudi"


class _Store:
    """Torch's store with values that another process has put into it."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        self.values = dict(values)
        self.timeout = SimpleNamespace(total_seconds=lambda: 0.0)

    def set(self, key: str, value: str | bytes) -> None:
        self.values.setdefault(key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        found = int(self.values.get(key, b"0")) + amount
        self.values[key] = b"%d" % found
        return found

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@target(
    "reliability.links",
    f"{_PACKAGE}.reliability.links:Channel.receive",
    f"{_PACKAGE}.reliability.links:Channel._messages",
    f"{_PACKAGE}.reliability.watcher:Watcher._take",
    errors=(),
)
def _links(folder: Path) -> Parser:
    """No message of another host may raise, or leave what judging it raises of."""
    beat = heartbeat_store.Beat(7, "runs", 12, "forward", True, (0, 12), None, "all_reduce", 0.25)
    told = {
        "ranks": [1],
        "reason": "rank 1 hangs",
        "account": ["rank 0 stood"],
        "stacks": {"1": "x"},
    }
    message = {"host": 0, "number": 1, "beats": {"0": beat}, "stacks": {"0": "x"}, "verdict": told}
    text, key = json.loads(json.dumps(message)), b"key"

    def damage(random: Any) -> bytes:
        data: bytes = wild.json_text(random, text)
        if random.random() < 0.1:
            return wild.damaged_bytes(random, struct.pack("<I", len(data) + 32) + data)
        signed = links._signature(key, data) + data
        return struct.pack("<I", len(signed)) + signed

    def parse(given: bytes) -> object:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                here.send(given)
            channel = links.Channel(there, key)
            found = [*channel.receive()]
        box: Any = SimpleNamespace(receive=lambda: [(0, each) for each in found])
        watch = watcher.Watcher({}, {}, [0, 1], 1, box)
        ends = watch._listen()
        beats = watch._beats
        silent_s = dict.fromkeys(beats, 0.0)
        judged = hang_detection.judge(beats, silent_s, heartbeat_store.Limits(1.0, 5.0))
        return ends, judged, hang_detection.account(beats, silent_s, 2), watch._stacks

    def check(given: bytes, found: Any) -> None:
        ends, judged, lines, _ = found
        said = f"{ends and ends[:2]}{judged}{lines}"
        if any(each in said for each in ("\x1b", "\r", "\u202e")):
            raise WrongResultError("what moves a terminal's cursor is said")

    return Parser(damage, parse, check)


@target(
    "reliability.heartbeat_store",
    f"{_PACKAGE}._core.progress:read",
    f"{_PACKAGE}._core.progress:_made_of",
    f"{_PACKAGE}.reliability.heartbeat_store:Board._text",
    f"{_PACKAGE}.reliability.heartbeat_store:Board._count",
    f"{_PACKAGE}.reliability.heartbeat_store:Board._double",
    errors=(),
)
def _board(folder: Path) -> Parser:
    """The memory that a rank shares with the process that watches it."""
    own = heartbeat_store.Board.new(heartbeat_store.Limits(1.0, 5.0))
    progress.copy_to(own.memory)
    own.order = "rank 1 hangs"
    own.give_stack("  File x, line 1\n")
    seed = bytes(own.memory)

    def parse(given: bytes) -> object:
        memory = mmap.mmap(-1, heartbeat_store.BOARD_BYTES)
        memory[: len(given)] = given
        read = heartbeat_store.Board(memory, "")
        here = progress.read(memory)
        return here, read.state, read.order, read.stack(0), read.limits, read.python_at

    def damage(random: Any) -> bytes:
        return bytes(wild.damaged_bytes(random, seed)[: heartbeat_store.BOARD_BYTES])

    return Parser(damage, parse)


@target(
    "distributed.elastic_rendezvous",
    f"{_PACKAGE}.distributed.elastic_rendezvous:agree_on_name",
    f"{_PACKAGE}.distributed.elastic_rendezvous:_answer",
    f"{_PACKAGE}.distributed.elastic_rendezvous:_get",
    errors=(TimeoutError, ValueError),
)
def _meeting(folder: Path) -> Parser:
    def damage(random: Any) -> bytes:
        return wild.damaged_text(random, b"1 0123456789abcdef fedcba98")

    def parse(words: bytes) -> object:
        said = {"lightning_gaudi/said/all": b"1", "lightning_gaudi/said/1": words}
        return elastic_rendezvous.agree_on_name(_Store(said), 0, 2)

    return Parser(damage, parse)


def _message() -> dict[str, Any]:
    report = findings.Report([findings.error("hpu", "no card", "Look.")], {"package torch": "2.13"})
    about = {"sender": "a-0", "host": "a", "rank": 0, "size": 2, "is_first": True}
    return about | {"report": report.as_json()}


@target(
    "doctor.hosts",
    f"{_PACKAGE}.tools.doctor.hosts:_ask",
    f"{_PACKAGE}.tools.doctor.hosts:lines",
    f"{_PACKAGE}.tools.doctor.hosts:_Answers.take",
    f"{_PACKAGE}.tools.doctor.wire_format:_message",
    errors=(),
    num_quick=4,
)
def _hosts(folder: Path) -> Parser:
    """Other hosts' answers: whoever sends nonsense has not answered."""

    def damage(random: Any) -> list[str]:
        if random.random() < 0.3:
            lines = "\n".join(cut("token", "a-0", _message())).encode()
            return wild.damaged_text(random, lines).decode(errors="replace").splitlines()
        text = wild.json_text(random, _message())
        if random.random() < 0.004:
            text = b" " * (200 * 2**20)
        packed = base64.b64encode(zlib.compress(text)).decode()
        place = random.choice(("1/1", "1/1", "1/1", "0/1", "99999999999/1", "1/0"))
        return [f"@lightning-gaudi-doctor token a-0 {place} {packed}"]

    def parse(given: list[str]) -> object:
        joiner, answers = Joiner("token"), hosts._Answers()
        for line in given:
            message = joiner.add(line)
            if message is not None:
                answers.take(message)
        answers.is_complete()
        hosts._missing(answers, ["mpirun"])
        done = sorted(answers.done.values(), key=lambda each: (each.rank or 0, each.host))
        return findings.table(comparison.merge(done)) if done else None

    return Parser(damage, parse)


@target(
    "doctor.machine",
    *(f"{_PACKAGE}.tools.doctor.hl_smi:{name}" for name in ("driver", "status", "on_the_bus")),
    f"{_PACKAGE}.tools.doctor.files:file_system",
    f"{_PACKAGE}.tools.doctor.memory:check_huge_pages",
    f"{_PACKAGE}.tools.doctor.memory:check_locked_memory",
    f"{_PACKAGE}.tools.doctor.network:check_interfaces",
    f"{_PACKAGE}.tools.doctor.mode:_probe",
    errors=(),
)
def _machine(folder: Path) -> Parser:
    """Whatever hl-smi, the vendor's package, the driver and the kernel print."""

    def damage(random: Any) -> Any:
        found = recorded.gaudi2_server()
        for answers in (found.commands, found.files):
            for name in random.sample(sorted(answers), min(2, len(answers))):
                value = answers[name]
                text = value.text if isinstance(value, Answer) else value
                wrong = wild.damaged_text(random, text.encode()).decode(errors="replace")
                answers[name] = Answer(wrong) if isinstance(value, Answer) else wrong
        if random.random() < 0.3:
            probe = wild.json_text(random, {"cards": 8, "reason": "", "lazy": True})
            found.commands[mode.PROBE] = Answer(probe.decode(errors="replace"))
        return found

    def parse(machine: Any) -> object:
        hl_smi.read_cards(machine)
        cards = hl_smi.driver(machine), hl_smi.firmware(machine), hl_smi.status(machine)
        files.file_system(machine, "/tmp")
        checks = (memory.check_huge_pages, memory.check_locked_memory, mode.check_mode)
        found = [each for check in checks for each in check(machine)]
        found += network.check_interfaces(machine, "eth0")
        return cards, findings.table(findings.Report(found)), hl_smi.on_the_bus(machine)

    return Parser(damage, parse)


@target(
    "doctor.environment",
    f"{_PACKAGE}.tools.doctor.cards:_modules_here",
    f"{_PACKAGE}.tools.doctor.network:check_port",
    errors=(),
)
def _doctors_environment(folder: Path) -> Parser:
    seed = {
        "HABANA_VISIBLE_MODULES": "0,1",
        "LIGHTNING_GAUDI_SIMULATE": "8",
        "MASTER_PORT": "29500",
        "MASTER_ADDR": "127.0.0.1",
        "PT_HPU_LAZY_MODE": "1",
        "PT_HPU_RECIPE_CACHE_CONFIG": "/tmp/recipes,false,1024",
        "LIGHTNING_GAUDI_COMPILE": "none",
    }

    def parse(given: dict[str, str]) -> object:
        machine = recorded.gaudi2_server()
        machine.environment = {**machine.environment, **given}
        found = [*network.check_port(machine, None), *cards.check_visible_modules(machine)]
        checks = (variables.check_names, variables.check_mode, variables.check_recipe_cache)
        found += [each for check in checks for each in check(machine)]
        return findings.table(findings.Report(found, variables.settings(machine)))

    return Parser(lambda random: wild.environment(random, seed), parse)


@target("doctor.machine.read", f"{_PACKAGE}.tools.doctor.machine:Machine.read", errors=())
def _read(folder: Path) -> Parser:
    path = folder / "version"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        return Machine().read(str(path))

    return Parser(lambda random: wild.damaged_text(random, b"1.24.0-2eae87a\n"), parse)


def _record() -> dict[str, Any]:
    line = audit_record.Line(
        "host_sync", "item", "train.py", 3, "step", "", "training", "forward", False, 2, 8, [3, 4]
    )
    loader = audit_record.Loader("Rows", "train.py", 9, "collate", "training", [{"x": [4, 2]}], [0])
    found = audit_record.Record(
        steps=[audit_record.Step(launches=3)] * 5, lines=[line], loaders=[loader], memory={"a": 1}
    )
    return json.loads(json.dumps(dataclasses.asdict(found)))


@target("audit.record", f"{_PACKAGE}.tools.audit.record:_read")
def _audit(folder: Path) -> Parser:
    path = folder / "record-0-1.json"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        records = audit_record.read_all(folder)
        audit = Audit(("python", "train.py"), 0, records)
        return audit.num_steps, audit.is_ended, audit.missing_ranks, audit_text.__name__

    return Parser(lambda random: wild.json_text(random, _record()), parse)


@target(
    "measured_card",
    f"{_PACKAGE}.measured_card:_text",
    f"{_PACKAGE}.measured_card:parse",
    errors=(measured_card.CardFileError,),
)
def _measured_card(folder: Path) -> Parser:
    """A file of measurements may come with an issue, from anybody."""
    terms = dict.fromkeys(
        ("alignment_bytes", "header_bytes", "small_bytes", "num_small", "at_start_bytes"), 128
    )
    seed = {
        "kind": measured_card.KIND,
        "schema": measured_card.SCHEMA,
        "card": "gaudi2",
        "release": "1.24.1",
        "is_simulated": False,
        "rules": [{"key": "gelu-as-tanh", "mode": "eager", "found": "demoted"}],
        "memory": {**terms, "limit_bytes": 2**36, "workspace_bytes": 0},
        "faults": [{"key": "raise", "found": "ends"}],
        "figures": {"matmuls": [{"dtype": "bfloat16", "flops": 1e14}]},
    }
    path = folder / "card.json"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        found = measured_card.read(path)
        return found.flops("bfloat16"), found.bandwidth(), found.found("gelu-as-tanh", ("eager",))

    return Parser(lambda random: wild.json_text(random, seed), parse)


@target("verify.hosts", f"{_PACKAGE}.tools.verify.hosts:_ask", errors=())
def _verified_hosts(folder: Path) -> Parser:
    """Ranks of other hosts: whoever sends nonsense has measured nothing."""

    def damage(random: Any) -> list[str]:
        seed = random.choice(
            (
                {"host": "a", "rank": 0, "size": 2},
                {"identity": {"card": "gaudi2"}},
                {"rows": [{"seconds": 0.1}]},
                {"problem": "it broke"},
            )
        )
        packed = base64.b64encode(zlib.compress(wild.json_text(random, seed))).decode()
        return [f"@lightning-gaudi-doctor token a-0 1/1 {packed}"]

    def parse(given: list[str]) -> object:
        joiner, heard = Joiner("token"), verified_hosts._Heard()
        for line in given:
            message = joiner.add(line)
            if message is not None:
                heard.take(message)
        return verified_hosts._why_nothing(heard, "", ["mpirun"])

    return Parser(damage, parse)


@target(
    "plan.request",
    f"{_PACKAGE}.tools.plan.request:Request.load",
    f"{_PACKAGE}.tools.plan.request:read_results",
)
def _case(folder: Path) -> Parser:
    fields = dataclasses.fields(plan_request.Request)
    values = {each.name: each.default for each in fields if each.default is not dataclasses.MISSING}
    seed = {**{each.name: 1 for each in fields}, **values, "budgets": [2**30], "result": "x"}
    path = folder / "case.json"

    def damage(random: Any) -> tuple[bool, bytes]:
        return random.random() < 0.5, wild.json_text(random, json.loads(json.dumps(seed)))

    def parse(given: tuple[bool, bytes]) -> object:
        path.write_bytes(given[1])
        return plan_request.Request.load(path) if given[0] else plan_request.read_results(path)

    return Parser(damage, parse)


@target("plan.forks", f"{_PACKAGE}.tools.plan.forks:Fork.found", errors=(forks.RehearsalError,))
def _forks(folder: Path) -> Parser:
    """A fork may be killed while it tells."""

    def parse(given: bytes) -> object:
        reader, writer = os.pipe()
        os.write(writer, given[:60_000])
        os.close(writer)
        pid = os.posix_spawn("/bin/true", ["true"], {})  # a fork of torch takes long
        fork = object.__new__(forks.Fork)
        vars(fork).update(_reader=reader, _pid=pid)
        return fork.found()

    seed = json.dumps({"found": {"batch_size": 4}}).encode()
    return Parser(lambda random: wild.damaged_text(random, seed), parse)


@target("data.embedded", f"{_PACKAGE}.data.embedded:_read", errors=())
def _embedded(folder: Path) -> Parser:
    """A cache that is none is made again."""
    path = folder / "embedded.json"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        return embedded._read(path)

    def check(given: bytes, found: Any) -> None:
        assert found is None or all(
            isinstance(document, list) and all(isinstance(each, str) for each in document)
            for document in found
        ), "what is no list of lists of texts was taken for one"

    seed = [["One sentence.", "Another."], ["A third."]]
    return Parser(lambda random: wild.json_text(random, seed), parse, check)


@target("data.embedded.source", f"{_PACKAGE}.data.embedded:_entries_of", errors=())
def _source(folder: Path) -> Parser:
    path = folder / "module.py"
    seed = Path(embedded.__file__).read_bytes()[:3000]

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        return list(embedded._entries_of(path, "module"))

    return Parser(lambda random: wild.damaged_text(random, seed), parse)


@target("profiler.trace", f"{_PACKAGE}.profiler.trace:holds_device_events", errors=())
def _trace(folder: Path) -> Parser:
    path = folder / "trace.json"
    seed = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "matmul", "ts": 1.5}]}'

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        return trace.holds_device_events(path)

    return Parser(lambda random: wild.damaged_bytes(random, seed), parse)


@target("core.processes", f"{_PACKAGE}._core.processes:watch_parent")
def _parent(folder: Path) -> Parser:
    class Thread:
        """The watch is not begun: it would end this process."""

        def __init__(self, **settings: Any) -> None: ...

        def start(self) -> None: ...

    processes.threading = SimpleNamespace(Thread=Thread)  # type: ignore[assignment]

    def parse(given: dict[str, str]) -> object:
        with environment(given):
            return processes.watch_parent()

    return Parser(lambda random: wild.environment(random, {processes.PARENT: "0"}), parse)


@target("reliability.stacks", f"{_PACKAGE}.reliability.stacks:Question.answer", errors=())
def _stacks(folder: Path) -> Parser:
    path = folder / "stack"
    stacks._signal_main_thread = lambda pid: None

    def parse(given: bytes) -> object:
        path.write_bytes(b"")
        fields = {"pid": os.getpid(), "host": "a", "started": 0, "stack": str(path), "board": ""}
        question = stacks.Question(SimpleNamespace(**fields))  # type: ignore[arg-type]
        path.write_bytes(given)
        found = question.answer()
        question.close()
        return found, stacks.call(found)

    return Parser(lambda random: wild.damaged_bytes(random, b"  File x, line 3 in step\n"), parse)
