"""Checks the host's memory: huge pages, what processes share, and what they may lock."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightning_gaudi._core.processes.memory_limit import find_memory_limit
from lightning_gaudi.tools.doctor import hl_smi
from lightning_gaudi.tools.doctor.findings import Finding, note, ok, warning
from lightning_gaudi.tools.doctor.machine import Machine

HUGE_MIB_A_CARD = 4400
"""The memory in huge pages for a card, as optimum-habana's jobs on Kubernetes ask for it.

They ask for 4400 MiB for one card, and for 35202 MiB for eight.

Source: optimum-habana 1.19, `examples/kubernetes/ci/*-values.yaml`, `hugepages-2Mi`.
"""
_SHARED = "/dev/shm"
_SHARED_MIB = 1024
_OVER_HOST_NICS = ("HCCL_OVER_OFI", "FI_EFA_USE_DEVICE_RDMA")
"""Switches that ask for transfers over the host's network cards."""


def check_huge_pages(machine: Machine) -> Iterator[Finding]:
    """Checks whether there are about as many huge pages as published jobs ask for."""
    cards = len(hl_smi.read_cards(machine))
    text = machine.read("/proc/meminfo") or ""
    found = {
        name: int(value) for name, value in re.findall(r"^(Huge\w+):\s+(\d{1,15})\b", text, re.M)
    }
    if not cards or "HugePages_Total" not in found:
        return
    page_mib = found.get("Hugepagesize", 2048) / 1024
    total, free = (found.get(f"HugePages_{key}", 0) for key in ("Total", "Free"))
    needed = -(-HUGE_MIB_A_CARD * cards // max(int(page_mib), 1))
    text = f"{total} of {page_mib:.0f} MiB, {free} free"
    limit = _limit_of_pages(machine, int(page_mib))
    if limit is not None and limit < total:
        total, text = limit, f"this container may use {limit} of the server's {text}"
    if total < needed:
        yield warning(
            "hugepages",
            f"{text}; published jobs on {cards} cards ask for {needed}",
            f"sudo sysctl -w vm.nr_hugepages={needed}, and the same in /etc/sysctl.d to keep it; "
            "on Kubernetes ask for hugepages-2Mi.",
        )
    else:
        yield ok("hugepages", text)


def _limit_of_pages(machine: Machine, page_mib: int) -> int | None:
    """Returns how many huge pages a container may use; None where nothing limits them.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/hugetlb.rst.
    """
    size = f"{page_mib // 1024}GB" if page_mib >= 1024 else f"{page_mib}MB"
    for path in (f"hugetlb.{size}.max", f"hugetlb/hugetlb.{size}.limit_in_bytes"):
        text = machine.read(f"/sys/fs/cgroup/{path}") or ""
        if text.isdecimal():
            return int(text) // (page_mib * 2**20)
    return None


def check_memory_limit(machine: Machine) -> Iterator[Finding]:
    """Reports the memory that a container may use, and whether the limit has ended processes."""
    limit = find_memory_limit(machine.read)
    if limit is None:
        return
    text = f"this container may use {limit.num_bytes / 2**30:.1f} GiB"
    if limit.num_killed:
        yield warning(
            "memory limit",
            f"{text}, which has ended {limit.num_killed} of its processes (oom_kill)",
            "Raise resources.limits.memory of the pod (docker run --memory), or use fewer workers.",
        )
    else:
        yield note("memory limit", text)


def check_shared_memory(machine: Machine) -> Iterator[Finding]:
    """Checks if a container shares the host's memory, as HCCL and workers of a DataLoader need.

    Source: Intel Gaudi documentation, "Docker installation": `--ipc=host`; Docker gives 64 MiB.
    """
    size = machine.total_bytes(_SHARED)
    if size is None or not hl_smi.read_cards(machine):
        return
    if size < _SHARED_MIB * 2**20:
        yield warning(
            "shared memory",
            f"{_SHARED} has {size / 2**20:.0f} MiB",
            "Start the container with --ipc=host; on Kubernetes mount an emptyDir of medium Memory "
            "there.",
        )
    else:
        yield ok("shared memory", f"{_SHARED} has {size / 2**30:.0f} GiB")


def check_locked_memory(machine: Machine) -> Iterator[Finding]:
    """Checks whether memory can be registered for the host's network cards, which locks it.

    The cards of one server need no such memory, nor do servers whose cards are connected directly.
    So there is a warning only where a switch asks for the host's network cards.

    Source: rdma-core, Documentation/libibverbs.md, "Permissions".
    """
    text = machine.read("/proc/self/limits") or ""
    limit = re.search(r"^Max locked memory\s+(\w+)", text, re.M)
    if limit is None or not hl_smi.read_cards(machine):
        return
    if limit[1] == "unlimited":
        yield ok("locked memory", "unlimited")
        return
    asking = [name for name in _OVER_HOST_NICS if machine.environment.get(name) == "1"]
    found = (
        f"at most {int(limit[1]) / 2**20:g} MiB, which the host's network cards may find too few"
    )
    tell = warning if asking else note
    yield tell(
        "locked memory",
        f"{found}; {asking[0]}=1 asks for them" if asking else f"{found}, where they are used",
        "ulimit -l unlimited, in /etc/security/limits.conf to keep it; start a container with "
        "--ulimit memlock=-1; under SLURM see PropagateResourceLimits.",
    )
