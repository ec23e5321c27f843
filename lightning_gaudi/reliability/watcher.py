"""Watches the ranks of a host in a process of its own, so that no rank needs its GIL to be seen.

Much of the vendor's C code waits, or compiles for minutes, and holds the GIL meanwhile. A thread in
the rank would be silent then, and the rank would be blamed. So the first rank of each host starts
this process. It reads where each rank is from memory that both share (`heartbeat_store`), learns
from the kernel whether the rank lives and computes, and takes its stack from outside (`watched`).
The process of rank 0's host judges all ranks (`hang_detection`). Those of the other hosts tell it
what they see (`links`), and judge for themselves once they do not hear of it any more. Nobody asks
the store.

The process is a Python without site-packages and without torch. It takes 20 MB, and less than 0.1 s
of a processor to start, for which nobody waits. It holds no card, has no variable of the
environment but `_KEPT`, ignores the signals that end the ranks, and ends with the last rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from lightning_gaudi._core import progress
from lightning_gaudi._core.processes.rank_monitor import say
from lightning_gaudi.untrusted import printable

from . import stacks
from .cards import CardQuestion
from .hang_detection import Verdict, account, judge
from .heartbeat_store import RUNS, SILENT_S, STOPPED, SURVIVED, Beat, Limits
from .links import Links, Message
from .slow_ranks import Slow, SlowRanks
from .stacks import Process, innermost
from .watched import WatchedRank

_POLL_S = 0.2
_SEND_S = 0.5
_SLEPT_S = 10.0
_UNREACHED_S = 60.0
_STACKS_S = 1.5
_READ_S = 2.0
_END_S = 1.5
_LINGER_S = 2.0
_PATIENCE_S = 2.5
_MAX_STACKS = 8
_MAX_STACK = 32000
_MAX_SENT_STACK = 6000
_MAX_REASON = 4000
_NICE = 5
_COMPARE_S = 2.0
_CARD_S = 8.0
_MAX_NEWS = 16


class Watcher:
    """Watches the ranks of one host.

    Args:
        ranks: The ranks of this host.
        gone: What is known of the ranks of this host that had ended before.
        hosts: The number of each rank's host, for all ranks; rank 0's host has the number 0.
        host: The number of this host.
        links: The connections to the other hosts.
        tool: The path of `hl-smi`; None where it is not installed.
    """

    def __init__(
        self,
        ranks: dict[int, WatchedRank],
        gone: dict[int, Beat],
        hosts: list[int],
        host: int,
        links: Links,
        tool: str | None = None,
    ) -> None:
        self._ranks, self._hosts, self._host, self._links = ranks, hosts, host, links
        self._beats = dict(gone)
        self._stacks: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}
        """When each other host was last heard of; a host that never was is not judged."""
        self._began = self._ran_at = time.monotonic()
        self._sent_at = 0.0
        self._lonely_since: float | None = None
        self._has_warned = False
        self._slow = SlowRanks(0.0, 0.0)
        self._compared_at = 0.0
        self._tool = tool
        self._asked_for: dict[int, Slow] = {}
        """The slow ranks that are not named yet, since their cards have not been asked in full."""
        self._questions: dict[int, CardQuestion] = {}
        self._cards: dict[int, str] = {}
        self._news: list[str] = []

    def run(self) -> None:
        """Watches until all ranks of this host have ended, or have to."""
        while not self._is_over():
            self._look()
            if (told := self._listen()) is not None:
                self._end(*told)
                return
            if (verdict := self._judge()) is not None:
                self._end(verdict, None, {})
                return
            self._compare()
            self._tell()
            time.sleep(_POLL_S)
        self._links.finish(self._report())

    def _look(self) -> None:
        now = time.monotonic()
        # This process was stopped, as by Ctrl-Z, and so were the ranks. Their silence says nothing.
        if now - self._ran_at > _SLEPT_S:
            for rank in self._ranks.values():
                rank.forgive()
            self._heard_at = dict.fromkeys(self._heard_at, now)
        self._ran_at = now
        for number, rank in self._ranks.items():
            self._beats[number] = beat = rank.beat()
            rank.look(beat)

    def _is_over(self) -> bool:
        """Returns whether all ranks have left.

        If one has died, the other hosts still have to hear of it, so this takes a moment longer.
        """
        beats = [self._beats.get(number) for number in self._ranks]
        if any(beat is None or (beat.state == RUNS and not beat.is_dead) for beat in beats):
            return False
        if self._lonely_since is None:
            self._lonely_since = time.monotonic()
        is_missed = any(beat is not None and beat.is_dead for beat in beats)
        has_others = len(set(self._hosts)) > 1
        waited_s = time.monotonic() - self._lonely_since
        return not (is_missed and has_others) or waited_s > _LINGER_S

    def _report(self) -> Message:
        mine = {n: beat for n, beat in self._beats.items() if self._hosts[n] == self._host}
        told = [number for number, rank in sorted(self._ranks.items()) if rank.stack][:_MAX_STACKS]
        found = {str(n): innermost(self._ranks[n].stack, _MAX_SENT_STACK) for n in told}
        report: Message = {"beats": {str(n): beat for n, beat in mine.items()}, "stacks": found}
        if self._asked_for:
            report["slow"] = sorted(self._asked_for)[:_MAX_STACKS]
        if cards := {str(n): told for n, told in self._cards.items() if n in self._ranks}:
            report["cards"] = cards
        return report

    def _compare(self) -> None:
        """Names the ranks that have become slow, with what `hl-smi` says of their cards."""
        now = time.monotonic()
        self._ask_cards(self._asked_for)
        if self._host != 0 or now - self._compared_at < _COMPARE_S:
            return
        self._compared_at, limits = now, self._limits()
        if (limits.slow_factor, limits.slow_s) != (self._slow.factor, self._slow.for_s):
            self._slow = SlowRanks(limits.slow_factor, limits.slow_s)
        if not limits.slow_factor:
            return
        paces = {n: b.pace for n, b in self._beats.items() if b.state == RUNS and b.is_training}
        for slow in self._slow.look(paces, now):
            self._cards.pop(slow.rank, None)
            self._asked_for[slow.rank] = slow
        for rank, slow in list(self._asked_for.items()):
            card = self._cards.get(rank)
            if card is None and now - slow.since < limits.slow_s + _CARD_S:
                continue
            del self._asked_for[rank]
            told = f"{slow.told(now)}; {card or 'its card could not be asked'}"
            say(told)
            self._news = [*self._news, told][-_MAX_NEWS:]
            if 0 in self._ranks:
                self._ranks[0].board.news = self._news

    def _ask_cards(self, wanted: Iterable[int]) -> None:
        """Asks `hl-smi` about the cards of ranks of this host, and takes its answers."""
        for rank in wanted:
            if rank in self._ranks and rank not in self._questions and rank not in self._cards:
                module = self._ranks[rank].process.module
                self._questions[rank] = CardQuestion(self._tool, module)
        for rank, question in list(self._questions.items()):
            if (answer := question.answer()) is not None:
                self._cards[rank] = answer
                del self._questions[rank]

    def _tell(self) -> None:
        if time.monotonic() - self._sent_at > _SEND_S:
            self._sent_at = time.monotonic()
            self._links.send(self._report())

    def _listen(self) -> tuple[Verdict, list[str] | None, dict[int, str]] | None:
        """Takes the messages of other hosts; returns the verdict of rank 0's host if it has one."""
        for host, message in self._links.receive():
            with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):
                self._take(host, message)
                if host == 0 and "verdict" in message:
                    return _told(message["verdict"], len(self._hosts))
        return None

    def _take(self, host: int, message: Message) -> None:
        for text, values in message.get("beats", {}).items():
            number = int(text)
            if not 0 <= number < len(self._hosts) or self._hosts[number] != host:
                raise ValueError("A host speaks of its own ranks.")
            self._beats[number] = Beat.read(values)
        self._heard_at[host] = time.monotonic()
        if host == 0:
            wanted = [n for n in message.get("slow", ()) if type(n) is int and n in self._ranks]
            for rank in self._cards.keys() - {*wanted}:
                del self._cards[rank]  # asked anew if the rank becomes slow again
            self._ask_cards(wanted)
        elif self._host == 0:
            for text, card in message.get("cards", {}).items():
                if isinstance(card, str) and self._hosts[int(text)] == host:
                    self._cards[int(text)] = printable(card, max_chars=400)
        for text, stack in message.get("stacks", {}).items():
            if isinstance(stack, str) and self._hosts[int(text)] == host:
                self._stacks[int(text)] = stack[:_MAX_STACK]

    def _silent_s(self) -> dict[int, float]:
        """Returns for each rank how many seconds nothing has been heard of its host."""
        now = time.monotonic()
        found = {}
        for number in self._beats:
            heard_at = self._heard_at.get(self._hosts[number], now)
            is_here = self._hosts[number] == self._host
            found[number] = 0.0 if is_here or now - heard_at < _SEND_S * 4 else now - heard_at
        return found

    def _limits(self) -> Limits:
        running = [number for number in self._ranks if self._beats[number].state == RUNS]
        return self._ranks[min(running or self._ranks)].board.limits

    def _judge(self) -> Verdict | None:
        silent_s, limits = self._silent_s(), self._limits()
        self._warn_of_hosts()
        beats = self._beats
        if self._host != 0:
            of_zero = [number for number in beats if self._hosts[number] == 0]
            if not of_zero or silent_s[of_zero[0]] < SILENT_S:
                return None  # rank 0's host is there, and judges

            beats = {n: b for n, b in beats.items() if n in of_zero or n in self._ranks}
        verdict = judge(beats, silent_s, limits)
        # A death is certain. A hang is judged only after the ranks that stand still were asked for
        # their stacks, which may show that they wait or compile.
        if verdict is None or any(beats[rank].is_dead for rank in verdict.ranks):
            return verdict
        return verdict if _are_asked(beats, silent_s, limits) else None

    def _warn_of_hosts(self) -> None:
        missing = set(self._hosts) - {self._host} - self._heard_at.keys()
        if self._host == 0 and missing and not self._has_warned:
            if time.monotonic() - self._began < _UNREACHED_S:
                return
            self._has_warned = True
            ranks = [number for number, host in enumerate(self._hosts) if host in missing]
            say(
                f"nothing is heard of the process that watches rank {', '.join(map(str, ranks))}, "
                f"which must connect to the host of rank 0: if one of these hangs, nobody will say "
                "so before the timeout of the process group. Allow connections between the hosts "
                "on all ports, as gloo and HCCL need them too"
            )

    def _end(self, verdict: Verdict, lines: list[str] | None, told: dict[int, str]) -> None:
        """Says why the run ends, with the stacks of the ranks to blame, and ends its own ranks."""
        wanted = [*(verdict.ranks or range(len(self._hosts)))][:_MAX_STACKS]
        self._take_stacks([number for number in wanted if number in self._ranks])
        if lines is None:
            lines = account(self._beats, self._silent_s(), len(self._hosts))
        mine = {n: self._ranks[n].stack if n in self._ranks else "" for n in wanted}
        found = {n: mine[n] or told.get(n) or self._stacks.get(n, "") for n in wanted}
        message = {
            "ranks": verdict.ranks,
            "reason": verdict.reason[:_MAX_REASON],
            "account": lines,
            "stacks": {n: innermost(stack, _MAX_SENT_STACK) for n, stack in found.items() if stack},
        }
        self._links.send({"verdict": message})
        self._say(verdict, lines, found)
        self._end_ranks(verdict)
        self._links.finish({"verdict": message})

    def _take_stacks(self, wanted: list[int]) -> None:
        """Asks ranks for their present stacks; an earlier one stays if a rank does not answer."""
        asked = [n for n in wanted if not self._ranks[n].has_ended()]
        for number in asked:
            rank = self._ranks[number]
            rank.ask(wakes=self._beats[number].ended == STOPPED)
        end = time.monotonic() + _STACKS_S
        while asked and time.monotonic() < end:
            asked = [number for number in asked if not self._ranks[number].read_answer()]
            time.sleep(_POLL_S / 4)

    def _say(self, verdict: Verdict, lines: list[str], found: dict[int, str]) -> None:
        for number, stack in found.items():
            if number in verdict.ranks or number in self._ranks:
                shown = printable(
                    innermost(stack, _MAX_STACK).rstrip(), max_chars=_MAX_STACK, lines=True
                )
                if shown or not self._has_died(number):
                    say(f"the Python stack of rank {number}:\n{shown or '  not to be had'}")
        say("where every rank stood:\n" + "\n".join(f"  {line}" for line in lines))
        for number, rank in self._ranks.items():
            if self._is_mute(number) and not rank.has_ended() and number not in verdict.ranks:
                say(_ends(number, verdict.reason))

    def _has_died(self, number: int) -> bool:
        return number in self._ranks and self._ranks[number].has_ended()

    def _is_mute(self, number: int) -> bool:
        return self._ranks[number].mute_s() > SILENT_S / 2

    def _end_ranks(self, verdict: Verdict) -> None:
        """Lets all ranks say why they end, and then end together; kills those that do not."""
        there = {n: rank for n, rank in self._ranks.items() if not rank.has_ended()}
        mute = {number for number in there if self._is_mute(number)}
        for rank in there.values():
            rank.board.order = verdict.reason
        _wait(
            _READ_S,
            lambda: all(
                there[n].board.has_read or there[n].has_ended() for n in there.keys() - mute
            ),
        )
        for number in mute:
            there[number].kill()
        for rank in there.values():
            rank.board.let_end()
        _wait(_END_S, lambda: all(rank.has_ended() for rank in there.values()))
        for rank in there.values():
            rank.kill()


