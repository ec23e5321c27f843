"""What users do with checkpoints of models in shards, beside going on from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import FSDPStrategy as OldFSDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lightning_gaudi.checkpoint.torch_dcp.layout import is_sharded_folder
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import NUM_FEATURES, Block, make_net
from tests.strategies.sharded_checkpoint_cases import (
    NUM_BATCHES,
    Resumable,
    fit,
    model_of,
    part_of,
    trainer_of,
)

pytestmark = pytest.mark.slow

NUM_RANKS = 2
NAMES = ("fsdp_shards", "fsdp2_shards")
PRECISIONS = ("bf16-mixed", "bf16-true")
Facts = dict[Any, Any]


class _Partly(Resumable):
    """With a head that no step uses: its optimizer has no state for it."""

    def __init__(self, *, is_parallel: bool) -> None:
        super().__init__(is_parallel=is_parallel)
        self.unused = nn.Linear(NUM_FEATURES, 4)


class _Tied(Resumable):
    """With one weight in two layers."""

    def __init__(self, *, is_parallel: bool) -> None:
        super().__init__(is_parallel=is_parallel)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            first, last = (nn.Linear(NUM_FEATURES, NUM_FEATURES, bias=False) for _ in range(2))
        last.weight = first.weight
        self.net = nn.Sequential(first, *self.net[:-1], last, self.net[-1])

    def configure_model(self) -> None:
        if self.is_parallel:
            mesh = self.device_mesh["data_parallel"]
            for block in self.net[1:-2]:
                fully_shard(block, mesh=mesh)
            fully_shard(self.net, mesh=mesh)


class _Wrapped(Resumable):
    """Wrapped by the user, without the mesh that the strategy would have made."""

    def __init__(self, *, is_parallel: bool) -> None:
        super().__init__()

    def configure_model(self) -> None:
        if not isinstance(self.net, FullyShardedDataParallel):
            device = torch.device("hpu", 0)
            self.net = FullyShardedDataParallel(
                self.net,
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                device_id=device,
                use_orig_params=True,
            )


class _Adversarial(Resumable):
    """With two optimizers, each of some of the layers."""

    def __init__(self, *, is_parallel: bool) -> None:
        super().__init__(is_parallel=is_parallel)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        first = [weight for name, weight in self.named_parameters() if name.startswith("net.0")]
        others = [weight for name, weight in self.named_parameters() if name[:5] != "net.0"]
        return torch.optim.AdamW(first, lr=1e-2), torch.optim.SGD(others, lr=1e-2, momentum=0.9)


class _Old(pytorch_lightning.LightningModule):
    """Of the other namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        features = nn.functional.dropout(batch[0], 0.3)
        loss = (self.net(features) - batch[1]).pow(2).mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _go_on(
    make_trainer: Callable[..., Any], make_model: Callable[[], Any], data: Any, path: Path
) -> tuple[list[float], list[float]]:
    """The losses of the second epoch, in one go and after a new start from a checkpoint."""
    losses = []
    for epochs, ckpt_path in ((2, None), (1, None), (2, path)):
        torch.manual_seed(7)
        model, trainer = make_model(), make_trainer(max_epochs=epochs)
        trainer.fit(model, data, ckpt_path=ckpt_path)
        losses.append([float(loss) for loss in model.losses])
        if epochs == 1:
            trainer.save_checkpoint(path)
    return losses[0][NUM_BATCHES:], losses[2]


RUNS = [
    ("_Wrapped", NAMES[0]),
    ("_Adversarial", NAMES[1]),
    *product(("_Partly", "_Tied", *PRECISIONS), NAMES),
]
KINDS: dict[str, type[Resumable]] = {
    kind.__name__: kind for kind in (_Partly, _Tied, _Wrapped, _Adversarial)
}


def _kinds(rank: int, folder: Path) -> Facts:
    """What goes on, by the kind of model or the precision, and the strategy."""
    facts: Facts = {}
    for kind, name in RUNS:
        precision = {"precision": kind} if kind in PRECISIONS else {}

        def make(kind: str = kind, name: str = name) -> Resumable:
            if kind in PRECISIONS:
                return model_of(name, dropout=0.3)
            return KINDS[kind](is_parallel=name == "fsdp2_shards")

        facts[kind, name] = _go_on(
            partial(trainer_of, name, NUM_RANKS, **precision),
            make,
            part_of(name, rank, NUM_RANKS),
            folder / kind,
        )
    return facts


def _old(rank: int, folder: Path) -> Facts:
    facts: Facts = {}
    facts["old"] = _go_on(
        lambda **settings: pytorch_lightning.Trainer(
            accelerator="hpu",
            devices=NUM_RANKS,
            strategy=OldFSDPStrategy(state_dict_type="sharded"),
            use_distributed_sampler=False,
            **{**QUIET, **settings},
        ),
        _Old,
        part_of("fsdp_shards", rank, NUM_RANKS),
        folder / "old",
    )
    return facts


