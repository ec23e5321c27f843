"""What docs/how-to/doctor.md shows of a server is what the checks say of a recorded one."""

from __future__ import annotations

import re
from pathlib import Path

from lightning_gaudi.tools.doctor import cards, hl_smi, memory, software, variables
from lightning_gaudi.tools.doctor.findings import Report, table
from tests.helpers.recorded import ENVIRONMENT, MEMINFO, gaudi2_server, smi_csv

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "doctor.md"


def _server() -> Report:
    """Seven faults of a server that does not train."""
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv("1.22.2-5c9d282", used={"5": 42940})
    machine.files["/proc/meminfo"] = MEMINFO.format(pages=1024)
    machine.packages |= {"torch": "2.13.0", "lightning": "2.6.5"}
    machine.environment = ENVIRONMENT | {"PT_HPU_LAZYMODE": "1", "GC_KERNEL_PATH": ""}
    checks = (
        *(cards.check_presence, cards.check_health, cards.check_driver, software.check_torch),
        *(software.check_lightning, variables.check_installed, variables.check_names),
        memory.check_huge_pages,
    )
    return Report([finding for check in checks for finding in check(machine)])


def test_the_page_shows_what_is_said() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert table(_server()) in blocks
