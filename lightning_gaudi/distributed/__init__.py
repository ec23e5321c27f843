"""Several cards: what the strategies of the Trainer and of Fabric do alike.

`cluster` tells who has started how many processes, `launchers` starts them, `cards` gives each its
card, `group` connects them, `ddp` averages their gradients and `agreement` stops them together.
"""

from .agreement import StopAgreement
from .cards import DEVICE, select_card
from .ddp import sync_buffers, sync_buffers_before_evaluation, wrap
from .error_sync import on_rank_zero, raise_together
from .process_group import (
    BACKEND,
    barrier,
    broadcast_object,
    check_alone,
    checked_backend,
    cpu_group,
    decide,
    gather_objects,
    init_process_group,
    is_connected,
    reduce,
)

__all__ = [
    "BACKEND",
    "DEVICE",
    "StopAgreement",
    "barrier",
    "broadcast_object",
    "check_alone",
    "checked_backend",
    "cpu_group",
    "decide",
    "gather_objects",
    "init_process_group",
    "is_connected",
    "on_rank_zero",
    "raise_together",
    "reduce",
    "select_card",
    "sync_buffers",
    "sync_buffers_before_evaluation",
    "wrap",
]
