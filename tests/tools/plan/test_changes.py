"""What is tried where a program does not fit a card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi.simulator.settings import CARD
from lightning_gaudi.tools.plan import plan as module
from lightning_gaudi.tools.plan.cards import CARDS
from lightning_gaudi.tools.plan.plan import PlanError, Planned, plan
from lightning_gaudi.tools.plan.request import MAX_FORKS, VARIABLE, Rehearsed, Request

GIB = 2**30


def _tried(
    monkeypatch: pytest.MonkeyPatch,
    free: int | None = None,
    *,
    checkpointing: bool = False,
    can_checkpoint: bool = True,
    **held: int,
) -> list[Planned]:
    """What is planned of a program that fits nowhere, whatever is changed."""

    def rehearse(way: Any) -> Iterator[Planned]:
        sizes = {"weights": 0, "gradients": 0, "optimizer state": 0} | held
        total = sum(sizes.values())
        found = Rehearsed(1, total, total, total, held_bytes=total, categories=sizes)
        found = replace(found, can_checkpoint=can_checkpoint)
        yield Planned(way.request, way.change, found, largest={card.key: 0 for card in way.cards})

    monkeypatch.setattr(module._Way, "rehearsed_for_each", rehearse)
    monkeypatch.setattr(module, "_free_bytes", lambda: free)
    return [*plan(["program"], Request(checkpointing=checkpointing or None), [CARDS["gaudi2"]])]


def test_a_program_that_trains_is_tried_in_shards_and_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _tried(monkeypatch, weights=60 * GIB, gradients=60 * GIB)
    assert [each.request.strategy for each in found[1:]] == [
        *(f"deepspeed_stage_{stage}" for stage in (1, 2, 3, 3)),
        "deepspeed_stage_3_offload",
    ]


def test_what_cannot_checkpoint_is_not_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _tried(monkeypatch, can_checkpoint=False, gradients=120 * GIB)
    assert [each.change for each in found[1:]] == [
        *(f"ZeRO-{stage} on 8 cards" for stage in (1, 2, 3)),
        "ZeRO-3 on 8 cards with its optimizer on the host",
    ]
    assert not any(each.request.checkpointing for each in found)
    with pytest.raises(PlanError, match=r"has none that can \(no `gradient_checkpointing_enable`"):
        _tried(monkeypatch, can_checkpoint=False, checkpointing=True)


def test_what_only_predicts_has_nothing_but_weights_to_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _tried(monkeypatch, **{"weights": 120 * GIB, "KV cache": GIB})
    assert [each.request.strategy for each in found[1:]] == ["deepspeed_stage_3"]


@pytest.mark.parametrize(("spare", "is_tried"), [(0, True), (-1, False)])
def test_shards_on_the_host_must_fit_this_machine(
    spare: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_each = 160 * GIB // 8
    free = of_each * MAX_FORKS + spare
    last = _tried(monkeypatch, free, weights=80 * GIB, gradients=80 * GIB)[-1]
    assert last.request.strategy == "deepspeed_stage_3_offload"
    assert (last.rehearsed is not None) == is_tried
    assert ("GiB are free on this machine" in last.error) != is_tried


def test_the_free_memory_of_this_machine_is_known() -> None:
    free = module._free_bytes()
    assert free is not None
    assert 0 < free < 2**50


def test_a_card_without_fused_attention_is_planned_for_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: Sequence[str], env: Mapping[str, str], progress: Any) -> tuple[int, str]:
        request = Request.load(Path(env[VARIABLE]))
        assert request.unfused == ("gaudi1", "", "")
        found: list[dict[str, Any]] = []
        for number in (3, 1) if attends else (3,):
            rehearsed = Rehearsed(1, GIB, GIB, has_fused_attention=attends and number == 3)
            found += [{"on": "gaudi1"}] if number == 1 else []
            found.append({"rehearsed": asdict(rehearsed), "counted": {}, "published": None})
            found.append({"largest": [number] * number, "is_complete": True, "why": ""})
        Path(request.result).write_text("".join(f"{json.dumps(each)}\n" for each in found))
        return 0, ""

    monkeypatch.setattr(module, "_run", run)
    cards = [CARDS[key] for key in ("gaudi1", "gaudi2", "a100")]
    attends = True
    found = [*plan(["program"], Request(), cards, with_changes=False)]
    assert [each.largest for each in found] == [{"gaudi2": 3, "a100": 3}, {"gaudi1": 1}]
    assert [each.on for each in found] == ["", "Gaudi 1"]
    attends = False
    found = [*plan(["program"], Request(), cards, with_changes=False)]
    assert [sorted(each.largest) for each in found] == [["a100", "gaudi1", "gaudi2"]]


def test_a_first_gaudi_is_rehearsed_as_one() -> None:
    keys = {
        names: module._environment({}, [CARDS[key] for key in names])[CARD]
        for names in (("gaudi1",), ("gaudi1", "gaudi3"), ("a100",))
    }
    assert [*keys.values()] == ["gaudi1", "gaudi2", "gaudi2"]


def test_a_change_that_the_program_refuses_is_tried_with_the_setting_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = list[Sequence[str]]()
    setting = "model.optimizer=adamw"

    def rehearse(way: Any) -> Iterator[Planned]:
        commands.append(way.command)
        if "ZeRO" in way.change and f"--{setting}" not in way.command:
            yield Planned(way.request, way.change, None, error="no", instead=setting)
            return
        size = 40 * GIB if way.change else 120 * GIB
        sizes = {"weights": size, "gradients": size, "optimizer state": 0}
        found = Rehearsed(1, size, size, size, held_bytes=size, categories=sizes)
        largest = {card.key: int("ZeRO-2" in way.change) for card in way.cards}
        yield Planned(way.request, way.change, found, largest=largest)

    monkeypatch.setattr(module._Way, "rehearsed_for_each", rehearse)
    told = list[str]()
    found = [*plan(["program"], Request(), [CARDS["gaudi2"]], tell=told.append)]
    ways = [
        "",
        "ZeRO-1 on 8 cards, model.optimizer=adamw",
        "ZeRO-2 on 8 cards, model.optimizer=adamw",
    ]
    assert [each.change for each in found] == ways
    # The second is not refused first: what the program has said of the first is known.
    assert commands[1:] == [["program"], *2 * [["program", "--model.optimizer=adamw"]]]
    assert told == ["  no"]
