"""Checks where ranks meet: port, address and interfaces."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator

from lightning_gaudi._core.launched import why_not_listen
from lightning_gaudi.tools.doctor import hl_smi
from lightning_gaudi.tools.doctor.findings import Finding, error, note, ok, warning
from lightning_gaudi.tools.doctor.machine import Machine

_NETWORK = "/sys/class/net"
_GUESSED = "12345"
"""The port that the vendor's package sets where there is none (1.24.0, `hccl/__init__.py`)."""
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "NODE_RANK", "GROUP_RANK")


def check_port(machine: Machine, port: int | None) -> Iterator[Finding]:
    """Checks whether rank 0 could listen at its port, if this machine is to have rank 0.

    Args:
        machine: This one.
        port: That of --port; None for MASTER_PORT.
    """
    asked = machine.environment.get("MASTER_PORT")
    text = str(port) if port is not None else asked
    name = f"--port {text}" if port is not None else f"MASTER_PORT={text}"
    if text is None:
        yield ok("port", "MASTER_PORT is not set: on one server a free port is found")
    elif not (re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) < 65536):
        yield error("port", f"{name} is no port", "Set it to a number from 1024 to 65535.")
    elif text == _GUESSED and machine.environment.get("MASTER_ADDR") == "localhost":
        yield warning(
            "port",
            f"MASTER_ADDR=localhost and {name} are what the vendor's package guesses: two jobs of "
            "a server would meet there",
            "Unset both on one server; on several set MASTER_ADDR to the host of rank 0.",
        )
    elif not _has_rank_0(machine):
        yield ok("port", f"{name}, on the host of rank 0")
    elif reason := why_not_listen(int(text)):
        yield error("port", f"{name} {reason}", "Choose another, the same on all servers.")
    else:
        yield ok("port", f"{name} is free")


def _has_rank_0(machine: Machine) -> bool:
    """Returns whether rank 0 is to listen on this machine, as far as the environment says so."""
    if any(machine.environment.get(name, "0") != "0" for name in _RANKS):
        return False
    address = machine.environment.get("MASTER_ADDR")
    return address is None or _is_here(address)


def _is_here(address: str) -> bool:
    """Returns whether an address is one of this machine's, which alone can be bound."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    # A name that is no possible host name raises UnicodeError.
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as server:
                server.bind(place)
        except OSError:
            continue
        return True
    return False


def check_address(machine: Machine) -> Iterator[Finding]:
    """Checks whether the address of rank 0 can be found."""
    address = machine.environment.get("MASTER_ADDR")
    if address is None:
        return
    try:
        found = socket.getaddrinfo(address, None)[0][4][0]
    except OSError as failure:
        yield error(
            "address",
            f"MASTER_ADDR={address} is not found ({failure.strerror})",
            "Set it to the name or the number of rank 0's host, as this server sees it.",
        )
        return
    yield ok("address", f"MASTER_ADDR={address}, {found}")


def check_interfaces(machine: Machine, interface: str | None) -> Iterator[Finding]:
    """Checks whether the interfaces that are asked for are there and up.

    Args:
        machine: This one.
        interface: That of --interface; None for those of the environment.
    """
    asked = {"--interface": interface} if interface else _asked(machine)
    here = machine.names(_NETWORK)
    for name, value in asked.items():
        for word in filter(None, (value or "").split(",")):
            # HCCL also takes the beginning of a name, gloo only a whole one.
            is_prefix = name.startswith("HCCL")
            found = [each for each in here if each == word or (is_prefix and each.startswith(word))]
            if not found:
                yield error(
                    "interface",
                    f"{name}={value}: there is no {word}; here are {', '.join(here) or 'none'}",
                    "Name one of them that all servers reach.",
                )
            elif all(machine.read(f"{_NETWORK}/{each}/operstate") == "down" for each in found):
                yield error("interface", f"{name}={value}: {word} is down", "Bring it up.")
            else:
                yield ok("interface", f"{name}={value}")
    if not asked and (hl_smi.read_cards(machine) or machine.environment.get("MASTER_ADDR")):
        yield from _check_host_name(machine)


def _asked(machine: Machine) -> dict[str, str | None]:
    names = ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
    return {name: machine.environment[name] for name in names if machine.environment.get(name)}


def _check_host_name(machine: Machine) -> Iterator[Finding]:
    """Checks whether the host's name leads to a network, whose interface gloo then takes.

    Source: torch.distributed, "Common environment variables".
    """
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = ""
    names = [name for name in machine.names(_NETWORK) if not re.match("lo$|docker|veth", name)]
    if found and not ipaddress.ip_address(found).is_loopback:
        yield ok("interface", "that of the host's name")
    else:
        what = f"is {found}" if found else "is not found"
        yield note(
            "interface",
            f"the host's name {what}: other servers would not reach this one",
            f"For several servers set GLOO_SOCKET_IFNAME to one of {', '.join(names) or 'none'}.",
        )
