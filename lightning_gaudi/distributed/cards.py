"""Which of the machine's cards this process drives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._core import vendor

DEVICE = torch.device("hpu", 0)
"""How a process sees its card, whichever it is."""


def select_card(devices: Sequence[torch.device], local_rank: int) -> None:
    """Bind this process to its card, before anything has started it.

    The driver reads the card from HLS_MODULE_ID. Where a launcher has set that, one value for each
    rank, it is kept.

    Args:
        devices: The cards of this node's ranks; an index is a position among the visible modules.
        local_rank: This process among those of its node.

    Raises:
        MisconfigurationException: There is no such card, or the process drives another one.
    """
    if local_rank >= len(devices):
        raise MisconfigurationException(
            f"This process has the local rank {local_rank}, but devices={len(devices)} starts "
            f"{len(devices)} on a node. Pass as many devices as processes are started."
        )
    modules = [vendor.module_id(index) for index in _positions(devices)]
    module, mine = modules[local_rank], vendor.selected_module()
    if mine is None:
        if modules == [vendor.module_id(0)]:
            return  # any card will do: the driver takes a free one
        if vendor.is_initialized():
            raise MisconfigurationException(
                f"Local rank {local_rank} drives module {module}, but its HPU was in use before "
                "training began, and so may be another one. Use no hpu tensor before Trainer.fit "
                "or Fabric.launch, or set HLS_MODULE_ID before Python starts."
            )
        vendor.select_module(module)
    elif mine not in modules:
        raise MisconfigurationException(
            f"This process drives module {mine}, as HLS_MODULE_ID says, but the devices of this "
            f"run are the modules {', '.join(modules)}. Unset HLS_MODULE_ID, or pass other devices."
        )


def _positions(devices: Sequence[torch.device]) -> list[int]:
    """The cards' positions; devices that all are `hpu` or `hpu:0` are the first ones."""
    indices = [device.index or 0 for device in devices]
    return indices if len(set(indices)) == len(indices) else list(range(len(indices)))
