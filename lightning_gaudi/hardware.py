"""Lists the generations of Gaudi: memory, speeds and features of each, with their sources.

Whatever depends on the card's generation asks this table. It imports nothing, so that the plugin,
its tools and the simulator can share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True)
class Gaudi:
    """A generation of the card."""

    key: str
    """Its name for users: "gaudi2"."""
    title: str
    """The product's name."""
    device_name: str
    """What the vendor's `get_device_name()` answers."""
    memory_gib: int
    """The device memory that the product is sold with."""
    memory_bytes: int
    """The bytes of it that the vendor's allocator hands out; all of it where that is not known."""
    bandwidth: float
    """The bandwidth of the device memory, in bytes a second."""
    peaks: Mapping[str, float]
    """The published FLOP/s of matrix products by dtype; float32 may be rounded to "tf32"."""
    link_bandwidth: float
    """The bytes a second that a card sends to the others of its server; it gets as many at once."""
    has_float16: bool = True
    has_float8: bool = True
    has_int64: bool = True
    """Whether eager mode keeps int64; otherwise it becomes int32."""
    has_fused_attention: bool = True
    """Whether the vendor's `FusedSDPA` runs on it."""
    has_fused_experts: bool = True
    """Whether the vendor's `mixture_of_experts` runs on it."""
    has_hybrid_float8_attention: bool = False
    """Whether attention in float8 may have its gradients in float8_e5m2."""
    float8_e4m3_max: float | None = 448.0
    """The largest float8_e4m3fn that it computes with; None without float8."""
    takes_modules_in_pairs: bool = False
    """Whether a job of several cards must have an even number of them."""

    def peak(self, dtype: str) -> float | None:
        """Returns the FLOP/s in a dtype ("bfloat16"); None where no peak is published."""
        return self.peaks.get(dtype)


GAUDIS: dict[str, Gaudi] = {
    card.key: card
    for card in (
        Gaudi(
            "gaudi1",
            "Gaudi 1",
            "GAUDI",
            memory_gib=32,
            memory_bytes=32 * _GIB,
            bandwidth=0.9e12,
            peaks={"bfloat16": 60e12},
            link_bandwidth=2e12 / 8,
            has_float16=False,
            has_float8=False,
            has_int64=False,
            has_fused_attention=False,
            has_fused_experts=False,
            float8_e4m3_max=None,
        ),
        Gaudi(
            "gaudi2",
            "Gaudi 2",
            "GAUDI2",
            memory_gib=96,
            memory_bytes=int(94.62 * _GIB),
            bandwidth=2.46e12,
            peaks={"bfloat16": 432e12, "float8_e4m3fn": 865e12},
            link_bandwidth=4.8e12 / 8,
            float8_e4m3_max=240.0,
        ),
        Gaudi(
            "gaudi3",
            "Gaudi 3",
            "GAUDI3",
            memory_gib=128,
            memory_bytes=128 * _GIB,
            bandwidth=3.67e12,
            peaks={
                "bfloat16": 1677e12,
                "float8_e4m3fn": 1677e12,
                "float32": 229e12,
                "tf32": 459e12,
            },
            link_bandwidth=9.6e12 / 8,
            has_hybrid_float8_attention=True,
            takes_modules_in_pairs=True,
        ),
    )
}
"""The generations by key, the oldest first.

Source of memory, bandwidth, links, and the peaks of Gaudi 1 and 2: Intel, "Intel Gaudi 3 AI
Accelerator", Hot Chips 2024. That deck has 1835 TFLOP/s for a Gaudi 3, in bfloat16 and in float8,
which is at 1750 MHz; its matrix engine runs at 1600 MHz, hence 1677. Source of that, and of its
float32 and tf32: Stas Bekman, "Machine Learning Engineering Open Book", compute/accelerator, the
tables of peaks and their note on the clock. Source of 94.62 GiB: the logs of vLLM for Gaudi (docs,
"Performance tuning").

Source of what a generation has, all Gaudi PyTorch bridge 1.19.0 but the last: float16, float8:
backend/synapse_helpers/device_helpers.cpp. int64: common/eager/utils.cpp. FusedSDPA:
tests/pytest_working/any_mode/FusedSDPA/test_hpu_sdpa.py, which says that it is not supported on the
first generation. mixture_of_experts: tests/pytest_working/any_mode/test_hpu_mixture_of_experts.py.
Hybrid float8 attention: tests/pytest_working/any_mode/test_hpu_fp8_te.py. Largest float8_e4m3fn:
tests/pytest_working/any_mode/test_hpu_fp8_ops_any_mode.py. Pairs: bridge 1.24.0, hpu/_utils.py.
"""


def find_gaudi(device_name: str) -> Gaudi | None:
    """Returns the generation that the vendor calls `device_name`; None if it is not known here."""
    return next((card for card in GAUDIS.values() if card.device_name == device_name), None)


EVEN_CARDS_SINCE = (1, 24)
"""The first release with the rule of `refuses_number`."""


def refuses_number(num_cards: int, generation: int | None, release: tuple[int, ...]) -> bool:
    """Returns whether a job cannot use so many cards: with Gaudi 3 it needs one or an even number.

    Args:
        num_cards: The number of visible modules, or of ranks that are started on a node.
        generation: 3 for a Gaudi 3; None if it is not known.
        release: The numbers of the Gaudi software's release.

    Source: Intel Gaudi PyTorch bridge 1.24.0, `hpu/_utils.py`
    (`_get_available_modules_from_environ`), which asserts it of HABANA_VISIBLE_MODULES.
    """
    has_rule = generation == 3 and release[:2] >= EVEN_CARDS_SINCE
    return has_rule and num_cards > 1 and num_cards % 2 == 1
