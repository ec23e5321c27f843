"""Checks of the host's memory: huge pages, and what processes share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightning_gaudi.doctor import hl_smi
from lightning_gaudi.doctor.findings import Finding, ok, warning
from lightning_gaudi.doctor.machine import Machine

HUGE_MIB_A_CARD = 4400
"""What optimum-habana's jobs on Kubernetes ask for: 4400 MiB for a card, 35202 MiB for eight.

Source: optimum-habana 1.19, `examples/kubernetes/ci/*-values.yaml`, `hugepages-2Mi`.
"""
_SHARED = "/dev/shm"
_SHARED_MIB = 1024


def check_huge_pages(machine: Machine) -> Iterator[Finding]:
    """Whether there are about as many huge pages as published jobs ask for."""
    cards = len(hl_smi.read_cards(machine))
    text = machine.read("/proc/meminfo") or ""
    found = {name: int(value) for name, value in re.findall(r"^(Huge\w+):\s+(\d+)", text, re.M)}
    if not cards or "HugePages_Total" not in found:
        return
    page_mib = found.get("Hugepagesize", 2048) / 1024
    total, free = (found.get(f"HugePages_{key}", 0) for key in ("Total", "Free"))
    needed = -(-HUGE_MIB_A_CARD * cards // max(int(page_mib), 1))
    text = f"{total} of {page_mib:.0f} MiB, {free} free"
    if total < needed:
        yield warning(
            "hugepages",
            f"{text}; published jobs on {cards} cards ask for {needed}",
            f"sudo sysctl -w vm.nr_hugepages={needed}, and the same in /etc/sysctl.d to keep it; "
            "on Kubernetes ask for hugepages-2Mi.",
        )
    else:
        yield ok("hugepages", text)


def check_shared_memory(machine: Machine) -> Iterator[Finding]:
    """Whether a container shares the host's memory, as HCCL and workers of a DataLoader need.

    Source: Intel Gaudi documentation, "Docker installation": `--ipc=host`; Docker gives 64 MiB.
    """
    size = machine.total_bytes(_SHARED)
    if size is None or not hl_smi.read_cards(machine):
        return
    if size < _SHARED_MIB * 2**20:
        yield warning(
            "shared memory",
            f"{_SHARED} has {size / 2**20:.0f} MiB",
            "Start the container with --ipc=host.",
        )
    else:
        yield ok("shared memory", f"{_SHARED} has {size / 2**30:.0f} GiB")
