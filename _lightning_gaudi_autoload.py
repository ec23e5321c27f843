"""The entry point that torch calls at the end of `import torch`, and what comes before torch.

A module of its own, beside the package and with the standard library only: torch cannot be
imported any more where an entry point's module fails to import.
"""

import os
import sys


class SimulatorDidNotStartError(BaseException):
    """The environment asks for the simulated HPU, and it cannot be had.

    No `Exception`: torch turns every one of an entry point into one of its own, whose message is
    not why, but how to go on without.
    """

    __module__ = "lightning_gaudi"


def autoload() -> None:
    """Activate the plugin; `LIGHTNING_GAUDI_AUTOLOAD=0` turns this off.

    A failure of ours never keeps torch from being imported: it becomes one warning. Only where the
    environment asks for the simulator is it raised, for then the run must not go on without it.

    Raises:
        SimulatorDidNotStartError: The simulator was asked for and cannot be had.
    """
    if os.environ.get("LIGHTNING_GAUDI_AUTOLOAD") == "0":
        return
    try:
        from lightning_gaudi import _patches

        _patches.activate()
    except Exception as error:
        if os.environ.get("LIGHTNING_GAUDI_SIMULATE"):
            raise SimulatorDidNotStartError(str(error)) from error
        import warnings

        warnings.warn(
            "lightning_gaudi could not be activated, so accelerator='hpu' will not work: "
            f"{type(error).__name__}: {error}. Reinstall lightning-gaudi, or set "
            "LIGHTNING_GAUDI_AUTOLOAD=0 to leave it off.",
            RuntimeWarning,
            stacklevel=2,
        )


def before_torch() -> None:
    """Let a program import the vendor's package before torch, as it may on a card.

    Called by `_lightning_gaudi_autoload.pth` as Python starts where the simulator is asked for. The
    stand-in imports torch, which starts the simulator.
    """
    here = os.path.dirname(__file__)  # noqa: PTH120
    stand_in = os.path.join(here, "lightning_gaudi", "simulator", "stand_in")  # noqa: PTH118
    if os.environ.get("LIGHTNING_GAUDI_AUTOLOAD") != "0" and stand_in not in sys.path:
        sys.path.append(stand_in)
