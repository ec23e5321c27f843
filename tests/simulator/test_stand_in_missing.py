"""What the stand-in offers of the vendor's names, and how it says what it lacks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import habana_frameworks
import pytest
import torch

PREFIX = "habana_frameworks.torch"
README = "lightning_gaudi/simulator/README.md"

HERE = {
    "core": "mark_step iter_mark_step add_step_closure hpu_inference_initialize hpu_initialize "
    "hpu_set_inference_env hpu_teardown_inference_env",
    "hpu": "is_available device_count current_device synchronize init is_initialized set_device "
    "get_device_name get_device_capability get_device_properties memory_stats memory_allocated "
    "max_memory_allocated memory_reserved max_memory_reserved mem_get_info "
    "reset_peak_memory_stats reset_accumulated_memory_stats memory_summary manual_seed "
    "manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state get_rng_state_all "
    "set_rng_state_all random Stream Event stream set_stream current_stream default_stream "
    "enable_dynamic_shape disable_dynamic_shape get_dynamic_shape_status is_bf16_supported "
    "sdp_kernel set_autocast_hpu_enabled get_autocast_hpu_dtype is_autocast_hpu_enabled "
    "set_autocast_hpu_dtype setDeterministic getDeterministic enable_optim_output_sif "
    "disable_optim_output_sif metrics",
    "hpu.graphs": "HPUGraph graph make_graphed_callables wrap_in_hpu_graph wrap_in_hpu_graph_func "
    "ModuleCacher TensorPacker CachedParams GraphModel is_current_stream_capturing input_hash",
    "hpu.random": "default_generators",
    "hpu.metrics": "metric_global metric_localcontext metrics_dump",
    "distributed.hccl": "initialize_distributed_hpu",
    "hpex.optimizers": "Adam FusedAdagrad FusedAdamW FusedLamb FusedLars "
    "FusedResourceApplyMomentum FusedSGD",
    "hpex.movingavrg": "FusedEMA",
    "hpex.normalization": "FusedClipNorm FusedRMSNorm",
    "hpex.kernels": "FusedSDPA",
    "utils.experimental": "detect_recompilation_auto_model data_dynamicity const_shape_dataloader "
    "synDeviceType",
    "utils.experimental.detect_recompilation": "detect_recompilation_auto_model data_dynamicity "
    "const_shape_dataloader get_shape print_result",
    "utils.internal": "is_lazy lazy_only Timer",
    "utils.library_loader": "is_habana_available load_habana_module",
}

MISSING = {
    "hpu": "get_stream_info empty_cache reset_max_memory_allocated utilization",
    "hpex.optimizers": "AdamW SparseSGD SparseAdagrad distributed",
    "hpex.kernels": "RotaryPosEmbeddingHelperV1 CustomSoftmax fp8_fused_sdpa",
    "hpex.experimental.transformer_engine": "Linear fp8_autocast recipe fp8",
    "utils.experimental": "distributed_emulation",
    "utils": "event_dispatcher",
    "": "gpu_migration activity_profiler",
}

OPERATORS = (
    "optimizer_adamw fused_clip_norm optimizer_lamb_fused_norm optimizer_lamb_phase1 "
    "optimizer_lamb_phase2 optimizer_sgd optimizer_sgd_momentum optimizer_lars "
    "optimizer_resource_apply_momentum optimizer_ema sdpa_fwd sdpa_recomp_fwd sdpa_bwd "
    "sdpa_recomp_bwd rms_norm rms_norm_backward"
)


def _names(table):
    return [(module, name) for module, names in table.items() for name in names.split()]


def _import(module):
    return importlib.import_module(f"{PREFIX}.{module}" if module else PREFIX)


@pytest.mark.parametrize(("module", "name"), _names(HERE))
def test_the_stand_in_has(module, name):
    value = getattr(_import(module), name)
    assert inspect.getdoc(value), "a public name says what it does"


@pytest.mark.parametrize(("module", "name"), _names(MISSING))
def test_the_stand_in_says_that_it_lacks(module, name):
    owner = _import(module)
    assert not hasattr(owner, name)
    with pytest.raises(NotImplementedError, match=f"{name} is not available") as error:
        getattr(owner, name)
    assert f"{owner.__name__}.{name} " in str(error.value)
    assert README in str(error.value)


@pytest.mark.parametrize("name", OPERATORS.split())
def test_the_custom_operator_exists(name):
    assert getattr(torch.ops.hpu, name).default._schema.name == f"hpu::{name}"


def _modules():
    found = pkgutil.walk_packages(habana_frameworks.__path__, "habana_frameworks.")
    return [m.name for m in found if not any(p.startswith("_") for p in m.name.split("."))]


@pytest.mark.parametrize("name", _modules())
def test_every_module_names_what_it_lacks(name):
    module = importlib.import_module(name)
    with pytest.raises(NotImplementedError, match=f"{name}.no_such_name is not available"):
        module.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute '_private'") as error:
        module._private  # noqa: B018
    assert not isinstance(error.value, NotImplementedError)


def test_from_import_of_a_missing_name_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'get_stream_info'"):
        from habana_frameworks.torch.hpu import get_stream_info  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{PREFIX}.gpu_migration")
