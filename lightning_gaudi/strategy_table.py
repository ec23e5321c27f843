"""Lists the strategies of the Trainer and of Fabric, one in a line.

The names for `strategy`, the choice of the class that runs on an HPU, Lightning's registries and
the exports of packages are derived from this table. A new strategy needs a line here, and a module
in `strategies`, in `fabric/strategies`, or in both. This module imports nothing, so that nothing is
loaded before an HPU is asked for.
"""

from __future__ import annotations

from typing import NamedTuple


class Strategy(NamedTuple):
    """A strategy of ours."""

    kind: str
    """Our class, of the same name in `strategies` and, if Fabric has it, `fabric.strategies`."""
    module: str
    """The module that has the class, in either package."""
    lightning: str
    """Lightning's class that becomes this one on accelerator "hpu"; empty if none does."""
    names: tuple[str, ...]
    """The strings that may be passed as `strategy`: its name, then the names of older projects."""
    is_in_fabric: bool = True
    """Whether Fabric has it, too."""
    needs_arguments: bool = False
    """Whether Fabric takes it as an instance only, since it needs arguments."""
    old_kinds: tuple[str, ...] = ()
    """The names of the class in older projects."""

    @property
    def fabric_names(self) -> tuple[str, ...]:
        """The `names` that Fabric knows."""
        return self.names if self.is_in_fabric and not self.needs_arguments else ()


STRATEGIES = (
    Strategy("SingleHPUStrategy", "single", "SingleDeviceStrategy", ("hpu_single",)),
    Strategy(
        "HPUDDPStrategy",
        "ddp",
        "DDPStrategy",
        ("hpu_ddp", "hpu_parallel"),
        old_kinds=("HPUParallelStrategy",),
    ),
    Strategy("HPUFSDPStrategy", "fsdp", "FSDPStrategy", ("hpu_fsdp",)),
    Strategy(
        "HPUModelParallelStrategy",
        "model_parallel",
        "ModelParallelStrategy",
        ("hpu_model_parallel",),
        needs_arguments=True,
    ),
    Strategy("HPUDeepSpeedStrategy", "deepspeed", "DeepSpeedStrategy", ("hpu_deepspeed",)),
)

FORMS = {each.lightning: each for each in STRATEGIES if each.lightning}
"""The strategies that one of Lightning's classes becomes on accelerator "hpu", by that class."""


def exports(*, in_fabric: bool) -> dict[str, str]:
    """Returns the names that `strategies` or `fabric.strategies` exports, with their modules."""
    return {
        name: f".{each.module}"
        for each in STRATEGIES
        if each.is_in_fabric or not in_fabric
        for name in (each.kind, *each.old_kinds)
    }


def listed_names(*, in_fabric: bool) -> str:
    """Returns the strings that may be passed as `strategy`, for messages."""
    known = [each.fabric_names if in_fabric else each.names for each in STRATEGIES]
    names = ", ".join(map(repr, ("auto", *sorted(each[0] for each in known if each))))
    return f"{names}, or one of Lightning's names that begin with 'ddp', 'deepspeed' or 'fsdp'"


def names_of(kind: type) -> tuple[str, ...]:
    """Returns the names of one of our classes; a class that a user has derived has none."""
    found = (each.names for each in STRATEGIES if each.kind == kind.__name__)
    return next(found, ()) if kind.__module__.startswith("lightning_gaudi.") else ()
