"""Two hosts with a cable between them, on one machine: network namespaces, for one test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

INTERFACE = "eth0"
"""What each host calls its end of the cable."""


class TwoHosts:
    """Hosts 0 and 1."""

    def __init__(self, name: str) -> None:
        self.names = [f"{name}-{host}" for host in range(2)]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def command(self, host: int) -> list[str]:
        """What runs the command after it on a host, which sees processes of its own alone."""
        own = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.names[host]]
        return [*self._within(host), *own, *named]

    def _within(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int) -> None:
        """Pull the cable out of a host: nothing comes through any more, and nobody is told."""
        _ip("-n", self.names[host], "link", "set", INTERFACE, "down")

    def slow_down(self, host: int, rate: str) -> None:
        """Let a host send this much a second, such as `"2mbit"`; skip where the kernel cannot."""
        limit = ["tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", rate]
        limit += ["burst", "16kbit", "latency", "2s"]
        result = subprocess.run([*self._within(host), *limit], capture_output=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"needs a kernel with tbf (sch_tbf): {result.stderr.decode().strip()}")


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make them, and remove them at the end; skip the test where we may not."""
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)} (apt-get install iproute2 util-linux)")
    hosts = TwoHosts(f"lg{os.getpid()}")
    with contextlib.ExitStack() as stack:
        for name in hosts.names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
            if made.returncode != 0:
                reason = made.stderr.decode().strip()
                pytest.skip(f"needs network namespaces (CAP_NET_ADMIN, CAP_SYS_ADMIN): {reason}")
            stack.callback(_ip, "netns", "delete", name)
        one, other = hosts.names
        _ip(
            *("link", "add", INTERFACE, "netns", one, "type", "veth"),
            *("peer", "name", INTERFACE, "netns", other),
        )
        for name, address in zip(hosts.names, hosts.addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", INTERFACE, "up")
        yield hosts


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
