"""torch.hpu.metrics: what is counted, and the files it is written to."""

from __future__ import annotations

import json

import pytest
import torch
from habana_frameworks.torch.hpu import metrics
from habana_frameworks.torch.hpu.metrics import saver

from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

LAZY = {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_CACHE_METRICS": "1"}
OLD = {**LAZY, "LIGHTNING_GAUDI_SIMULATE_RELEASE": "1.20"}
NAMES = ["graph_compilation", "cpu_fallback", "memory_defragmentation"]
NAMES += ["host_sync", "launch", "recompilation", "simulation"]


def test_every_metric_has_the_vendors_keys():
    keys = {name: [key for key, _ in metrics.metric_global(name).stats()] for name in NAMES}
    assert keys == {
        "graph_compilation": ["TotalNumber", "TotalTime", "AvgTime"],
        "cpu_fallback": ["TotalNumber", "FallbackOps"],
        "memory_defragmentation": ["TotalNumber", "TotalSuccessful", "AvgTime", "MaxTime"],
        "host_sync": ["TotalNumber", "Reasons"],
        "launch": ["TotalNumber"],
        "recompilation": ["TotalNumber", "Causes"],
        "simulation": ["ComputesOn"],
    }


def test_an_unknown_metric_is_none_or_raises():
    assert metrics.metric_global("speed") is None
    assert metrics.metric_global("recipe_cache") is None
    with (
        pytest.raises(metrics.MetricNotFoundError, match=r"no metric 'speed'\. Pass one of"),
        metrics.metric_localcontext("speed"),
    ):
        pass


def test_host_syncs_are_counted_by_reason_within_a_block():
    tensor = torch.ones(3, device="hpu")
    tensor.sum().item()
    with metrics.metric_localcontext("host_sync") as metric:
        tensor.sum().item()
        tensor.sum().item()
        torch.hpu.synchronize()
    tensor.sum().item()
    stats = dict(metric.stats())
    assert metric.name() == "host_sync"
    assert stats["TotalNumber"] == sum(stats["Reasons"].values()) == 3
    assert stats["Reasons"]["aten::_local_scalar_dense"] == 2
    assert stats["Reasons"]["synchronize"] == 1


def test_launches_are_counted_within_a_block():
    tensor = torch.ones(3, device="hpu")
    with metrics.metric_localcontext("launch") as metric:
        tensor.exp().view(3, 1).sin()
    tensor.exp()
    assert metric.stats() == [("TotalNumber", 2)]


@pytest.mark.usefixtures("lazy")
def test_recompilations_are_told_within_a_block():
    def run(*lengths: int) -> None:
        for length in lengths:
            torch.ones(length).to("hpu").exp()
            torch.hpu.synchronize()

    run(2, 3)
    with metrics.metric_localcontext("recompilation") as metric:
        run(3, 4, 5)
    run(6)
    causes = ["input 0: [4] was [3]", "input 0: [5] was [4]"]
    assert metric.stats() == [("TotalNumber", 2), ("Causes", causes)]
    with metrics.metric_localcontext("recompilation") as metric:
        run(*range(10, 50))
    stats = dict(metric.stats())
    assert (stats["TotalNumber"], len(stats["Causes"])) == (40, 32)  # the latest
    assert stats["Causes"][-1] == "input 0: [49] was [48]"


def test_reset_starts_again_from_zero():
    with metrics.metric_localcontext("host_sync") as metric:
        torch.hpu.synchronize()
        metric.reset()
        assert dict(metric.stats())["TotalNumber"] == 0
        torch.hpu.synchronize()
        assert dict(metric.stats())["TotalNumber"] == 1


def test_lazy_mode_counts_compilations_and_cache_hits():
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch import core
        from habana_frameworks.torch.hpu.metrics import metric_global, metric_localcontext
        def step(size):
            torch.ones(size, device="hpu").add(1).mul(2)
            core.mark_step()
        step(3)
        with metric_localcontext("graph_compilation") as metric:
            for size in (3, 3, 4, 5):
                step(size)
        print(dict(metric.stats())["TotalNumber"])
        total = dict(metric_global("graph_compilation").stats())
        print(total["TotalNumber"], total["TotalTime"], total["AvgTime"])
        stats = dict(metric_global("recipe_cache").stats())
        print(stats["TotalHit"], stats["TotalMiss"])
        """,
        env=LAZY,
    ).stdout
    assert out.split() == ["2", "3", "0", "0", "2", "3"]  # nothing is compiled: it takes no time


def test_dump_writes_json_and_text(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "new" / "metrics.json"
    metrics.metrics_dump(path)
    written = json.loads(path.read_text())
    assert [entry["metric_name"] for entry in written] == [*NAMES[:3], "device_memory", *NAMES[3:]]
    assert {entry["triggered_by"] for entry in written} == {"user"}
    assert set(written[0]["statistics"]) == {"TotalNumber", "TotalTime", "AvgTime"}
    metrics.metrics_dump(str(path), format="text")
    text = (tmp_path / "new" / "metrics.json.1").read_text()
    assert "Metric name: host_sync\nTriggered by: user\n" in text


def test_dump_adds_the_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    metrics.metrics_dump(tmp_path / "metrics.json")
    assert (tmp_path / "metrics-rank3.json").exists()


def test_dump_refuses_an_unknown_format(tmp_path):
    with pytest.raises(KeyError, match="'xml' is no format"):
        metrics.metrics_dump(tmp_path / "m", format="xml")


@pytest.mark.slow
def test_the_environment_names_a_file_written_at_exit(tmp_path):
    env = {"PT_HPU_METRICS_FILE": str(tmp_path / "m.json"), "RANK": "1"}
    run_python('import torch; torch.ones(2, device="hpu").sum().item()', env=env)
    written = json.loads((tmp_path / "m-rank1.json").read_text())
    syncs = next(entry for entry in written if entry["metric_name"] == "host_sync")
    assert syncs["triggered_by"] == "process_exit"
    assert syncs["statistics"]["Reasons"] == {"aten::_local_scalar_dense": 1}


@pytest.mark.slow
def test_a_process_that_leaves_the_device_alone_writes_no_file(tmp_path):
    env = {"PT_HPU_METRICS_FILE": str(tmp_path / "m.json")}
    run_python("import torch", env=env)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_asks_for_every_step_and_every_change(tmp_path):
    fork_python(
        """
        import os, sys, torch
        from habana_frameworks.torch import core
        from habana_frameworks.torch.hpu.metrics import metrics, saver
        os.environ.pop("RANK", None)
        os.environ["PT_HPU_METRICS_FILE"] = sys.argv[1]
        os.environ["PT_HPU_METRICS_DUMP_TRIGGERS"] = "mark_step,metric_change"
        metrics._SAVER = saver.Saver.from_environ(metrics._GLOBAL.values())  # as at its import
        for size in (3, 3, 4):
            torch.ones(size, device="hpu").add(1)
            core.mark_step()
        """,
        str(tmp_path / "m.json"),
        env=OLD,
    )
    written = json.loads((tmp_path / "m.json").read_text())
    number = {"mark_step": [], "metric_change": []}
    for entry in written:
        if entry["metric_name"] == "graph_compilation":
            number[entry["triggered_by"]].append(entry["statistics"]["TotalNumber"])
    assert number["mark_step"] == [1, 1, 2]
    assert number["metric_change"] == [2]


def test_later_releases_write_at_the_end_alone(tmp_path):
    env = {
        **LAZY,
        "PT_HPU_METRICS_FILE": str(tmp_path / "m.json"),
        "PT_HPU_METRICS_DUMP_TRIGGERS": "mark_step",
    }
    result = fork_python(
        """
        import habana_frameworks.torch, sys
        from habana_frameworks.torch.hpu import metrics
        print([trigger.name for trigger in metrics.MetricDumpTrigger])
        """,
        env=env,
    )
    assert result.stdout.split() == ["['process_exit',", "'user']"]
    assert "PT_HPU_METRICS_DUMP_TRIGGERS=mark_step has no effect since 2025" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_details_name_each_graph():
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch import core
        for size in (3, 3, 4):
            torch.ones(size, device="hpu").add(1)
            core.mark_step()
        print(dict(torch.hpu.metric_global("graph_compilation").stats())["recipe"])
        """,
        env={**LAZY, "PT_HPU_METRICS_GC_DETAILS": "1"},
    ).stdout
    assert out.strip() == "[('graph_0', 0), ('graph_1', 0)]"


def test_a_mistaken_format_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PT_HPU_METRICS_FILE", str(tmp_path / "m.json"))
    monkeypatch.setenv("PT_HPU_METRICS_FILE_FORMAT", "xml")
    with pytest.raises(KeyError, match="'xml' is no format of a metrics file"):
        saver.Saver.from_environ([])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PT_HPU_METRICS_DUMP_TRIGGERS", "never", "PT_HPU_METRICS_DUMP_TRIGGERS='never' has an"),
        ("PT_HPU_METRICS_FILE_FORMAT", "xml", "'xml' is no format of a metrics file"),
    ],
)
def test_a_mistaken_environment_ends_the_import(tmp_path, name, value, message):
    env = {**OLD, "PT_HPU_METRICS_FILE": str(tmp_path / "m.json"), name: value}
    result = run_python("import lightning_gaudi, torch; torch.hpu", env=env, check=False)
    assert result.returncode != 0
    assert message in result.stderr
