"""Events become counts by step and by line."""

from __future__ import annotations

import torch
from torch import nn

from lightning_gaudi.tools.audit import call_sites
from lightning_gaudi.tools.audit.recording import Recorder


def _optimizer() -> torch.optim.Optimizer:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    return torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=0.1)


def test_a_step_ends_when_the_first_optimizer_steps_again() -> None:
    recorder = Recorder()
    first, second = _optimizer(), _optimizer()
    ended = [recorder.note_stepped(each) for each in (first, second, first, second)]
    assert ended == [True, False, True, False]
    assert recorder.num_steps == 2


def test_groups_that_are_stepped_one_after_the_other_end_one_step() -> None:
    """As DeepSpeed steps its groups: by one optimizer that has a group at a time."""
    recorder = Recorder()
    optimizer = _optimizer()
    groups = optimizer.param_groups
    for _ in range(3):
        for group in groups:
            optimizer.param_groups = [group]
            recorder.note_stepped(optimizer)
    assert recorder.num_steps == 3


def test_an_optimizer_that_is_given_up_ends_no_steps_any_more() -> None:
    recorder = Recorder()
    old, new = _optimizer(), _optimizer()
    for optimizer in (old, new, new, new, new):
        recorder.note_stepped(optimizer)
    assert recorder.num_steps == 3


def test_events_are_counted_by_step_and_by_line() -> None:
    recorder = Recorder()
    optimizer = _optimizer()
    for _ in range(2):
        for _ in range(3):
            recorder.note("launch", "", 2, "")
        recorder.note("host_sync", "copy_to_host", 1, "")
        recorder.note("transfer", "host_to_device", 64, "blocking")
        recorder.note("collective", "all_reduce", 32, "")
        recorder.note("graph", "recompiled", 9, "input 0: [3] was [2]")
        recorder.note_stepped(optimizer)
    step = recorder.steps[1]
    assert (step.launches, step.graph_launches, step.host_syncs) == (7, 1, 1)
    assert (step.host_to_device_bytes, step.collective_bytes) == (64, 32)
    assert (step.compilations, step.recompilations) == (1, 1)
    (launches,) = (line for line in recorder.lines.values() if line.kind == "launch")
    assert (launches.count, launches.amount, launches.steps) == (6, 12, [0, 1])
    assert launches.file == __file__
    (copies,) = (line for line in recorder.lines.values() if line.kind == "transfer")
    assert copies.details == {"blocking": 2}


def test_what_validation_does_is_kept_apart_from_steps() -> None:
    recorder = Recorder()
    here = call_sites.here()
    with recorder.at(here._replace(stage=call_sites.VALIDATION)):
        recorder.note("launch", "", 5, "")
    recorder.note_stepped(_optimizer())
    assert recorder.steps[0].launches == 0
    (line,) = recorder.lines.values()
    assert (line.stage, line.amount, line.line) == ("validation", 5, here.line)


def test_nothing_is_counted_after_the_stop() -> None:
    recorder = Recorder()
    recorder.stop()
    recorder.note("launch", "", 1, "")
    assert not recorder.lines