def _callback(rank: int, folder: Path) -> Facts:
    """ModelCheckpoint keeps the newest one and a copy, and `ckpt_path="last"` finds that."""
    facts: Facts = {}
    for name in NAMES:
        kept = folder / name
        for epochs, ckpt_path in ((2, None), (3, "last")):
            callback = ModelCheckpoint(kept, save_last=True, filename="{epoch}")
            torch.manual_seed(7)
            model = model_of(name)
            trainer = trainer_of(
                name, NUM_RANKS, max_epochs=epochs, callbacks=[callback], enable_checkpointing=True
            )
            trainer.fit(model, part_of(name, rank, NUM_RANKS), ckpt_path=ckpt_path)
            facts["steps", name, epochs] = len(model.losses)
        facts["kept", name] = sorted(
            path.name for path in kept.iterdir() if is_sharded_folder(path)
        )
        trainer = trainer_of(name, NUM_RANKS)
        outputs = trainer.predict(
            model_of(name), part_of(name, rank, NUM_RANKS), ckpt_path=callback.best_model_path
        )
        facts["predicted", name] = torch.cat(outputs).cpu()  # type: ignore[arg-type]
    return facts


def _error(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _broken(rank: int, folder: Path) -> Facts:
    facts: Facts = {}
    for name in NAMES:
        _, trainer = fit(name, NUM_RANKS, 1)
        path = folder / f"whole_{name}"
        trainer.save_checkpoint(path)
        broken = folder / f"broken_{name}"
        trainer.save_checkpoint(folder / "weights", weights_only=True)
        if rank == 0:
            shutil.copytree(path, broken)
            (broken / "__1_0.distcp").unlink()
            (folder / "truncated").write_bytes(b"half")
            torch.save({"weight": torch.ones(1)}, folder / "raw")
        trainer.strategy.barrier()
        for case, other in (
            ("missing", broken),
            ("truncated", folder / "truncated"),
            ("raw", folder / "raw"),
            ("none", folder / "none"),
            ("weights", folder / "weights"),
        ):
            facts[case, name] = _error(lambda n=name, p=other: fit(n, NUM_RANKS, 2, p))
        facts["options", name] = _error(
            lambda t=trainer: t.save_checkpoint(folder / "x", storage_options={"a": 1})
        )
    two = _Adversarial(is_parallel=True)
    trainer = trainer_of(NAMES[1], NUM_RANKS, max_epochs=2)
    data = part_of(NAMES[1], rank, NUM_RANKS)
    path = folder / f"whole_{NAMES[1]}"
    facts["two"] = _error(lambda: trainer.fit(two, data, ckpt_path=path))
    facts["one"] = _error(lambda: fit(NAMES[1], NUM_RANKS, 2, folder / "_Adversarial"))
    return facts


def _all(rank: int, folder: Path) -> Facts:
    facts = _kinds(rank, folder) | _old(rank, folder)
    return facts | _callback(rank, folder) | _broken(rank, folder)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return run_trainers(_all, tmp_path_factory.mktemp("ranks"), folder, num_ranks=NUM_RANKS)


@pytest.mark.parametrize(("kind", "name"), RUNS)
def test_resumed_losses_are_those_of_the_uninterrupted_run(
    ranks: list[Facts], kind: str, name: str
) -> None:
    """Wrapped by the user, with two optimizers, parameters never stepped, tied ones, in bf16."""
    for facts in ranks:
        uninterrupted, resumed = facts[kind, name]
        assert resumed == uninterrupted
        assert len(resumed) == NUM_BATCHES


def test_pytorch_lightning_resumes_as_well(ranks: list[Facts]) -> None:
    for facts in ranks:
        uninterrupted, resumed = facts["old"]
        assert resumed == uninterrupted


@pytest.mark.parametrize("name", NAMES)
def test_model_checkpoint_keeps_folders_and_resumes_the_last(ranks: list[Facts], name: str) -> None:
    for facts in ranks:
        assert facts["kept", name] == ["epoch=2.ckpt", "last.ckpt"]
        assert facts["steps", name, 2] == 2 * NUM_BATCHES
        assert facts["steps", name, 3] == NUM_BATCHES


def test_predictions_of_a_checkpoint_are_the_same_whoever_has_it(ranks: list[Facts]) -> None:
    for facts in ranks:
        first, second = (facts["predicted", name] for name in NAMES)
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("missing", "is damaged: __1_0.distcp is missing. Use another checkpoint"),
        ("truncated", "truncated is no checkpoint, or truncated or damaged"),
        ("raw", "raw is no checkpoint of a Trainer: it has no 'state_dict'"),
        ("none", "FileNotFoundError: There is no checkpoint at"),
        ("weights", "The checkpoint has no state of 'optimizer_0'. It was saved with weights only"),
        ("options", "TypeError: Checkpoints of models in shards have no use for storage_options="),
    ],
)
def test_what_cannot_be_loaded_is_named(
    ranks: list[Facts], name: str, case: str, expected: str
) -> None:
    for facts in ranks:
        assert expected in facts[case, name]


def test_other_number_of_optimizers_is_refused(ranks: list[Facts]) -> None:
    for facts in ranks:
        assert "has the states of 1 optimizers, and this run has 2" in facts["two"]
        assert "has the states of 2 optimizers, and this run has 1" in facts["one"]