def _ends(number: int, reason: str) -> str:
    return f"[rank: {number}] ends: {reason}"


def _wait(within_s: float, is_done: Any) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end and not is_done():
        time.sleep(_POLL_S / 4)


def _are_asked(beats: dict[int, Beat], silent_s: dict[int, float], limits: Limits) -> bool:
    """Returns whether each rank that stands still was asked for its stack, as far as it can be."""
    return all(
        beat.call is not None
        or beat.collective
        or beat.state != RUNS
        or beat.ended is not None
        or silent_s[rank] > SILENT_S
        or not 0 < beat.still_s - limits.training_s < _PATIENCE_S
        for rank, beat in beats.items()
    )


def _told(found: Any, num_ranks: int) -> tuple[Verdict, list[str], dict[int, str]]:
    """Returns the verdict of another host.

    Raises:
        ValueError: The message holds none.
    """
    ranks, reason, lines = found["ranks"], found["reason"], found["account"]
    if not all(type(rank) is int and 0 <= rank < num_ranks for rank in ranks):
        raise ValueError("A verdict names ranks.")
    if not isinstance(reason, str) or not all(isinstance(line, str) for line in lines):
        raise ValueError("A verdict says why.")
    told = {int(n): str(stack)[:_MAX_STACK] for n, stack in found["stacks"].items()}
    lines = [printable(line) for line in lines[:16]]
    return Verdict(tuple(ranks), printable(reason, max_chars=_MAX_REASON)), lines, told


def main() -> None:
    """Watches the ranks that `watchdog` names on the standard input."""
    for number in SURVIVED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SURVIVED)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    task = json.load(sys.stdin)
    sys.stdin.close()
    listener = None if task["listener"] is None else socket.socket(fileno=task["listener"])
    address = None if task["address"] is None or task["host"] == 0 else tuple(task["address"])
    links = Links(
        bytes.fromhex(task["key"]), task["host"], len(set(task["hosts"])), listener, address
    )
    ranks, gone = {}, {}
    for number, values in task["ranks"].items():
        process = Process(*values)
        try:
            ranks[int(number)] = WatchedRank(process)
        except OSError:  # the rank has ended already
            gone[int(number)] = _gone(process)
    if ranks:
        Watcher(ranks, gone, task["hosts"], task["host"], links, task["hl_smi"]).run()


def _gone(process: Process) -> Beat:
    """Returns what is known of a rank that ended before anybody had read its board."""
    how = f"(process {process.pid}) {stacks.how(process) or 'let nobody read its board, and is'}"
    place = progress.untold().place
    return Beat(1, RUNS, 0, place, False, (0, 0), None, None, 0.0, ended=how)
