"""Asks `hl-smi` about one card, to say why the rank that drives it may be slow.

Temperatures are in degrees Celsius, and utilization is in percent. Clocks are not in the lists of
all releases. `hl-smi` refuses a query as a whole if it does not know one of its names, so clocks
have a query of their own.

Source: Intel Gaudi documentation, "System Management Interface Tool (hl-smi)", the option `-Q`.
"""

from __future__ import annotations

import time
from typing import Any

from lightning_gaudi.untrusted import printable

_PATIENCE_S = 5.0
_FIELDS = {
    "temperature.aip": "temperature",
    "utilization.aip": "utilization",
    "power.draw": "power",
    "ecc.errors.uncorrected.volatile.total": "uncorrected ECC errors",
    "ecc.errors.corrected.volatile.total": "corrected ECC errors",
    "stats.violation.thermal": "thermal violations",
    "stats.violation.power": "power violations",
}
_CLOCKS = {"clocks.current.soc": "clock", "clocks.limit.soc": "of at most"}


class CardQuestion:
    """Asks `hl-smi` about one card, without waiting for the answer.

    Args:
        tool: The path of `hl-smi`; None where it is not installed.
        module: The card's slot in its server.
    """

    def __init__(self, tool: str | None, module: str) -> None:
        self._module = module
        self._asked_at = time.monotonic()
        self._processes: list[tuple[dict[str, str], Any]] = []
        self._problem = "hl-smi is not there to say more" if tool is None else ""
        for fields in (_FIELDS, _CLOCKS) if tool is not None else ():
            self._processes.append((fields, self._start(str(tool), fields)))

    def _start(self, tool: str, fields: dict[str, str]) -> Any:
        import subprocess  # imported only here, so that the watching process starts fast

        command = [tool, "-Q", ",".join(["module_id", *fields]), "-f", "csv,noheader"]
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._problem = f"hl-smi cannot be started: {error}"
            return None

    def answer(self) -> str | None:
        """Returns what `hl-smi` says, in words; None as long as it has not answered."""
        running = [each for _, each in self._processes if each is not None and each.poll() is None]
        if running:
            if time.monotonic() - self._asked_at < _PATIENCE_S:
                return None
            for each in running:
                # A driver that hangs keeps it in the kernel, even killed. So nobody waits for it,
                # and it gets a return code here, without which `Popen` would wait or warn.
                each.kill()
                each.returncode = -9
            self._read_all()
            return f"module {self._module}: hl-smi does not answer"
        found = self._read_all()
        told = ", ".join(found) or self._problem or "hl-smi does not say more"
        return printable(f"module {self._module}: {told}", max_chars=400)

    def _read_all(self) -> list[str]:
        found = []
        for fields, process in self._processes:
            if process is not None:
                with process.stdout as stdout:
                    found += (
                        self._read(fields, stdout.read(65536)) if not process.returncode else []
                    )
        return found

    def _read(self, fields: dict[str, str], text: str) -> list[str]:
        for line in text.splitlines():
            module, *values = (cell.strip() for cell in line.split(","))
            if module == self._module and len(values) == len(fields):
                pairs = zip(fields.values(), values, strict=True)
                return [f"{name} {value}" for name, value in pairs if value]
        return []
