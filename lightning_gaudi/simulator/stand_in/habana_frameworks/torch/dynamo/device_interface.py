"""Answers what torch's compiler asks of a device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from ..._missing import missing
from .. import hpu


class HpuInterface(DeviceInterface):
    """The HPU as torch's compiler sees it."""

    device = hpu.device
    Event = hpu.Event
    Stream = hpu.Stream

    class Worker:
        """The HPU in a compile worker; there is one device."""

        @staticmethod
        def set_device(device: int) -> None:
            """Selects a device: the only one is selected."""

        @staticmethod
        def current_device() -> int:
            """Returns the only device."""
            return 0

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> str:
            """Returns the card's properties."""
            return hpu.get_device_properties(device)

    current_device = staticmethod(hpu.current_device)
    set_device = staticmethod(hpu.set_device)
    device_count = staticmethod(hpu.device_count)
    is_available = staticmethod(hpu.is_available)
    stream = staticmethod(hpu.stream)
    current_stream = staticmethod(hpu.current_stream)
    set_stream = staticmethod(hpu.set_stream)
    synchronize = staticmethod(hpu.synchronize)
    get_device_properties = staticmethod(hpu.get_device_properties)
    memory_allocated = staticmethod(hpu.memory_allocated)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        hpu.set_stream(
            hpu.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Returns the current stream's number."""
        return hpu.current_stream().stream_id

    @staticmethod
    def exchange_device(device: int) -> int:
        """Selects a device and returns the one before: a process has one."""
        return 0

    maybe_exchange_device = exchange_device

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> Any:
        """Returns the driver's version."""
        return hpu.get_device_capability(device)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Returns whether the device computes in bfloat16."""
        return hpu.is_bf16_supported()

    @staticmethod
    def is_triton_capable(device: torch.types.Device = None) -> bool:
        """Returns whether Triton compiles for the device: no."""
        return False


register_interface_for_device("hpu", HpuInterface)
register_interface_for_device("hpu:0", HpuInterface)

__getattr__ = missing(__name__)
