"""What the stand-in offers of the vendor's names, and how it says what it lacks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import habana_frameworks
import pytest
import torch

from lightning_gaudi.simulator import vendor_names

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
    "hpex.optimizers": "FusedAdagrad FusedAdamW FusedLamb FusedLars "
    "FusedResourceApplyMomentum FusedSGD",
    "hpex.optimizers.distributed": "FusedAdamW",
    "hpex.optimizers.FusedAdamW": "FusedAdamW",
    "hpex.optimizers.SparseSGD": "forward",
    "hpex.optimizers.SparseAdagrad": "forward",
    "hpex.movingavrg": "FusedEMA",
    "hpex.movingavrg.FusedEMA": "FusedEMA",
    "hpex.normalization": "FusedClipNorm FusedRMSNorm RmsNormBwdMode",
    "hpex.normalization.FusedRMSNorm": "FusedRMSNorm",
    "hpex.kernels": "CTCLoss CustomSoftmax FusedSDPA PySDPA PySDPAHinted RotaryPosEmbeddingMode "
    "RotaryPosEmbeddingHelperV1 RotaryPosEmbeddingHelperV2 RotaryPosEmbeddingHelperV3 "
    "apply_rotary_pos_emb flex_attention_bwd flex_attention_fwd fp8_fused_sdpa "
    "fp8_sdpa_bwd_wrapper fp8_sdpa_fwd_wrapper gqa_output_reshape "
    "mixture_of_experts_bwd_fp8_wrapper mixture_of_experts_fwd_fp8_wrapper",
    "hpex.kernels.FusedSDPA": "gqa_input_reshape_bwd gqa_input_reshape_fwd gqa_output_reshape "
    "is_gqa sdpa_bwd_wrapper sdpa_fwd_wrapper",
    "hpex.kernels.fbgemm": "bounds_check_indices expand_into_jagged_permute "
    "permute_1D_sparse_data permute_2D_sparse_data split_embedding_codegen_lookup_function "
    "split_permute_cat",
    "hpex.experimental.transformer_engine": "FusedAttention Linear checkpoint distributed fp8 "
    "fp8_autocast recipe utils",
    "hpex.experimental.transformer_engine.recipe": "DelayedScaling Format",
    "hpex.experimental.transformer_engine.fp8": "FP8GlobalStateManager fp8_autocast "
    "get_fp8_te_dtype get_fp8_te_sr set_measurement_mode",
    "hpex.experimental.transformer_engine.distributed": "activation_checkpointing checkpoint",
    "hpex.experimental.transformer_engine.utils": "FP8BwdTensors FP8FwdTensors FP8TensorMeta "
    "is_gaudi3",
    "utils.experimental": "detect_recompilation_auto_model data_dynamicity const_shape_dataloader "
    "synDeviceType",
    "utils.experimental.detect_recompilation": "detect_recompilation_auto_model data_dynamicity "
    "const_shape_dataloader get_shape print_result",
    "utils.internal": "is_lazy lazy_only Timer",
    "utils.library_loader": "is_habana_available load_habana_module",
}

ABSENT = {
    "hpu": "empty_cache reset_max_memory_allocated",
    "hpu.metrics": "no_such_name",
}
"""What the vendor's package has not either."""

REFUSING = {
    "hpu": "utilization",
    "utils.profiler": "_setup_profiler",
    "utils.debug": "_memstat_livealloc save_ds_checkpoint",
    "hw_utilization_metric": "HWUtilizationMetrics",
    "dynamo.compile_backend.passes": "optimize_graph",
    "internal.synrec_helper": "synrec_start",
}
"""What only a card can do."""

