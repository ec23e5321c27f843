"""torch.hpu: device, memory, generator, streams and events, switches."""

from __future__ import annotations

import importlib
import os
import threading
import time

import _hpu_sim
import pytest
import torch

from lightning_gaudi.hardware import GAUDIS
from tests.helpers.forked import fork_python

MIB = 2**20
GAUDI2_BYTES = GAUDIS["gaudi2"].memory_bytes


def test_the_server_has_its_cards_and_the_process_one_device():
    assert torch.hpu.is_available()
    assert torch.hpu.device_count() == 8
    assert torch.hpu.current_device() == 0
    assert torch.hpu.is_initialized()
    assert torch.hpu.is_bf16_supported()


def test_its_modules_are_imported_by_the_name_that_torch_gives_it():
    for name in ("random", "memory", "streams", "metrics"):
        module = importlib.import_module(f"torch.hpu.{name}")
        assert module is importlib.import_module(f"habana_frameworks.torch.hpu.{name}")


@pytest.mark.parametrize(
    ("card", "name", "kind"),
    [
        pytest.param("gaudi1", "GAUDI", 1, marks=pytest.mark.slow),
        (None, "GAUDI2", 4),
        ("gaudi3", "GAUDI3", 5),
    ],
)
def test_the_card_describes_itself(card, name, kind):
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch.utils import experimental
        print(torch.hpu.get_device_name(), torch.hpu.get_device_name("hpu:0"))
        print(torch.hpu.get_device_properties())
        print(experimental._get_device_type().name, experimental._is_fp16_supported())
        """,
        env={"LIGHTNING_GAUDI_SIMULATE_CARD": card},
    ).stdout.splitlines()
    assert out[0] == f"{name} {name}"
    assert out[1].startswith("(sramBaseAddress=")
    assert out[1].endswith(f"device_type={kind})")
    assert f"dramSize={GAUDIS[card or 'gaudi2'].memory_bytes}," in out[1]
    assert out[2] == f"synDevice{name.title()} {kind != 1}"


def test_the_capability_is_a_version_not_a_tuple():
    assert torch.hpu.get_device_capability().count(".") == 2


def test_a_card_that_is_not_there_is_refused():
    with pytest.raises(AssertionError, match="no HPU with index 8: this server has 8"):
        torch.hpu.get_device_name(8)
    with pytest.raises(ValueError, match="Expected an hpu device, got 'cpu'"):
        torch.hpu.memory_stats("cpu")


def test_peers_are_other_cards():
    assert torch.hpu.can_device_access_peer(0, 7)
    with pytest.raises(AssertionError, match="Got the same device twice"):
        torch.hpu.can_device_access_peer(0, "hpu")


def test_memory_figures_follow_the_allocator():
    stats = torch.hpu.memory_stats()
    keys = "Limit InUse MaxInUse NumAllocs NumFrees ActiveAllocs MaxAllocSize "
    keys += "TotalSystemAllocs TotalSystemFrees TotalActiveAllocs"
    assert set(stats) == set(keys.split())
    before = torch.hpu.memory_allocated()
    tensor = torch.empty(MIB, dtype=torch.uint8, device="hpu")
    assert torch.hpu.memory_allocated() - before >= MIB
    free, total = torch.hpu.mem_get_info()
    assert total == torch.hpu.memory_reserved() == torch.hpu.max_memory_reserved() == GAUDI2_BYTES
    assert free == total - torch.hpu.memory_allocated()
    del tensor
    assert torch.hpu.memory_allocated() == before
    assert torch.hpu.max_memory_allocated() >= before + MIB
    torch.hpu.reset_peak_memory_stats()
    assert torch.hpu.max_memory_allocated() == torch.hpu.memory_allocated()
    torch.hpu.reset_accumulated_memory_stats()
    assert torch.hpu.memory_stats()["NumAllocs"] == 0
    assert "MaxInUse:" in torch.hpu.memory_summary()


def test_renamed_memory_functions_warn():
    with pytest.warns(FutureWarning, match="memory_cached is torch.hpu.memory_reserved"):
        assert torch.hpu.memory_cached() == torch.hpu.memory_reserved()
    with pytest.warns(FutureWarning, match="max_memory_cached is torch.hpu.max_memory_reserved"):
        assert torch.hpu.max_memory_cached() == torch.hpu.memory_reserved()


def test_the_random_state_is_restored():
    state = torch.hpu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    first = torch.rand(3, device="hpu")
    torch.hpu.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="hpu"))
    torch.hpu.set_rng_state_all(torch.hpu.get_rng_state_all())
    assert len(torch.hpu.random.default_generators) == 1


def test_seeding_the_hpu_leaves_the_cpu_generator():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    torch.hpu.manual_seed_all(5)
    assert torch.hpu.initial_seed() == 5
    assert torch.hpu.manual_seed(6).initial_seed() == 6
    assert torch.hpu.seed() == torch.hpu.initial_seed()
    torch.hpu.seed_all()
    assert torch.equal(torch.get_rng_state(), state)


def test_only_the_process_device_has_a_random_state():
    with pytest.raises(RuntimeError, match="hpu:1 is not this process's"):
        torch.hpu.get_rng_state(1)
    with pytest.raises(RuntimeError, match="hpu:2 is not this process's"):
        torch.hpu.set_rng_state(torch.hpu.get_rng_state(), "hpu:2")
    with pytest.raises(RuntimeError, match="got 2 states"):
        torch.hpu.set_rng_state_all(torch.hpu.get_rng_state_all() * 2)


def test_set_device_selects_a_module_and_keeps_index_0(monkeypatch):
    monkeypatch.setenv("HLS_MODULE_ID", "")  # so that what set_device sets is undone
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "2,3,5")
    torch.hpu.set_device(torch.device("hpu", 1))
    assert os.environ["HLS_MODULE_ID"] == "3"
    assert torch.hpu.current_device() == 0
    assert torch.ones(1, device="hpu").get_device() == 0
    torch.hpu.set_device("hpu")
    assert os.environ["HLS_MODULE_ID"] == "3"
    monkeypatch.setenv("HLS_MODULE_ID", "")
    with pytest.raises(AssertionError, match=r"the visible modules are \[2, 3, 5\]"):
        torch.hpu.set_device(3)
    monkeypatch.setenv("HLS_MODULE_ID", "7")
    with pytest.raises(AssertionError, match="HLS_MODULE_ID=7 is not among"):
        torch.hpu.set_device(0)


@pytest.mark.parametrize("value", ["all", "", "0,,1"])
def test_set_device_refuses_what_is_no_list_of_modules(monkeypatch, value):
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", value)
    with pytest.raises(ValueError, match=f"HABANA_VISIBLE_MODULES={value!r} is no list of modules"):
        torch.hpu.set_device(0)


def test_set_device_refuses_more_modules_than_a_server_has(monkeypatch):
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "0,1,2,3,4,5,6,7,8")
    with pytest.raises(AssertionError, match="names 9 modules; allowed are 1 to 8"):
        torch.hpu.set_device(0)


GAUDI3 = """
    import os, torch
    os.environ["HLS_MODULE_ID"] = ""
    for value in ("3", "2,5", "2,3,5"):
        os.environ["HABANA_VISIBLE_MODULES"] = value
        try:
            torch.hpu.set_device(0)
            print(os.environ["HLS_MODULE_ID"])
        except AssertionError as error:
            print(error)
        os.environ["HLS_MODULE_ID"] = ""
    """


def test_gaudi_3_lends_modules_in_pairs_since_1_24():
    gaudi3 = {"LIGHTNING_GAUDI_SIMULATE_CARD": "gaudi3"}
    out = fork_python(GAUDI3, env=gaudi3).stdout.splitlines()
    assert out[:2] == ["3", "2"]
    assert "names 3 modules; allowed are 1, 2, 4, 6 or 8 on a Gaudi 3" in out[2]
    older = {**gaudi3, "LIGHTNING_GAUDI_SIMULATE_RELEASE": "1.22"}
    assert fork_python(GAUDI3, env=older).stdout.split() == ["3", "2", "2"]


@pytest.fixture
def two_cards():
    _hpu_sim.set_device_count(2)
    yield
    _hpu_sim.set_device_count(8)


@pytest.mark.usefixtures("two_cards")
def test_set_device_takes_only_0_on_a_small_server(monkeypatch):
    for name in ("HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"):
        monkeypatch.delenv(name, raising=False)
    torch.hpu.set_device(0)
    assert "HLS_MODULE_ID" not in os.environ
    message = r"set_device\(1\) on a server of 2 cards needs HABANA_VISIBLE_MODULES"
    with pytest.raises(AssertionError, match=message):
        torch.hpu.set_device(1)


def test_device_contexts_check_the_device(monkeypatch):
    monkeypatch.delenv("HLS_MODULE_ID", raising=False)
    with torch.hpu.device(0), torch.hpu.device("hpu"), torch.hpu.device_of(torch.ones(1)):
        assert torch.hpu.current_device() == 0
    with pytest.raises(AssertionError, match="drives one HPU, hpu:0, and got index 3"):
        torch.hpu.device(3)


def test_streams_are_torch_streams():
    default = torch.hpu.default_stream()
    assert isinstance(default, torch.Stream)
    assert torch.hpu.current_stream() == default
    side = torch.hpu.Stream()
    assert side != default
    assert side.device.type == "hpu"
    assert isinstance(side.id(), int)
    with torch.hpu.stream(side):
        assert torch.hpu.current_stream() == side
        with torch.hpu.stream(None):
            assert torch.hpu.current_stream() == side
    assert torch.hpu.current_stream() == default
    torch.hpu.set_stream(None)
    assert torch.hpu.current_stream() == default


def test_streams_order_work():
    side = torch.hpu.Stream()
    side.wait_stream(torch.hpu.current_stream())
    with torch.hpu.stream(side):
        tensor = torch.ones(4, device="hpu") * 2
    event = side.record_event()
    assert isinstance(event, torch.hpu.Event)
    assert side.record_event(torch.hpu.Event()).query()
    torch.hpu.current_stream().wait_event(event)
    tensor.record_stream(torch.hpu.current_stream())
    torch.hpu.record_stream(tensor, side)
    side.synchronize()
    assert side.query()
    assert tensor.sum().item() == 8


def test_the_current_stream_is_per_thread():
    seen = []
    with torch.hpu.stream(torch.hpu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.hpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.hpu.default_stream()]


def test_events_measure_milliseconds():
    start, end = (torch.hpu.Event(enable_timing=True) for _ in range(2))
    start.record()
    time.sleep(0.05)
    end.record(torch.hpu.current_stream())
    end.synchronize()
    end.wait()
    assert end.query()
    assert 45 < start.elapsed_time(end) < 2000
    assert isinstance(start, torch.Event)


def test_events_without_times_are_refused():
    timed, untimed = torch.hpu.Event(enable_timing=True), torch.hpu.Event()
    timed.record()
    untimed.record()
    with pytest.raises(RuntimeError, match="the end event has no time"):
        timed.elapsed_time(untimed)
    with pytest.raises(RuntimeError, match="the start event has no time"):
        torch.hpu.Event(enable_timing=True).elapsed_time(timed)


def test_autocast_state_has_the_vendors_names():
    with torch.autocast("hpu", dtype=torch.bfloat16):
        assert torch.hpu.is_autocast_hpu_enabled()
        assert torch.hpu.get_autocast_hpu_dtype() == torch.bfloat16
    assert not torch.hpu.is_autocast_hpu_enabled()
    torch.hpu.set_autocast_hpu_enabled(True)
    torch.hpu.set_autocast_hpu_enabled(False)
    torch.hpu.set_autocast_hpu_dtype(torch.bfloat16)
    assert torch.bfloat16 in torch.hpu.get_amp_supported_dtype()


def test_switches_keep_their_values():
    assert not torch.hpu.get_dynamic_shape_status()
    torch.hpu.enable_dynamic_shape()
    assert torch.hpu.get_dynamic_shape_status()
    torch.hpu.disable_dynamic_shape()
    assert not torch.hpu.get_dynamic_shape_status()
    assert torch.hpu.recompute_sdp_enabled()
    with torch.hpu.sdp_kernel(enable_recompute=False):
        assert not torch.hpu.recompute_sdp_enabled()
    assert torch.hpu.recompute_sdp_enabled()


def test_determinism_switches_are_deprecated():
    with pytest.warns(UserWarning, match="use torch.use_deterministic_algorithms"):
        torch.hpu.setDeterministic(True)
    with pytest.warns(UserWarning, match="use torch.are_deterministic_algorithms_enabled"):
        assert torch.hpu.getDeterministic()
    with pytest.warns(UserWarning, match="deprecated"):
        torch.hpu.setDeterministic(False)


def test_checkpointing_defaults_to_hpu_once_the_device_is_started():
    torch.hpu.init()
    assert torch.utils.checkpoint.DefaultDeviceType.get_device_type() == "hpu"


def test_activation_checkpointing_replays_dropout():
    torch.manual_seed(0)
    x = torch.ones(64, device="hpu", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False
    )
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_synchronize_counts_as_a_host_sync():
    metric = torch.hpu.metric_global("host_sync")
    before = dict(metric.stats())["TotalNumber"]
    torch.hpu.synchronize()
    assert dict(metric.stats())["TotalNumber"] == before + 1
