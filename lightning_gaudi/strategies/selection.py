"""Which strategy of the Trainer's runs on an HPU; Fabric's module of this name says how."""

from __future__ import annotations

from lightning.pytorch.strategies import StrategyRegistry

from ..fabric.strategies.selection import StrategySelection

SELECTION = StrategySelection(
    registry=StrategyRegistry,
    lightning="lightning.pytorch.",
    ours=__name__.rpartition(".")[0],
    precision=f"{__name__.rpartition('.strategies.')[0]}.precision",
)
