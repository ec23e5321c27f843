"""Reads what launchers tell the processes that they start, and the hosts that they are given."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_VARIABLES = (
    # torchrun's come first, because it may itself run under one of the others.
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_HOSTS = ("--host", "-host", "-H", "--hosts", "-hosts", "--nodelist", "-w")
_MAX_DIGITS, _MAX_HOSTS = 9, 10_000
_FILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")


_PARSE_AGAIN = frozenset(
    (
        *("ssh", "rsh", "autossh", "mosh", "dbclient", "pdsh", "clush", "dsh", "rgang", "pssh"),
        *("parallel-ssh", "parallel", "prsh", "sshpass"),
    )
)
"""Programs that join their words with spaces and have a shell split them again.

Source: ssh(1) of OpenSSH 9.2, rsh(1), pdsh(1) 2.34, clush(1) of ClusterShell 1.9, dsh(1), pssh(1),
parallel(1). `mpirun`, `mpiexec`, `srun`, `docker exec` and `kubectl exec` start the words as they
are, whatever connects the hosts.
"""
_DIRECT = frozenset(
    (
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "srun", "torchrun"),
        *("docker", "podman", "kubectl", "apptainer", "singularity", "jsrun", "aprun"),
    )
)


def parses_again(launcher: Sequence[str]) -> bool:
    """Returns whether a launcher has a shell split its words again, which then must be quoted.

    The first program among the words that is known decides: `sudo ssh host` does,
    `mpirun --mca plm_rsh_agent ssh` does not.
    """
    names = (word.rpartition("/")[2] for word in launcher)
    known = (name in _PARSE_AGAIN for name in names if name in _PARSE_AGAIN | _DIRECT)
    return next(known, False)


class Place(NamedTuple):
    """The place of a process in its job; None for what the launcher did not tell."""

    rank: int | None
    size: int | None
    local_rank: int | None


def place(environment: Mapping[str, str]) -> Place:
    """Returns the place that a launcher has told a process in its environment."""
    for names in _VARIABLES:
        if _is_number(environment.get(names[0], "")):
            found = (environment.get(name, "") for name in names)
            return Place(*(int(value) if _is_number(value) else None for value in found))
    return Place(None, None, None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def named_hosts(launcher: Sequence[str]) -> list[str]:
    """Returns the hosts that a launcher's options name, without addresses and this host."""
    found = [host for text in _texts(launcher) for host in _split(text)]
    return [host for host in dict.fromkeys(found) if _is_name(host)]


def _texts(launcher: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(launcher):
        option, equals, value = word.partition("=")
        text = value if equals else " ".join(launcher[index + 1 : index + 2])
        if option in _HOSTS:
            yield text
        elif option in _FILES and Path(text).is_file():
            whole = Path(text).read_text(errors="replace")
            lines = (line.partition("#")[0].split() for line in whole.splitlines())
            yield ",".join(words[0] for words in lines if words)


def _split(text: str) -> Iterator[str]:
    """Yields the hosts of a list such as `a:2,b` or `gaudi[1-3,5]`."""
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        pattern = re.fullmatch(r"(.*?)\[(.*)\](.*)", part)
        if pattern is None:
            yield part.partition(":")[0]
            continue
        for item in pattern[2].split(","):
            first, _, last = item.partition("-")
            if _is_number(first) and _is_number(last or first):
                end = min(int(last or first), int(first) + _MAX_HOSTS)
                for number in range(int(first), end + 1):
                    yield f"{pattern[1]}{number:0{len(first)}d}{pattern[3]}"


def _is_name(host: str) -> bool:
    """Returns whether a host is given by name, and is not this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and host not in ("localhost", socket.gethostname())
    return False
