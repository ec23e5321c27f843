"""A loader of Fabric's that is saved with the model goes on where it stood."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tests.helpers.noisy_data import Noisy, Stream
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.filterwarnings("default")

NUM_EPOCHS, NUM_SAMPLES = 3, 12
Make = Callable[[], DataLoader[Any]]


class _StreamWithoutState(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        yield from torch.rand(NUM_SAMPLES, 4)


def _shuffled(**settings: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(NUM_SAMPLES), batch_size=2, shuffle=True, **settings)


def _with_generator() -> DataLoader[Any]:
    return _shuffled(generator=torch.Generator().manual_seed(3))


def _with_replacement() -> DataLoader[Any]:
    data = Noisy(NUM_SAMPLES)
    return DataLoader(data, batch_size=3, sampler=RandomSampler(data, replacement=True))


def _stream() -> DataLoader[Any]:
    return DataLoader(Stream(NUM_SAMPLES), batch_size=2)


def _workers() -> DataLoader[Any]:
    return _shuffled(num_workers=2)


def _workers_that_stay() -> DataLoader[Any]:
    return _shuffled(num_workers=2, persistent_workers=True)


def _run(
    make: Make,
    folder: Path,
    load: Path | None = None,
    *,
    seed: int = 1,
    devices: int = 1,
    puts_loader: bool = True,
) -> tuple[list[str], dict[Path, int]]:
    """A loop as people write it; what it saw, and how much of that each checkpoint has."""
    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed)
    fabric = Fabric(accelerator="hpu", devices=devices)
    fabric.launch()
    model = nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(make())
    state = {"model": model, "optimizer": optimizer, "epoch": 0, "step": 0}
    if puts_loader:
        state["loader"] = loader
    if load is not None:
        fabric.load(load, state)
    seen, saved = [], {}

    def save() -> None:
        path = folder / f"{len(saved)}.ckpt"
        fabric.save(path, state)
        saved[path] = len(seen)

    for epoch in range(state["epoch"], NUM_EPOCHS):
        state["epoch"] = epoch
        for batch in loader:
            loss = model(batch).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            seen.append(f"{epoch} {state['step']} {float(loss).hex()} {batch.flatten().tolist()}")
            save()
        state["epoch"] = epoch + 1
        save()
    return seen, saved


def _different(make: Make, folder: Path, **settings: Any) -> list[str]:
    whole, saved = _run(make, folder, **settings)
    (folder / "again").mkdir(exist_ok=True)
    different = []
    for path, num_seen in list(saved.items())[::3] + list(saved.items())[-2:]:
        resumed, _ = _run(make, folder / "again", path, seed=99, **settings)
        if resumed != whole[num_seen:]:
            different.append(path.name)
    return different


@pytest.mark.slow_but("_with_replacement")
@pytest.mark.parametrize("make", [_shuffled, _with_generator, _with_replacement, _stream])
def test_from_wherever_it_was_saved_a_loop_sees_the_same(make: Make, tmp_path: Path) -> None:
    assert _different(make, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [_workers, _workers_that_stay])
def test_what_workers_draw_goes_on(make: Make, tmp_path: Path) -> None:
    assert _different(make, tmp_path) == []


def _rank(rank: int, folder: Path) -> list[str]:
    return _different(_shuffled, folder, devices=2)


def test_each_rank_goes_on_with_its_own(tmp_path: Path) -> None:
    assert run_trainers(_rank, tmp_path, tmp_path) == [[], []]


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    _run(_shuffled, tmp_path)
    with pytest.raises(ValueError, match=r"with 12 samples, and this one has 8.*leave the loader"):
        _run(lambda: DataLoader(Noisy(8), batch_size=2), tmp_path, tmp_path / "1.ckpt")


def test_a_loader_that_cannot_go_on_is_named(tmp_path: Path) -> None:
    make = lambda: DataLoader(_StreamWithoutState(), batch_size=2)  # noqa: E731
    _run(make, tmp_path)
    with pytest.warns(UserWarning, match="_StreamWithoutState is iterable, and has no state_dict"):
        _run(make, tmp_path, tmp_path / "1.ckpt")


def test_a_loader_that_is_not_saved_is_said_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="after 1 batches.*the loader is not in it") as caught:
        _run(_shuffled, tmp_path, puts_loader=False)
    assert sum("loader is not in it" in str(each.message) for each in caught) == 1


def test_what_is_saved_between_epochs_or_with_its_state_needs_no_word(tmp_path: Path) -> None:
    fabric = Fabric(accelerator="hpu", devices=1)
    loader = fabric.setup_dataloaders(_shuffled())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*loader is not in it")
        for number, _ in enumerate(loader):
            fabric.save(tmp_path / "a.ckpt", {"loader": loader.state_dict()})
            if number == 3:
                break
        fabric.save(tmp_path / "b.ckpt", {"step": 1})
