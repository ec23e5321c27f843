import pytest

from lightning_gaudi.data.sampler import EpochProgress

NUM_BATCHES = 10


def _loaded(epoch: int, position: int, is_bound: bool = False) -> EpochProgress:
    progress = EpochProgress()
    progress.load(epoch, position, NUM_BATCHES)
    if is_bound:
        progress.bind()
    return progress


def _epochs(progress: EpochProgress, numbers, taken=NUM_BATCHES) -> list[tuple[int, int]]:
    """The epoch and the first batch of each iteration, named as a Trainer names them."""
    found = []
    for number in numbers:
        progress.set_epoch(number)
        epoch, start = progress.epoch, progress.begin()
        found.append((epoch, start))
        progress.position = max(start, taken)
    return found


def test_epochs_start_at_their_beginning():
    assert _epochs(EpochProgress(), [0, 1, 2]) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("is_bound", [True, False])
@pytest.mark.parametrize("first_number", [3, 4, 0])
def test_a_loaded_epoch_is_finished_whatever_its_number(first_number, is_bound):
    numbers = range(first_number, first_number + 3)
    found = _epochs(_loaded(3, 6, is_bound), numbers)
    assert found == [(3, 6), (4, 0), (5, 0)]


@pytest.mark.parametrize("first_number", [4, 0])
def test_after_a_finished_epoch_comes_the_next(first_number):
    assert _epochs(_loaded(3, 10), [first_number, first_number + 1]) == [(4, 0), (5, 0)]


def test_a_finished_epoch_that_is_named_has_no_batch_left():
    assert _epochs(_loaded(3, 10), [3, 4]) == [(3, 10), (4, 0)]


def test_an_epoch_cut_after_its_first_batch_on_resuming_goes_on():
    progress = _loaded(3, 10, is_bound=True)
    assert _epochs(progress, [4], taken=1) == [(4, 0)]
    assert _epochs(progress, [5, 6]) == [(4, 1), (5, 0)]


def test_an_epoch_that_is_left_early_does_not_go_on():
    assert _epochs(EpochProgress(), [0, 1], taken=1) == [(0, 0), (1, 0)]
    assert _epochs(_loaded(3, 10), [4, 5], taken=1) == [(4, 0), (5, 0)]


def test_a_new_run_counts_from_its_own_first_epoch():
    assert _epochs(_loaded(3, 6), [4, 5, 0, 1]) == [(3, 6), (4, 0), (0, 0), (1, 0)]


def test_position_returns_to_the_start_with_the_epoch():
    progress = EpochProgress()
    _epochs(progress, [0], taken=7)
    assert progress.position == 7
    progress.set_epoch(0)
    assert progress.position == 7
    progress.set_epoch(1)
    assert progress.position == 0
