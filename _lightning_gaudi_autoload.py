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
    """Prepare what must be there before torch, and the vendor's package with it, are imported.

    Called by `_lightning_gaudi_autoload.pth` as Python starts where the simulator is asked for, or
    this process sees some of a server's cards alone. The stand-in imports torch, which starts the
    simulator; a program may import it first, as it may import the vendor's package on a card.
    """
    if os.environ.get("LIGHTNING_GAUDI_AUTOLOAD") == "0":
        return
    here = os.path.dirname(__file__)  # noqa: PTH120
    stand_in = os.path.join(here, "lightning_gaudi", "simulator", "stand_in")  # noqa: PTH118
    if os.environ.get("LIGHTNING_GAUDI_SIMULATE") and stand_in not in sys.path:
        sys.path.append(stand_in)
    claim_only_module()


CLAIMED = "_LIGHTNING_GAUDI_CLAIMED_MODULE"
"""The module that this package has named in HLS_MODULE_ID, for a child whose own is another one."""


def claim_only_module() -> None:
    """Name the card of a process that sees one, before the vendor's package looks for it.

    That takes the local rank for a position among the visible modules, and so ends the second rank
    of a server where each rank sees a module of its own. With HLS_MODULE_ID it does not look.

    Source: Intel Gaudi PyTorch bridge 1.19 and 1.24.0, `distributed/hccl/__init__.py`.
    """
    modules = os.environ.get("HABANA_VISIBLE_MODULES", "").split(",")
    ranks = {os.environ.get(name) for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")}
    told = os.environ.get("HLS_MODULE_ID")
    is_free = told is None or told == os.environ.get(CLAIMED)
    if len(modules) == 1 and modules[0] and is_free and ranks - {None, "", "0"}:
        os.environ["HLS_MODULE_ID"] = os.environ[CLAIMED] = modules[0].strip()
