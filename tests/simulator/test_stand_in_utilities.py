"""Smaller things of the vendor's package: switches, options, logs, tensor types, debugging."""

from __future__ import annotations

import pstats

import pytest
import torch
from habana_frameworks.torch.activity_profiler import DebugActivity, clean_json
from habana_frameworks.torch.dynamo import utils as dynamo_utils
from habana_frameworks.torch.dynamo.compile_backend import config
from habana_frameworks.torch.internal import bridge_config
from habana_frameworks.torch.utils import debug, version_checker
from habana_frameworks.torch.utils.debug import cprofile_wrapper, logger
from habana_frameworks.torch.utils.debug.dynamo_utils import FxGraphAnalyzer
from habana_frameworks.torch.utils.experimental import distributed_emulation

from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import RELEASES
from tests.helpers.forked import fork_python

NEWEST = RELEASES["1.24"]


def test_every_switch_has_a_value_of_its_kind():
    kinds = {"bool": bool, "int": int, "str": str}
    for name, flag in vendor_names.flags().items():
        if flag.is_in(NEWEST):
            value = getattr(bridge_config, f"get_{name.lower()}")()
            assert isinstance(value, (kinds[flag.kind], type(None))), name
            assert hasattr(bridge_config, f"set_{name.lower()}") == flag.is_settable(NEWEST), name


def test_switches_are_read_from_the_environment():
    out = fork_python(
        """
        from habana_frameworks.torch.internal import bridge_config as bc
        print(bc.get_pt_hpu_lazy_mode(), bc.get_pt_enable_comm_group_cache())
        print(bc.get_pt_hpu_max_permute_threshold(), bc.get_pt_hpu_place_on_cpu())
        """,
        env={
            "PT_ENABLE_COMM_GROUP_CACHE": "false",
            "PT_HPU_MAX_PERMUTE_THRESHOLD": "7",
            "PT_HPU_PLACE_ON_CPU": "none",
        },
    ).stdout
    assert out.split() == ["0", "False", "7", "none"]


def test_a_switch_is_set_within_a_block():
    get = bridge_config.get_pt_hpu_enable_refine_dynamic_shapes
    assert not get()
    with bridge_config.env_setting("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", True):
        assert get()
    assert not get()
    with pytest.raises(NotImplementedError, match="set_pt_hpu_lazy_mode is not available"):
        bridge_config.set_pt_hpu_lazy_mode(1)


@pytest.mark.filterwarnings("default")
def test_options_of_the_compiler_are_known_or_refused():
    torch.compiler.reset()

    def compiled(**options):
        return torch.compile(lambda x: x + 1, backend="hpu_backend", options=options)

    x = torch.ones(2, device="hpu")
    assert compiled(inference=False, use_boxed_input=True)(x).tolist() == [2, 2]
    with pytest.raises(Exception, match=r"has no option 'fast'.*use_boxed_input"):
        compiled(fast=True)(x)
    assert config.inference is True
    assert config.configuration_flags["inference"] is True
    torch.compiler.reset()


def test_a_mistaken_option_of_the_environment_is_an_error():
    out = fork_python(
        "import habana_frameworks.torch.dynamo.compile_backend.config",
        env={"PT_HPU_USE_BOXED_INPUT": "perhaps"},
        check=False,
    )
    assert "PT_HPU_USE_BOXED_INPUT=perhaps says neither yes nor no" in out.stderr


@pytest.mark.filterwarnings("default")
def test_an_analyzer_counts_the_operations_of_a_graph():
    model = torch.compile(lambda x: (x + 1).sin().sin(), backend="hpu_backend")
    with FxGraphAnalyzer(reset_dynamo=True) as analyzer:
        model(torch.ones(3, device="hpu"))
    (counts,) = analyzer.get_ops_summary()
    assert {name: count.graph_count for name, count in counts.items()} == {
        "torch.ops.aten.add.Tensor": 1,
        "torch.ops.aten.sin.default": 2,
    }
    assert not any(count.eager_count for count in counts.values())
    assert analyzer.get_partition_num() == 1
    torch.compiler.reset()


def test_a_logger_formats_and_keeps_messages():
    log = debug.Logger("TEST")
    log.set_store_data(True)
    log.debug("{} of {}", 1, 2)
    log.info("%d%%", 5)
    log.trace("plain %s")
    log.warn(1, 2)
    assert log.data == ["[TEST] 1 of 2", "[TEST] 5%", "[TEST] plain %s", "[TEST] 1, 2"]
    assert logger.get_log_level("warn") is logger.LogLevel.WARN
    with pytest.raises(ValueError, match=r"no level 'loud' of logging\. Pass one of trace"):
        logger.get_log_level("loud")


def test_tensor_types_make_tensors_on_the_device():
    made = torch.hpu.FloatTensor([1, 2])
    assert (made.dtype, made.is_hpu, made.tolist()) == (torch.float32, True, [1, 2])
    assert torch.hpu.LongTensor([3]).dtype is torch.int64
    with pytest.raises(RuntimeError, match="IntTensor makes tensors of device hpu, and got cpu"):
        torch.hpu.IntTensor([1], device="cpu")


def test_a_streams_info_is_its_device_and_number():
    stream = torch.hpu.Stream()
    assert torch.hpu.get_stream_info(stream) == (torch.device("hpu", 0), stream.id())


def test_memory_is_told_in_every_unit():
    held = torch.ones(2**20, device="hpu")
    lines = torch.hpu.formatted_memory_stats().splitlines()
    line = next(line for line in lines if line.split()[0] == "InUse")
    assert f"{torch.hpu.memory_allocated() / 2**20:.2f}MB" in line
    assert held.is_hpu


def test_the_memory_of_a_tensor_is_told():
    tensor = torch.ones(3, device="hpu")
    assert debug.get_tensor_info(tensor) == (tensor.data_ptr(), 12)
    assert debug.get_tensor_info(torch.ones(3)) is None


def test_calls_are_profiled_into_files(tmp_path):
    @cprofile_wrapper.cprofile(str(tmp_path / "profiles"))
    def work(n):
        sum(range(n))

    work(3)
    work(4)
    files = sorted((tmp_path / "profiles").iterdir())
    assert [file.name.rpartition("_")[2] for file in files] == ["0", "1"]
    assert pstats.Stats(str(files[0])).total_calls > 0


def test_a_version_of_torch_is_compared_without_its_build():
    assert version_checker.is_pytorch_older_than("99.0")
    assert not version_checker.is_pytorch_older_than(torch.__version__.partition("+")[0])


def test_emulated_ranks_are_refused(monkeypatch):
    distributed_emulation.distributed_emulation_apply_if_enabled()
    monkeypatch.setenv("PT_HPU_EMULATE_DISTRIBUTED", "1")
    with pytest.raises(NotImplementedError, match="PT_HPU_EMULATE_DISTRIBUTED=1 is not available"):
        distributed_emulation.distributed_emulation_apply_if_enabled()


def test_nested_lists_are_mapped_and_joined():
    assert dynamo_utils.auto_map(abs)([-1, (2, [-3])]) == [1, (2, [3])]
    assert dynamo_utils.str_join([1, (2, "x")]) == "[1, (2, x)]"


def test_control_characters_leave_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"a":\n "\x01\x7fb"}')
    clean_json(str(path))
    assert path.read_text() == '{"a": "b"}'
    assert DebugActivity.BRIDGE_FUNCTION_CALLS.value == 2
