"""Memory that workers of a loader share until they write to it."""

import os
from multiprocessing.context import set_spawning_popen
from pickle import PickleBuffer
from types import SimpleNamespace

import numpy as np
import pytest

from lightning_gaudi._core.workers import shared_memory as worker_memory


class _Owner:
    """Can be referred to weakly."""


@pytest.fixture
def sent():
    """File descriptors for a worker that starts, which this process takes over itself."""
    descriptors = []
    popen = SimpleNamespace(
        duplicate_for_child=descriptors.append,
        DupFd=lambda _: SimpleNamespace(detach=lambda: os.dup(descriptors[-1])),
    )
    set_spawning_popen(popen)
    yield descriptors
    set_spawning_popen(None)


def _sizes(descriptors):
    return [os.fstat(descriptor).st_size for descriptor in descriptors]


def test_all_workers_of_a_loader_get_one_copy(sent):
    owner, array, other = _Owner(), np.arange(1000), np.ones(10)
    for _ in range(2):
        memory = worker_memory.memory_of(owner)
        views = worker_memory.take_over(*memory.hand_over([PickleBuffer(array)]))
        views[0][0] = 7  # a worker's own
    assert _sizes(sent) == [array.nbytes] * 2
    one, two = worker_memory.take_over(
        *memory.hand_over([PickleBuffer(array), PickleBuffer(other)])
    )
    assert np.array_equal(np.frombuffer(one, array.dtype), array)
    assert np.array_equal(np.frombuffer(two, other.dtype), other)


def test_what_is_no_more_does_not_stand_for_what_is_new(sent):
    memory = worker_memory.Memory(owner := _Owner())
    for value in range(4):  # one after another at the same address, if they can be
        (view,) = worker_memory.take_over(*memory.hand_over([PickleBuffer(np.full(100, value))]))
        assert np.frombuffer(view, int)[0] == value
    assert owner


def test_the_copy_goes_with_its_owner(sent):
    memory = worker_memory.Memory(owner := _Owner())
    memory.hand_over([PickleBuffer(np.ones(1))])
    del owner
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sent[0])


def test_nothing_is_mapped_for_nothing(sent):
    assert worker_memory.take_over(*worker_memory.Memory(_Owner()).hand_over([])) == []
    assert not sent
