"""Memory, folders, network, the vendor's package and the compiler."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from lightning_gaudi.simulator import settings
from lightning_gaudi.tools.doctor import files, memory, mode, network, software
from lightning_gaudi.tools.doctor.findings import Finding, Level
from lightning_gaudi.tools.doctor.machine import Answer, Machine
from tests.helpers.recorded import MEMINFO, Recorded, gaudi2_server, laptop, probe

NFS = "/dev/sda1 / ext4 rw 0 0\nnas:/x /shared nfs4 rw 0 0\n/dev/sdb /shared/fast xfs rw 0 0\n"


def _machine(**environment: str) -> Recorded:
    machine = laptop()
    machine.environment = environment
    return machine


def test_too_few_huge_pages_are_a_warning_with_the_command() -> None:
    machine = gaudi2_server()
    machine.files["/proc/meminfo"] = MEMINFO.format(pages=1024)
    (found,) = memory.check_huge_pages(machine)
    assert found.level is Level.WARNING
    assert found.found.startswith("1024 of 2 MiB, 1024 free")
    assert "vm.nr_hugepages=17600" in found.fix  # 8 x 4400 MiB
    machine.files["/proc/meminfo"] = MEMINFO.format(pages=17600)
    assert next(memory.check_huge_pages(machine)).level is Level.OK
    assert not list(memory.check_huge_pages(laptop()))


def test_a_container_without_the_hosts_shared_memory_is_a_warning() -> None:
    machine = gaudi2_server()
    assert next(memory.check_shared_memory(machine)).level is Level.OK
    machine.sizes["/dev/shm"] = 64 * 2**20
    (found,) = memory.check_shared_memory(machine)
    assert (found.level, found.found) == (Level.WARNING, "/dev/shm has 64 MiB")
    assert "--ipc=host" in found.fix


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hugetlb.2MB.max", 512 * 2**21),
        ("hugetlb/hugetlb.2MB.limit_in_bytes", 512 * 2**21),
    ],
)
def test_a_container_has_the_huge_pages_that_it_may_use(path: str, value: int) -> None:
    machine = gaudi2_server()
    machine.files["/proc/meminfo"] = MEMINFO.format(pages=17600)
    machine.files[f"/sys/fs/cgroup/{path}"] = str(value)
    (found,) = memory.check_huge_pages(machine)
    assert found.level is Level.WARNING
    assert found.found.startswith("this container may use 512 of the server's 17600 of 2 MiB")


@pytest.mark.parametrize(
    ("groups", "folder", "limit", "events"),
    [
        ("0::/", "/sys/fs/cgroup", "memory.max", "memory.events"),
        ("0::/kubepods/pod1", "/sys/fs/cgroup/kubepods/pod1", "memory.max", "memory.events"),
        ("0::/of/the/host", "/sys/fs/cgroup", "memory.max", "memory.events"),
        (
            "4:memory:/docker/1",
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.oom_control",
        ),
    ],
)
def test_the_memory_limit_of_a_container_is_named_once_it_has_killed(
    groups: str, folder: str, limit: str, events: str
) -> None:
    machine = gaudi2_server()
    assert not list(memory.check_memory_limit(machine))
    machine.files |= {"/proc/self/cgroup": groups, f"{folder}/{limit}": str(3 * 2**30)}
    (found,) = memory.check_memory_limit(machine)
    assert (found.level, found.found) == (Level.NOTE, "this container may use 3.0 GiB")
    machine.files[f"{folder}/{events}"] = "low 0\noom 2\noom_kill 2"
    (found,) = memory.check_memory_limit(machine)
    assert found.level is Level.WARNING
    assert "has ended 2 of its processes" in found.found
    machine.files[f"{folder}/{limit}"] = "max" if limit == "memory.max" else str(2**63 - 4096)
    assert not list(memory.check_memory_limit(machine))


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             94077                94077                processes
Max locked memory         {soft:<20} unlimited            bytes
"""


@pytest.mark.parametrize(
    ("soft", "environment", "level", "words"),
    [
        ("unlimited", {"HCCL_OVER_OFI": "1"}, Level.OK, "unlimited"),
        ("65536", {}, Level.NOTE, "at most 0.0625 MiB, which the host's network cards may find"),
        ("8388608", {"HCCL_OVER_OFI": "1"}, Level.WARNING, "at most 8 MiB"),
        ("8388608", {"FI_EFA_USE_DEVICE_RDMA": "1"}, Level.WARNING, "FI_EFA_USE_DEVICE_RDMA=1"),
        ("8388608", {"HCCL_OVER_OFI": "0"}, Level.NOTE, "where they are used"),
    ],
)
def test_little_memory_to_lock_is_a_warning_where_the_hosts_network_cards_are_asked_for(
    soft: str, environment: dict[str, str], level: Level, words: str
) -> None:
    machine = gaudi2_server()
    machine.environment = {**machine.environment, **environment}
    machine.files["/proc/self/limits"] = LIMITS.format(soft=soft)
    (found,) = memory.check_locked_memory(machine)
    assert found.level is level
    assert words in found.found
    assert ("ulimit -l unlimited" in found.fix) == (level is not Level.OK)


