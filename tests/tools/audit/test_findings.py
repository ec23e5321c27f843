"""What of the records is a finding, and what is not."""

from __future__ import annotations

import pytest

from lightning_gaudi.tools.audit import findings
from lightning_gaudi.tools.audit.finding import Finding, Weight
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.audit.record import Line, Loader, Record, Step


def _line(kind: str, what: str, steps: list[int], **others: object) -> Line:
    values = {
        "file": "/mine/train.py",
        "line": 7,
        "function": "step",
        "via": "",
        "stage": "training",
        "phase": "forward",
        "is_compiled": False,
        "count": len(steps),
        "amount": len(steps),
    }
    return Line(kind, what, **{**values, **others}, steps=steps)  # type: ignore[arg-type]


def _loader(batches: list[int], shapes: list[list[int]], **others: object) -> Loader:
    values = {"name": "list", "file": "/mine/train.py", "line": 3, "collate": "pad"}
    return Loader(
        **{**values, "stage": "training", **others},  # type: ignore[arg-type]
        shapes=[{"input_ids": sizes} for sizes in shapes],
        batches=batches,
        steps=list(range(len(batches))),
    )


def _find(*records: Record) -> list[Finding]:
    return findings.find(Audit(("python", "train.py"), 0, list(records)))


def _record(*lines: Line, num_steps: int = 13, **others: object) -> Record:
    steps = [Step(launches=4, graph_launches=2) for _ in range(num_steps)]
    return Record(steps=steps, lines=list(lines), **others)  # type: ignore[arg-type]


ITEM = "aten::_local_scalar_dense"
_METRICS = "torchmetrics/functional/classification"


@pytest.mark.parametrize(
    ("steps", "is_found"),
    [
        (list(range(13)), True),
        ([3, 5, 7, 9, 11], True),
        ([3, 6, 9, 12], False),
        ([0, 1, 2], False),
    ],
    ids=["always", "in half", "now and then", "in the warm-up"],
)
def test_a_wait_is_a_finding_where_most_steps_have_it(steps: list[int], is_found: bool) -> None:
    found = _find(_record(_line("host_sync", ITEM, steps)))
    assert [each.rule for each in found] == (["item-waits"] if is_found else [])


@pytest.mark.parametrize("stage", ["validation", "checkpoint"])
def test_what_validation_and_saving_wait_for_is_none(stage: str) -> None:
    assert not _find(_record(_line("host_sync", ITEM, list(range(13)), stage=stage)))


def test_waits_are_named_by_the_rule_about_them() -> None:
    reasons = [ITEM, "copy_to_host", "barrier", "aten::equal", "aten::is_nonzero", "synchronize"]
    lines = [
        _line("host_sync", reason, list(range(13)), line=number)
        for number, reason in enumerate(reasons)
    ]
    assert [each.rule for each in _find(_record(*lines))] == [
        *("item-waits", "copy-to-host-waits", "barrier-waits", "equal-waits", "value-on-host"),
        "host-waits",
    ]


@pytest.mark.parametrize(
    ("is_lazy", "release", "is_found"),
    [(False, "1.24.1", False), (False, "1.22.0", True), (True, "1.24.1", True)],
)
def test_a_write_by_a_mask_waits_where_its_rule_says_so(
    is_lazy: bool, release: str, is_found: bool
) -> None:
    line = _line("host_sync", "aten::_index_put_impl_", list(range(13)))
    found = _find(_record(line, is_lazy=is_lazy, release=release))
    assert [each.rule for each in found] == (["mask-write-waits"] if is_found else [])


def test_a_wait_that_a_worse_finding_explains_is_told_once() -> None:
    steps = list(range(13))
    record = _record(
        _line("rule", "mask-index-dynamic", steps), _line("host_sync", "aten::index", steps)
    )
    assert [each.rule for each in _find(record)] == ["mask-index-dynamic"]
    record = _record(
        _line("rule", "mode-on-cpu", steps), _line("host_sync", "cpu_fallback", steps, line=8)
    )
    assert [each.rule for each in _find(record)] == ["mode-on-cpu"]


def test_a_copy_to_the_card_is_a_finding_if_it_blocks() -> None:
    copies = _line("transfer", "host_to_device", list(range(13)), amount=1300)
    assert not _find(_record(copies))
    copies.details["blocking"] = 13
    (found,) = _find(_record(copies))
    assert (found.rule, found.weight) == ("copy-to-card-blocks", Weight.WAITS)
    assert "copies 100 bytes" in found.message


@pytest.mark.parametrize(
    ("via", "setting"),
    [
        ("transformers/trainer.py:1914, _run_epoch", "logging_nan_inf_filter=False"),
        ("transformers/masking_utils.py:9, find_packed_sequence_indices", "torch_compile=True"),
        ("lightning/fabric/fabric.py:574, clip_gradients", "error_if_nonfinite=False"),
        ("lightning/fabric/utilities/apply_func.py:134, to_item", "log_every_n_steps"),
        (f"{_METRICS}/stat_scores.py:5, _binary_stat_scores_tensor_validation", "validate_args="),
        ("torchmetrics/aggregation.py:9, _cast_and_nan_check_input", "nan_strategy='disable'"),
    ],
)
def test_what_a_library_waits_for_is_changed_by_its_settings(via: str, setting: str) -> None:
    (found,) = _find(_record(_line("host_sync", ITEM, list(range(13)), via=via)))
    assert setting in found.fix


def test_a_library_without_a_setting_for_it_gets_no_advice() -> None:
    via = f"{_METRICS}/ranking.py:5, _multilabel_ranking_loss_update"
    (found,) = _find(_record(_line("host_sync", ITEM, list(range(13)), via=via)))
    assert found.fix == ""


