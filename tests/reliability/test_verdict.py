"""Who hangs, told from what the ranks say of themselves."""

import pytest

from lightning_gaudi.reliability.verdict import FAILED, LEFT, RUNS, Beat, Limits, judge

LIMITS = Limits(training_s=30.0, other_s=600.0)


def _beat(still_s=0.0, *, position=(4, 0), collective=None, is_training=True, state=RUNS):
    return Beat(9, state, 4, "forward", is_training, position, collective, "barrier", still_s)


def _judge(*beats, silent_s=None):
    return judge(dict(enumerate(beats)), silent_s or dict.fromkeys(range(len(beats)), 0.0), LIMITS)


def test_a_rank_that_others_wait_for_hangs():
    found = _judge(_beat(31, collective="all_reduce"), _beat(31))
    assert found.ranks == (1,)
    assert "rank 1 hangs: it is for 31 s in step 4, forward (last collective: barrier)" in str(
        found
    )


def test_a_rank_that_is_behind_hangs_though_nobody_waits_in_a_known_collective():
    assert _judge(_beat(31, position=(4, 1)), _beat(31), _beat(31, position=(4, 1))).ranks == (1,)


@pytest.mark.parametrize("others", [_beat(31), _beat(1, collective="barrier")])
def test_within_its_limit_no_rank_hangs(others):
    assert _judge(others, _beat(29)) is None


def test_outside_of_training_the_limit_is_the_groups():
    waits = _beat(599, collective="barrier", is_training=False)
    assert _judge(waits, _beat(599, is_training=False)) is None
    assert _judge(waits, _beat(601, is_training=False)).ranks == (1,)


def test_a_silent_rank_may_have_come_as_far_as_the_others():
    start = _beat(0, position=(0, 0), is_training=False)
    found = _judge(_beat(31, position=(4, 1)), start, silent_s={0: 0.0, 1: 31.0})
    assert found.ranks == (1,)
    assert "it is silent for 31 s, last heard of in step 4" in found.reason


def test_the_ranks_of_a_host_that_is_cut_off_are_named_together():
    ranks = [_beat(31, collective="all_reduce"), _beat(1), _beat(1)]
    found = _judge(*ranks, silent_s={0: 0.0, 1: 28.8, 2: 29.2})
    assert found.ranks == (1, 2)
    found = _judge(_beat(31, collective="all_reduce"), _beat(31), _beat(1, collective="barrier"))
    assert found.ranks == (1,)


def test_where_all_stand_alike_nobody_is_to_blame():
    found = _judge(_beat(31), _beat(32))
    assert found.ranks == ()
    assert "no rank goes on" in found.reason


def test_alone_a_rank_may_take_its_time():
    assert _judge(_beat(9999)) is None


def test_a_rank_that_left_is_missed_only_by_who_waits():
    assert _judge(_beat(11, collective="barrier"), _beat(state=FAILED)).ranks == (1,)
    assert _judge(_beat(11, collective="barrier"), _beat(state=LEFT)) is None
    assert _judge(_beat(11, is_training=False), _beat(state=FAILED)) is None