def test_the_limit_of_locked_memory_is_the_kernels_and_of_no_laptop() -> None:
    text = Machine().read("/proc/self/limits")
    assert text is None or "Max locked memory" in text
    machine = laptop()
    machine.files["/proc/self/limits"] = LIMITS.format(soft="65536")
    assert not list(memory.check_locked_memory(machine))


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/x", "ext4"), ("/shared/x", "nfs4"), ("/shared/fast/x", "xfs"), ("/sharedx", "ext4")],
)
def test_a_path_is_on_the_file_system_that_is_mounted_nearest(path: str, kind: str) -> None:
    assert files.file_system(Recorded(files={"/proc/self/mounts": NFS}), path) == kind


def test_tmpdir_must_be_there_with_space_on_a_disk_of_this_server(tmp_path: Path) -> None:
    def check(folder: Path, free: int = 2**40, kind: str = "ext4") -> Finding:
        machine = _machine(TMPDIR=str(folder))
        machine.sizes[str(folder)] = free
        machine.files["/proc/self/mounts"] = f"x {tmp_path} {kind} rw 0 0\n"
        (found,) = files.check_tmpdir(machine)
        return found

    assert check(tmp_path).level is Level.OK
    missing = check(tmp_path / "missing")
    assert (missing.level, "No such file" in missing.found) == (Level.ERROR, True)
    assert check(tmp_path, free=2**29).level is Level.WARNING
    assert check(tmp_path, free=2**20).level is Level.ERROR
    remote = check(tmp_path, kind="nfs4")
    assert (remote.level, "on nfs4" in remote.found) == (Level.WARNING, True)
    assert not list(tmp_path.iterdir())


def test_a_folder_for_checkpoints_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    (found,) = files.check_checkpoints(Machine(), str(folder))
    assert found.found.startswith(f"{tmp_path}, ")
    assert found.level in (Level.OK, Level.NOTE, Level.WARNING)  # as is the disk of this machine
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("failing", "level", "words"),
    [
        ("_replaces", Level.ERROR, "cannot take another's place"),
        ("_locks", Level.WARNING, "cannot be locked"),
    ],
)
def test_file_systems_that_cannot_keep_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, level: Level, words: str
) -> None:
    monkeypatch.setattr(files, failing, lambda folder: False)
    (found,) = files.check_checkpoints(laptop(), str(tmp_path))
    assert found.level is level
    assert words in found.found


def test_checkpoints_on_a_full_or_a_remote_file_system(tmp_path: Path) -> None:
    machine = laptop()
    machine.sizes[str(tmp_path)] = 2**20
    assert next(files.check_checkpoints(machine, str(tmp_path))).level is Level.WARNING
    machine.sizes[str(tmp_path)] = 2**40
    machine.files["/proc/self/mounts"] = f"nas {tmp_path} lustre rw 0 0\n"
    (found,) = files.check_checkpoints(machine, str(tmp_path))
    assert found.level is Level.NOTE
    assert "async_save=True" in found.fix


def test_a_folder_that_nobody_may_write_is_an_error() -> None:
    (found,) = files.check_checkpoints(laptop(), "/proc")
    assert found.level is Level.ERROR


def test_logs_that_cannot_be_written_are_a_warning() -> None:
    machine = gaudi2_server()
    machine.files["/proc/nothing/log"] = ""
    machine.environment = {"HABANA_LOGS": "/proc/nothing"}
    (found,) = files.check_logs(machine)
    assert found.level is Level.WARNING


def test_a_port_in_use_is_an_error_where_rank_0_would_be() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        (found,) = network.check_port(_machine(), port)
        assert found.level is Level.ERROR
        assert found.found == f"--port {port} is in use by another program"
        here = _machine(MASTER_PORT=str(port), MASTER_ADDR="localhost")
        assert next(network.check_port(here, None)).level is Level.ERROR
        # 192.0.2.0/24 is nobody's.
        elsewhere = _machine(MASTER_PORT=str(port), MASTER_ADDR="192.0.2.1")
        assert next(network.check_port(elsewhere, None)).level is Level.OK
        rank_1 = _machine(MASTER_PORT=str(port), OMPI_COMM_WORLD_RANK="1")
        assert next(network.check_port(rank_1, None)).level is Level.OK
    assert next(network.check_port(_machine(), port)).level is Level.OK


def test_ports_that_are_none_and_the_one_that_is_guessed() -> None:
    assert next(network.check_port(_machine(), None)).level is Level.OK
    assert "is no port" in next(network.check_port(_machine(MASTER_PORT="x"), None)).found
    guessed = _machine(MASTER_ADDR="localhost", MASTER_PORT="12345")
    assert "two jobs" in next(network.check_port(guessed, None)).found


