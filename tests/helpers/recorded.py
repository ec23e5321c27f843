"""Machines as `hl-smi`, the kernel and pip describe them, for the checks of the doctor.

Formats and versions are those of published outputs, of 1.12 to 1.23.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from lightning_gaudi.tools.doctor import hl_smi, mode
from lightning_gaudi.tools.doctor.machine import Answer, Machine

RELEASE = "1.23.0"
DRIVER = f"{RELEASE}-2eae87a"
FIRMWARE = f"{RELEASE}-fw-62.2.1-sec-9"
MEMINFO = """\
MemTotal:       1056428516 kB
HugePages_Total:   {pages}
HugePages_Free:    {pages}
HugePages_Rsvd:        0
Hugepagesize:       2048 kB
"""
REQUIREMENTS = (
    "lightning!=2.6.2,!=2.6.3,<2.7,>=2.5.6",
    "torch>=2.6",
    "numpy",
    'deepspeed<0.20,>=0.19; extra == "deepspeed"',
    'transformers>=4.49; extra == "recipes"',
)
PACKAGES = {
    "lightning-gaudi": "0.1.0",
    "lightning": "2.6.6",
    "torch": "2.9.0+hpu.1.23.0.695",
    "habana-torch-plugin": "1.23.0.695",
}
ENVIRONMENT = {
    "HOME": "/home/ann",
    "GC_KERNEL_PATH": "/usr/lib/habanalabs/libtpc_kernels.so",
    "HABANA_LOGS": "/var/log/habana_logs/",
    "HABANA_SCAL_BIN_PATH": "/opt/habanalabs/engines_fw",
    "HABANA_PLUGINS_LIB_PATH": "/opt/habanalabs/habana_plugins",
}
MODULES = ("2", "6", "3", "7", "0", "4", "5", "1")
"""By index: the order in which a driver finds cards is not that of their slots."""


class Recorded(Machine):
    """What was recorded of a machine stands for it."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        commands: Mapping[tuple[str, ...], Answer] | None = None,
        files: Mapping[str, str] | None = None,
        packages: Mapping[str, str] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(environment or {})
        self.commands = dict(commands or {})
        self.files = dict(files or {})
        self.packages = dict(packages or {})
        self.sizes = dict(sizes or {})

    def run(self, *command: str, timeout_s: float = 0) -> Answer:
        return self.commands.get(command, Answer("", f"there is no {command[0]} on the PATH"))

    def read(self, path: str) -> str | None:
        text = self.files.get(path)
        return None if text is None else text.strip()

    def names(self, folder: str) -> list[str]:
        below = f"{folder}/"
        inside = (path[len(below) :] for path in self.files if path.startswith(below))
        return sorted({path.partition("/")[0] for path in inside})

    def exists(self, path: str) -> bool:
        return path in self.files or bool(self.names(path.rstrip("/")))

    def total_bytes(self, path: str) -> int | None:
        return self.sizes.get(path)

    free_bytes = total_bytes

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def requirements(self) -> Iterable[str]:
        return REQUIREMENTS


def smi_csv(
    driver: str = DRIVER,
    name: str = "HL-225",
    used: Mapping[str, int] | None = None,
    modules: Iterable[str] = MODULES,
) -> Answer:
    """What `hl-smi -Q ... -f csv,noheader` prints; `used` has MiB by module."""
    return Answer(
        "".join(
            f"{index}, {module}, {name}, {driver}, 98304 MiB, {(used or {}).get(module, 768)} MiB\n"
            for index, module in enumerate(modules)
        )
    )


def smi_list(spi: Iterable[str] = (FIRMWARE,) * 8, system: str = FIRMWARE) -> Answer:
    """What `hl-smi -L` prints, without what nobody reads; `spi` is the flash's of each card."""
    return Answer(
        "".join(
            f"""\
[{index}] AIP (accel{index}) 0000:4{index}:00.0
        Product Name                    : HL-225
        Module ID                       : {MODULES[index]}
        Firmware [SPI] Version          : Preboot version hl-gaudi2-{version} (Oct 12 2025 - 22:14)
        Firmware [OS] Version           : Zephyr 2.7.2-hl-gaudi2-{system} (Oct 12 2025 - 22:14:47)
        CPLD Version                    : 0x0000000d
"""
            for index, version in enumerate(spi)
        )
    )


def probe(**found: object) -> Answer:
    """What the process prints that loads the vendor's package."""
    return Answer("habana says something first\n" + json.dumps(found) + "\n")


def gaudi2_server() -> Recorded:
    """Eight cards of a healthy server of release 1.23.0, in a container of the vendor's."""
    cards = {f"/sys/class/accel/accel{index}/device/status": "operational" for index in range(8)}
    installed = {
        path: "" for name, path in ENVIRONMENT.items() if name not in ("HOME", "HABANA_LOGS")
    }
    return Recorded(
        ENVIRONMENT,
        {
            hl_smi.QUERY: smi_csv(),
            hl_smi.LIST: smi_list(),
            mode.PROBE: probe(cards=8, reason="", lazy=False),
        },
        {
            "/sys/module/habanalabs/version": DRIVER,
            "/proc/meminfo": MEMINFO.format(pages=20000),
            "/proc/self/mounts": "overlay / overlay rw 0 0\n",
            "/var/log/habana_logs/synapse.log": "",
            "/sys/class/net/lo/operstate": "unknown",
            "/sys/class/net/eth0/operstate": "up",
            **cards,
            **installed,
        },
        PACKAGES,
        {"/dev/shm": 500 * 2**30},
    )


def laptop() -> Recorded:
    """No card, no driver, no vendor's package: PyTorch's own torch for the CPU."""
    packages = PACKAGES | {"torch": "2.13.0+cpu"}
    del packages["habana-torch-plugin"]
    mounts = {"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\n"}
    return Recorded({"HOME": "/home/ann"}, {}, mounts, packages)
