"""The list of the vendor's names against the package that stands in, in each release."""

from __future__ import annotations

import functools
import json

import pytest

from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import RELEASE, RELEASES
from lightning_gaudi.simulator.vendor_names import document
from lightning_gaudi.simulator.vendor_names.found import Found
from tests.helpers.forked import fork_python

NEWEST = RELEASES["1.24"]


@functools.cache
def _found(key: str, lazy: str | None = None) -> list[Found]:
    source = """
        import dataclasses, json, torch, warnings
        from lightning_gaudi.simulator.vendor_names.found import find_all
        warnings.simplefilter("ignore")
        print(json.dumps([dataclasses.asdict(found) for found in find_all()]))
        """
    return document.parse(fork_python(source, env={RELEASE: key, "PT_HPU_LAZY_MODE": lazy}).stdout)


@pytest.mark.slow_but("1.20")
@pytest.mark.parametrize("key", RELEASES)
def test_every_name_is_there_with_the_vendors_parameters(key: str) -> None:
    found = _found(key)
    assert len(found) > 700
    problems = [f"{f.module}.{f.name} {f.problem}" for f in found if f.problem]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["1.22", "1.24"])
def test_every_name_is_there_in_lazy_mode(key: str) -> None:
    problems = [f"{f.module}.{f.name} {f.problem}" for f in _found(key, "1") if f.problem]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_the_page_is_what_importing_finds() -> None:
    written = document.FILE.read_text()
    assert written == document.markdown({key: _found(key) for key in RELEASES}), (
        "run `python -m lightning_gaudi.simulator.vendor_names.document`"
    )


def test_refusals_have_a_reason() -> None:
    for found in _found(NEWEST.key):
        assert found.refusal is None or found.refusal.endswith("."), found


def test_names_come_and_go_with_the_release() -> None:
    names = vendor_names.modules()["torch.core"].names
    assert not names["hpu_inference_set_env"].is_in(RELEASES["1.20"])
    assert names["hpu_inference_set_env"].is_in(NEWEST)
    old = names["hpu_inference_initialize"].signature(RELEASES["1.20"])
    new = names["hpu_inference_initialize"].signature(NEWEST)
    assert "mark_scales" in (new or "")
    assert "mark_scales" not in (old or "mark_scales")


def test_graphs_are_exported_in_eager_mode_since_2025() -> None:
    graph = vendor_names.modules()["torch.hpu"].names["HPUGraph"]
    assert [graph.is_in(r, is_lazy=False) for r in RELEASES.values()] == [False, True, True]
    assert all(graph.is_in(r, is_lazy=True) for r in RELEASES.values())


RELEASE_FACTS = """
    import json, torch, habana_frameworks.torch as ht
    from habana_frameworks.torch.internal import bridge_config as bc
    from habana_frameworks.torch.dynamo.compile_backend import config
    def refuses(function, **arguments):
        try:
            function(**arguments)
        except TypeError as error:
            return str(error)
        except (RuntimeError, ValueError):
            return None
    d = torch.distributed
    print(json.dumps({
        "lazy": ht.utils.internal.is_lazy(),
        "capability": torch.hpu.get_device_capability(),
        "init": refuses(d.init_process_group, backend="hccl", device_id=torch.device("hpu")),
        "group": refuses(d.new_group, group_desc="x"),
        "metric": torch.hpu.metric_global("device_memory") is not None,
        "cache": bc.get_pt_hpu_recipe_cache_config(),
        "int64": bc.get_pt_enable_int64_support(),
        "nfs": hasattr(bc, "get_pt_hpu_recipe_cache_nfs_timeout_s"),
        "freezing": hasattr(config, "use_graph_freezing"),
    }))
    """


@pytest.mark.slow_but("1.24")
@pytest.mark.parametrize("key", RELEASES)
def test_a_release_has_its_mode_arguments_and_defaults(key: str) -> None:
    is_old, is_new = key == "1.20", key == "1.24"
    facts = json.loads(fork_python(RELEASE_FACTS, env={RELEASE: key}).stdout)
    unexpected = "init_process_group() got an unexpected keyword argument 'device_id'"
    assert facts.pop("init") == (unexpected if is_old else None)
    refusal = facts.pop("group")
    assert (refusal is None) if is_new else "argument 'group_desc'" in refusal
    assert facts == {
        "lazy": is_old,
        "capability": RELEASES[key].version,
        "metric": not is_old,
        "cache": "" if is_old else ",false,1024,false",
        "int64": not is_old,
        "nfs": not is_old,
        "freezing": is_old,
    }


def test_a_module_of_a_later_release_cannot_be_imported() -> None:
    source = """
        import habana_frameworks.torch
        try:
            import habana_frameworks.torch.hw_utilization_metric
        except ModuleNotFoundError as error:
            print(error)
        """
    out = fork_python(source, env={RELEASE: "1.20"}).stdout
    assert "hw_utilization_metric' in Gaudi's package 1.20.0" in out