def test_the_address_of_rank_0_must_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(network.check_address(_machine()))
    assert next(network.check_address(_machine(MASTER_ADDR="127.0.0.1"))).level is Level.OK

    def nowhere(*args: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    (found,) = network.check_address(_machine(MASTER_ADDR="gaudi1"))
    assert found.level is Level.ERROR
    assert found.found == "MASTER_ADDR=gaudi1 is not found (Name or service not known)"


def test_interfaces_must_be_there_and_up() -> None:
    machine = gaudi2_server()
    machine.files["/sys/class/net/eth1/operstate"] = "down"
    assert next(network.check_interfaces(machine, "eth0")).level is Level.OK
    (found,) = network.check_interfaces(machine, "ib0")
    assert found.found == "--interface=ib0: there is no ib0; here are eth0, eth1, lo"
    assert "eth1 is down" in next(network.check_interfaces(machine, "eth1")).found
    machine.environment = {"HCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth"}
    levels = [each.level for each in network.check_interfaces(machine, None)]
    assert levels == [Level.ERROR, Level.OK]  # gloo's must be whole


def test_a_host_whose_name_leads_nowhere_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, level in {"127.0.1.1": Level.NOTE, "10.0.0.7": Level.OK}.items():
        monkeypatch.setattr(socket, "gethostbyname", lambda name, found=address: found)
        (found,) = network.check_interfaces(gaudi2_server(), None)
        assert found.level is level
        assert level is Level.OK or "GLOO_SOCKET_IFNAME to one of eth0" in found.fix
    assert not list(network.check_interfaces(laptop(), None))


def test_the_vendors_package_is_asked_for_mode_and_cards() -> None:
    machine = gaudi2_server()
    (found,) = mode.check_mode(machine)
    assert found.found == "eager (the release's default); 8 cards for torch"
    machine.commands[mode.PROBE] = probe(cards=8, reason="", lazy=True)
    machine.environment = {"PT_HPU_LAZY_MODE": "1"}
    assert next(mode.check_mode(machine)).found.startswith("lazy (PT_HPU_LAZY_MODE=1)")
    machine.commands[mode.PROBE] = probe(cards=4, reason="", lazy=True)
    *_, found = mode.check_mode(machine)
    assert found.found == "torch sees 4 cards, hl-smi 8"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (probe(cards=0, reason="AssertionError: Compile-time"), "AssertionError: Compile-time"),
        (Answer("", "python did not answer within 120 s"), "did not answer within 120 s"),
        (Answer("nothing to see"), "an answer that is none"),
    ],
)
def test_a_vendors_package_that_does_not_load_is_an_error(answer: Answer, words: str) -> None:
    machine = gaudi2_server()
    machine.commands[mode.PROBE] = answer
    (found,) = mode.check_mode(machine)
    assert found.level is Level.ERROR
    assert words in found.found


def test_without_the_vendors_package_nothing_is_asked() -> None:
    assert not list(mode.check_mode(laptop()))


def test_no_compiler_is_a_note_and_an_error_where_simulated_cards_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.CACHE_DIR, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = software.check_compiler(laptop())
    assert found.level is Level.NOTE
    assert "no C++ compiler was found" in found.found
    assert found.fix.startswith("Install one (Debian: apt-get install g++)")
    monkeypatch.setenv(settings.SIMULATE, "2")
    (found,) = software.check_compiler(_machine(LIGHTNING_GAUDI_SIMULATE="2"))
    assert found.level is Level.ERROR


def test_a_simulated_server_that_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.SIMULATE, "9")
    (found,) = software.check_compiler(_machine(LIGHTNING_GAUDI_SIMULATE="9"))
    assert found.level is Level.ERROR
    assert "is no number of cards" in found.found


def test_a_gaudi_server_needs_no_compiler() -> None:
    assert not list(software.check_compiler(gaudi2_server()))


def test_commands_that_are_missing_fail_or_hang_are_told_apart() -> None:
    machine = Machine(dict(os.environ))
    assert machine.run("no-such-command").problem == "there is no no-such-command on the PATH"
    failing = machine.run(sys.executable, "-S", "-c", "import sys; sys.exit('no devices')")
    assert failing.problem.endswith("failed with status 1: no devices")
    hanging = machine.run("sleep", "60", timeout_s=0.1)
    assert hanging.problem == "sleep did not answer within 0 s"
    assert machine.run("echo", "8 cards") == Answer("8 cards\n")


def test_a_kernel_without_huge_pages_is_no_error() -> None:
    machine = gaudi2_server()
    machine.files["/proc/meminfo"] = "MemTotal: 1056428516 kB"
    assert not list(memory.check_huge_pages(machine))