def test_no_finding_of_a_line_hides_another() -> None:
    unique = _line("rule", "unique-dynamic", [], count=4, via="x.py:1, check")
    waits = _line("host_sync", ITEM, list(range(13)), via="y.py:2, to_item")
    told = _line("host_sync", "aten::_unique2", [], count=4, via="x.py:1, check")
    found = _find(_record(unique, told, waits))
    # What no judged step has done comes last, though it weighs more.
    assert [each.rule for each in found] == ["item-waits", "unique-dynamic"]


def test_two_lines_of_a_library_are_two_findings() -> None:
    lines = [_line("host_sync", ITEM, list(range(13)), via=f"x/y.py:{n}, f") for n in (1, 2)]
    assert len(_find(_record(*lines))) == 2


def test_without_an_optimizer_a_wait_counts_if_it_is_frequent() -> None:
    assert not _find(_record(_line("host_sync", ITEM, [0], count=7), num_steps=0))
    assert _find(_record(_line("host_sync", ITEM, [0], count=8), num_steps=0))


def test_a_program_that_only_warms_up_is_not_judged_by_its_steps() -> None:
    steps = [0, 1, 2]
    wait, rule = _line("host_sync", ITEM, steps), _line("rule", "mode-on-cpu", steps, line=8)
    copies = _line("transfer", "host_to_device", steps, details={"blocking": 3})
    launches = _line("launch", "", steps, amount=300)
    record = _record(wait, copies, launches, rule, num_steps=3)
    assert [each.rule for each in _find(record)] == ["mode-on-cpu"]


def test_shapes_that_keep_coming_are_a_finding_with_the_best_boundaries() -> None:
    shapes = [[4, length] for length in range(10, 18)]
    loader = _loader(list(range(8)), shapes, buckets=[16, 24])
    (found,) = _find(_record(loaders=[loader]))
    assert (found.rule, found.line, found.num_steps) == ("dynamic-shapes", 3, 5)
    assert "8 shapes in 8 batches of list, made by pad: input_ids [4, 10]" in found.message
    assert "Pad to [16, 24]" in found.fix


@pytest.mark.parametrize(
    "loader",
    [
        _loader([0, 1, 2, 3, 0, 1, 2, 3], [[4, 8], [4, 16], [4, 24], [4, 32]]),
        _loader(list(range(8)), [[4, n] for n in range(8)], has_bounded_shapes=True),
        _loader(list(range(8)), [[4, n] for n in range(8)], stage="validation"),
        _loader(list(range(8)), [[n, 8] for n in range(8)]),
    ],
    ids=["few shapes", "buckets of ours", "validation", "numbers of samples"],
)
def test_shapes_that_are_no_finding(loader: Loader) -> None:
    assert not _find(_record(loaders=[loader]))


def test_a_smaller_last_batch_is_a_light_finding() -> None:
    loader = _loader([0, 0, 1, 0, 0, 1], [[4, 8], [3, 8]], drops_last=False)
    (found,) = _find(_record(loaders=[loader]))
    assert (found.rule, found.weight) == ("odd-last-batch", Weight.NUMBERS)


def test_recompilations_that_no_loader_explains_are_a_finding() -> None:
    again = _line("graph", "recompiled", [5, 8], details={"input 0: [3] was [2]": 2})
    (found,) = _find(_record(again))
    assert found.rule == "recompilation"
    assert "input 0: [3] was [2]" in found.message
    shapes = [[4, 8], [4, 16], [4, 24]]
    loader = _loader([0, 0, 0, 0, 0, 1, 1, 1, 2], shapes, has_bounded_shapes=True)
    assert not _find(_record(again, loaders=[loader]))


def _eager(num_launches: int, **others: object) -> Record:
    steps = list(range(13))
    lines = [
        _line("launch", "", steps, amount=13 * num_launches),
        _line("launch", "", steps, amount=13 * 90, line=9, phase="optimizer"),
    ]
    each = Step(launches=num_launches + 90)
    return Record(steps=[each] * 13, lines=lines, **others)  # type: ignore[arg-type]


def test_operator_by_operator_is_a_finding_at_the_line_with_most_launches() -> None:
    (found,) = _find(_eager(40))
    assert (found.rule, found.line) == ("uncompiled", 7)
    assert "130 a step, 40 of them here, 90 of the optimizer's" in found.message
    assert "torch.compile(model, backend='hpu_backend')" in found.fix
    assert "LIGHTNING_GAUDI_COMPILE" in _find(_eager(40, trainer="lightning"))[0].fix
    assert "torch_compile_backend" in _find(_eager(40, trainer="transformers"))[0].fix


def test_few_launches_graphs_and_lazy_mode_are_none() -> None:
    assert not _find(_eager(15))
    assert not _find(_eager(40, is_lazy=True))
    with_graphs = _eager(40)
    with_graphs.steps[5:6] = [Step(launches=40, graph_launches=1)]
    assert not _find(with_graphs)


def test_ranks_have_one_finding_and_the_worst_comes_first() -> None:
    steps = list(range(13))
    lines = [
        _line("rule", "float64-demoted", steps),
        _line("host_sync", ITEM, steps, line=8),
        _line("rule", "fork-beside-card", [0], line=9),
    ]
    found = _find(_record(*lines), _record(*lines, rank=1))
    assert [each.rule for each in found] == ["fork-beside-card", "item-waits", "float64-demoted"]
    assert [each.ranks for each in found] == [(0, 1)] * 3
    assert [each.count for each in found] == [2, 26, 26]