OPERATORS = (
    "optimizer_adamw fused_clip_norm optimizer_lamb_fused_norm optimizer_lamb_phase1 "
    "optimizer_lamb_phase2 optimizer_sgd optimizer_sgd_momentum optimizer_lars "
    "optimizer_resource_apply_momentum optimizer_ema sdpa_fwd sdpa_recomp_fwd sdpa_bwd "
    "sdpa_recomp_bwd rms_norm rms_norm_backward rotary_pos_embedding "
    "rotary_pos_embedding_backward ctc_loss_custom ctc_loss_custom_backward custom_softmax "
    "ragged_softmax scaled_masked_softmax scaled_triangular_softmax "
    "scaled_triangular_softmax_retain cast_to_fp8 cast_to_fp8_v2 cast_to_fp8_hybrid "
    "cast_from_fp8 fp8_gemm fp8_gemm_v2 fp8_sdpa_fwd fp8_sdpa_recomp_fwd fp8_sdpa_bwd "
    "dequantize_nf4 convert_from_int4 convert_from_uint4"
)


def _names(table):
    return [(module, name) for module, names in table.items() for name in names.split()]


def _import(module):
    return importlib.import_module(f"{PREFIX}.{module}" if module else PREFIX)


@pytest.mark.parametrize(("module", "name"), _names(HERE))
def test_the_stand_in_has(module, name):
    value = getattr(_import(module), name)
    assert inspect.getdoc(value), "a public name says what it does"


@pytest.mark.parametrize(("module", "name"), _names(ABSENT))
def test_the_stand_in_says_that_it_lacks(module, name):
    owner = _import(module)
    assert not hasattr(owner, name)
    with pytest.raises(NotImplementedError, match=f"{name} is not available") as error:
        getattr(owner, name)
    assert f"{owner.__name__}.{name} " in str(error.value)
    assert README in str(error.value)


@pytest.mark.parametrize(("module", "name"), _names(REFUSING))
def test_a_name_that_needs_a_card_is_there_and_refuses_with_the_reason(module, name):
    found = getattr(_import(module), name)
    assert found.__name__ == name
    with pytest.raises(NotImplementedError, match=f"{name} is not available") as error:
        found()
    assert found.__doc__ in str(error.value)


@pytest.mark.parametrize("name", OPERATORS.split())
def test_the_custom_operator_exists(name):
    assert getattr(torch.ops.hpu, name).default._schema.name == f"hpu::{name}"


@pytest.mark.parametrize("name", vendor_names.operators())
def test_operators_that_libraries_call_are_there_or_said_to_lack(name):
    listed = vendor_names.operators()[name]
    assert hasattr(torch.ops.hpu, name) is (listed.lacks is None)
    assert set(listed.callers) <= set(vendor_names.CALLERS)


OPTIONS = "habana_frameworks.torch.dynamo.compile_backend.config"
"""A module of torch's kind for options, which has a way of its own to lack one."""


def _modules():
    found = pkgutil.walk_packages(habana_frameworks.__path__, "habana_frameworks.")
    names = [m.name for m in found if not any(p.startswith("_") for p in m.name.split("."))]
    return [name for name in names if name != OPTIONS]


@pytest.mark.parametrize("name", _modules())
def test_every_module_names_what_it_lacks(name):
    module = importlib.import_module(name)
    with pytest.raises(NotImplementedError, match=f"{name}.no_such_name is not available"):
        module.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute '_private'") as error:
        module._private  # noqa: B018
    assert not isinstance(error.value, NotImplementedError)


def test_from_import_of_a_missing_name_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'empty_cache'"):
        from habana_frameworks.torch.hpu import empty_cache  # noqa: F401


@pytest.mark.parametrize(
    ("name", "reason"),
    [("torch.gpu_migration", "calls of torch.cuda"), ("mediapipe", "media are decoded by")],
)
def test_a_package_of_its_own_cannot_be_imported(name, reason):
    with pytest.raises(ModuleNotFoundError, match=reason):
        importlib.import_module(f"habana_frameworks.{name}")


def test_a_module_does_not_take_the_place_of_the_class_of_its_name():
    package = _import("hpex.optimizers")
    own = package.FusedAdamW
    module = _import("hpex.optimizers.FusedAdamW")
    assert inspect.isclass(own)
    assert module.FusedAdamW is package.FusedAdamW is own
