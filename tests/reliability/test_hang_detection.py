"""Who hangs, told from what the ranks say of themselves."""

import pytest

from lightning_gaudi.reliability.hang_detection import account, judge
from lightning_gaudi.reliability.heartbeat_store import FAILED, LEFT, RUNS, STOPPED, Beat, Limits

LIMITS = Limits(training_s=30.0, other_s=600.0)


def _beat(still_s=0.0, *, position=(4, 0), collective=None, is_training=True, state=RUNS, **others):
    return Beat(
        9, state, 4, "forward", is_training, position, collective, "barrier", still_s, **others
    )


IN_CARD = {"call": "synchronize", "waits": True, "mute_s": 31.0}
IN_PYTHON = {"call": "sleep", "is_in_python": True}
IN_C = {"call": "read", "mute_s": 31.0}


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


@pytest.mark.parametrize("hung", [IN_PYTHON, IN_C, {}])
def test_who_waits_for_the_card_is_not_blamed_but_who_stands_beside_it(hung):
    assert _judge(_beat(40, **IN_CARD), _beat(31, **hung)).ranks == (1,)
    assert _judge(_beat(40, **IN_CARD), _beat(29, **hung)) is None


def test_who_waits_for_a_rank_further_on_is_behind_if_that_stands_in_the_card_too():
    further = _beat(31, position=(4, 1), **IN_CARD)
    assert _judge(_beat(31, **IN_CARD), further).ranks == (0,)
    assert _judge(_beat(31, **IN_CARD), _beat(31, collective="barrier")).ranks == (0,)


def test_of_two_that_stand_alike_the_one_in_python_hangs():
    assert _judge(_beat(31, **IN_C), _beat(31, **IN_PYTHON)).ranks == (1,)
    assert _judge(_beat(31, **IN_C), _beat(31, **IN_C)).ranks == ()
    assert _judge(_beat(31, **IN_C, position=(3, 0)), _beat(31, **IN_PYTHON)).ranks == (0,)


def test_a_long_compilation_is_no_hang():
    compiles = {**IN_CARD, "is_busy": True}
    assert _judge(_beat(31, collective="all_reduce"), _beat(31, **compiles)) is None
    assert _judge(_beat(31, **compiles), _beat(31, **compiles)) is None
    assert _judge(_beat(601, collective="all_reduce"), _beat(601, **compiles)).ranks == (1,)


def test_a_host_that_is_silent_while_others_train_on_is_not_blamed():
    silent_s = {0: 0.0, 1: 700.0}
    assert _judge(_beat(1, collective="all_reduce"), _beat(0), silent_s=silent_s) is None


def test_a_rank_that_has_died_is_named_as_soon_as_others_need_it():
    dead = _beat(1, ended="(process 7) was killed by SIGKILL")
    found = _judge(_beat(1), dead)
    assert found.ranks == (1,)
    assert "rank 1 (process 7) was killed by SIGKILL in step 4, forward" in found.reason
    assert _judge(_beat(1, is_training=False), dead) is None


def test_what_is_said_of_who_lets_no_python_run_is_why():
    found = _judge(_beat(31, collective="all_reduce"), _beat(31, **IN_C))
    assert "it is silent for 31 s, as it lets no Python run, in step 4" in found.reason
    stopped = _beat(31, mute_s=31.0, ended=STOPPED)
    found = _judge(_beat(31, collective="all_reduce"), stopped)
    assert "it is silent for 31 s, as its process is stopped" in found.reason


def test_the_account_has_every_rank_and_few_lines():
    beats = {rank: _beat(30 + rank, **IN_CARD) for rank in range(60)}
    beats |= {60: _beat(31, **IN_PYTHON), 61: _beat(31), 63: _beat(31, state=FAILED)}
    silent_s = dict.fromkeys(range(64), 0.0) | {61: 31.0}
    found = account(beats, silent_s, 64)
    where = "step 4, forward (last collective: barrier)"
    assert found == [
        f"ranks 0 to 59 stood in {where}, in synchronize, without letting Python run, in what "
        "waits or works for the card",
        f"rank 60 stood in {where}, in sleep",
        f"rank 61 could not be asked; when last heard of it stood in {where}",
        "rank 62 could not be asked",
        f"rank 63 had left with an error, and stood in {where}",
    ]
    assert (
        len(account({n: _beat(position=(n, 0), call=str(n)) for n in range(64)}, silent_s, 64)) < 10
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", "1"),
        ("state", "dead"),
        ("state", []),
        ("step", 1.5),
        ("step", 2**70),
        ("place", None),
        ("place", "x" * 10_000),
        ("is_training", 1),
        ("position", 3),
        ("position", [1]),
        ("position", [1, "2"]),
        ("collective", {}),
        ("still_s", -1),
        ("still_s", float("nan")),
        ("still_s", float("inf")),
        ("still_s", 10**400),
        ("mute_s", "long"),
        ("ended", 9),
        ("call", ["x"]),
        ("waits", "yes"),
        ("pace", 1.0),
        ("pace", [0.1]),
        ("pace", [0.1, -1]),
        ("pace", [0.1, "x"]),
    ],
)
def test_a_heartbeat_of_another_type_is_refused(field, value):
    values = list(_beat())
    values = [list(each) if isinstance(each, tuple) else each for each in values]
    assert Beat.read(values) == _beat()
    values[Beat._fields.index(field)] = value
    with pytest.raises(ValueError, match="heartbeat"):
        Beat.read(values)


@pytest.mark.parametrize("values", [None, 1, "x", [], {}, [0] * 8, [[]] * 99])
def test_what_is_no_heartbeat_is_refused(values):
    with pytest.raises(ValueError, match="heartbeat"):
        Beat.read(values)


def test_a_rank_that_left_is_missed_only_by_who_waits():
    assert _judge(_beat(11, collective="barrier"), _beat(state=FAILED)).ranks == (1,)
    assert _judge(_beat(11, collective="barrier"), _beat(state=LEFT)) is None
    assert _judge(_beat(11, is_training=False), _beat(state=FAILED)) is None
