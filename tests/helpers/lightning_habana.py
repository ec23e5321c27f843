"""The public names of lightning-habana 1.7.0, as its sources have them below `src`."""

from __future__ import annotations

_TRAINER = (
    "HPUAccelerator HPUCheckpointIO HPUDataModule HPUDDPStrategy HPUDeepSpeedPrecisionPlugin "
    "HPUDeepSpeedStrategy HPUFSDPPrecision HPUFSDPStrategy HPUParallelStrategy HPUPrecisionPlugin "
    "HPUProfiler SingleHPUStrategy"
)
_FABRIC_STRATEGIES = "HPUDDPStrategy HPUFSDPStrategy HPUParallelStrategy SingleHPUStrategy"
_FABRIC_PLUGINS = "HPUCheckpointIO HPUFSDPPrecision HPUPrecision"

_ABOUT = "__author__ __author_email__ __copyright__ __docs__ __homepage__ __license__ __version__"

_MODULES = {
    "lightning_habana": f"{_TRAINER} HPU_AVAILABLE {_ABOUT}",
    "lightning_habana.__about__": _ABOUT,
    "lightning_habana.pytorch": _TRAINER,
    "lightning_habana.pytorch.accelerator": "HPUAccelerator",
    "lightning_habana.pytorch.datamodule": "HPUDataModule",
    "lightning_habana.pytorch.datamodule.dataloaders.resnet_media_pipe": (
        "CROP_DIM DECODER_RATIO_MAX DECODER_RATIO_MIN DECODER_SCALE_MAX DECODER_SCALE_MIN "
        "EVAL_CROP_X EVAL_CROP_Y EVAL_RESIZE_DIM FLIP_PROBABILITY MediaApiDataLoader "
        "RGB_MEAN_VALUES RGB_MULTIPLIER RGB_STD_VALUES RandomFlipFunction ResnetMediaPipe "
        "TRAIN_RESIZE_DIM USE_HORIZONTAL_FLIP"
    ),
    "lightning_habana.pytorch.datamodule.datamodule": "HPUDataModule load_data patch_aeon_length",
    "lightning_habana.pytorch.datamodule.utils": (
        "get_device_string get_rank get_world_size is_dist_avail_and_initialized is_gaudi "
        "is_gaudi2 is_main_process"
    ),
    "lightning_habana.pytorch.plugins": (
        "HPUCheckpointIO HPUDeepSpeedPrecisionPlugin HPUFSDPPrecision HPUPrecisionPlugin"
    ),
    "lightning_habana.pytorch.plugins.deepspeed_precision": (
        "HPUDeepSpeedPrecisionPlugin warning_cache"
    ),
    "lightning_habana.pytorch.plugins.fsdp_precision": "HPUFSDPPrecision",
    "lightning_habana.pytorch.plugins.io_plugin": "HPUCheckpointIO",
    "lightning_habana.pytorch.plugins.precision": "HPUPrecisionPlugin MAXABS_MEASURE MAXABS_QUANT",
    "lightning_habana.pytorch.profiler": "HPUProfiler",
    "lightning_habana.pytorch.profiler.profiler": "HPUProfiler log",
    "lightning_habana.pytorch.strategies": (
        "HPUDDPStrategy HPUDeepSpeedStrategy HPUFSDPStrategy HPUParallelStrategy SingleHPUStrategy"
    ),
    "lightning_habana.pytorch.strategies.ddp": "HPUDDPStrategy log",
    "lightning_habana.pytorch.strategies.deepspeed": (
        "HPUDeepSpeedStrategy log remove_module_hooks warning_cache"
    ),
    "lightning_habana.pytorch.strategies.fsdp": "HPUFSDPStrategy log",
    "lightning_habana.pytorch.strategies.parallel": "HPUParallelStrategy log",
    "lightning_habana.pytorch.strategies.single": "SingleHPUStrategy",
    "lightning_habana.fabric": f"HPUAccelerator {_FABRIC_PLUGINS} {_FABRIC_STRATEGIES}",
    "lightning_habana.fabric.accelerator": "HPUAccelerator",
    "lightning_habana.fabric.plugins": _FABRIC_PLUGINS,
    "lightning_habana.fabric.plugins.fsdp_precision": "HPUFSDPPrecision",
    "lightning_habana.fabric.plugins.io_plugin": "HPUCheckpointIO",
    "lightning_habana.fabric.plugins.precision": "HPUPrecision",
    "lightning_habana.fabric.strategies": _FABRIC_STRATEGIES,
    "lightning_habana.fabric.strategies.ddp": "HPUDDPStrategy log",
    "lightning_habana.fabric.strategies.fsdp": "HPUFSDPStrategy log",
    "lightning_habana.fabric.strategies.parallel": "HPUParallelStrategy log",
    "lightning_habana.fabric.strategies.single": "SingleHPUStrategy",
    "lightning_habana.utils.hpu_distributed": "supported_reduce_ops",
    "lightning_habana.utils.resources": (
        "device_count get_device_name_from_backend get_device_name_from_hlsmi get_device_stats "
        "get_hpu_synapse_version is_fp16_available is_fp8_available modify_fp8_json"
    ),
}

NAMES = [(module, name) for module, names in _MODULES.items() for name in names.split()]
"""Each name, and each module to import it from."""

_ACCELERATOR = (
    "auto_device_count get_device_name get_parallel_devices is_available parse_devices "
    "register_accelerators setup_device teardown"
)
_STEPS = "optimizer_step predict_step test_step training_step validation_step"
_PARALLEL = (
    "barrier broadcast checkpoint_io model_to_device num_nodes num_processes reduce "
    "reduce_loss_if_parallel register_strategies root_device set_world_ranks setup_distributed "
    f"setup_environment setup_hccl_env strategy_name {_STEPS}"
)
_DDP = "determine_ddp_device_ids reduce register_strategies strategy_name"
_FSDP = (
    "get_registered_strategies mixed_precision_config model_sharded_context reduce "
    "register_strategies root_device setup strategy_name"
)
_AUTOCAST = "autocast_context_manager forward_context"

_MEMBERS = {
    "lightning_gaudi": {
        "HPUAccelerator": f"{_ACCELERATOR} get_device_stats is_fp8_available is_lazy",
        "HPUCheckpointIO": "save_checkpoint",
        "HPUDDPStrategy": f"{_DDP} setup",
        "HPUDeepSpeedPrecisionPlugin": (
            "backward clip_gradients convert_modules device optimizer_step precision"
        ),
        "HPUDeepSpeedStrategy": (
            "DEEPSPEED_ENV_VAR deepspeed_engine distributed_sampler_kwargs "
            "handles_gradient_accumulation init_deepspeed lightning_restore_optimizer "
            "load_checkpoint load_model_state_dict load_optimizer_state_dict model_sharded_context "
            "on_predict_end on_test_end register_strategies restore_checkpoint_after_setup "
            "save_checkpoint setup setup_distributed setup_optimizers strategy_name "
            "tensor_init_context zero_stage_3"
        ),
        "HPUFSDPPrecision": f"{_AUTOCAST} precision",
        "HPUFSDPStrategy": f"{_FSDP} precision_plugin",
        "HPUParallelStrategy": _PARALLEL,
        "HPUPrecisionPlugin": (
            f"{_AUTOCAST} convert_modules device fp8_inference_available fp8_training_available "
            "precision recipe replace_layers"
        ),
        "HPUProfiler": "profile_hpu_activities stop summary",
        "SingleHPUStrategy": (
            "checkpoint_io is_distributed model_to_device on_after_backward on_predict_end "
            "on_test_end optimizer_step predict_step register_strategies setup setup_optimizers "
            "strategy_name test_step validation_step"
        ),
    },
    "lightning_gaudi.fabric": {
        "HPUAccelerator": _ACCELERATOR,
        "HPUCheckpointIO": "save_checkpoint",
        "HPUDDPStrategy": f"{_DDP} process_group_backend",
        "HPUFSDPPrecision": f"{_AUTOCAST} precision",
        "HPUFSDPStrategy": f"{_FSDP} model_to_device precision setup_module",
        "HPUParallelStrategy": f"{_PARALLEL} setup_module",
        "HPUPrecision": f"{_AUTOCAST} device precision",
        "SingleHPUStrategy": (
            "backward checkpoint_io optimizer_step register_strategies setup_module strategy_name"
        ),
    },
}

MEMBERS = [
    (home, kind, name)
    for home, kinds in _MEMBERS.items()
    for kind, names in kinds.items()
    for name in names.split()
]
"""Where each class is now, its name, and each public member that it defined."""

_SINGLE = "device accelerator checkpoint_io"
_SEVERAL = "accelerator parallel_devices cluster_environment"
_OF_FSDP = (
    f"{_SEVERAL} process_group_backend timeout cpu_offload mixed_precision auto_wrap_policy "
    "activation_checkpointing activation_checkpointing_policy sharding_strategy state_dict_type"
)

ARGUMENTS = {
    ("lightning_gaudi", "HPUDDPStrategy"): (
        f"{_SEVERAL} checkpoint_io precision_plugin ddp_comm_state ddp_comm_hook ddp_comm_wrapper "
        "model_averaging_period process_group_backend"
    ),
    ("lightning_gaudi", "HPUDeepSpeedPrecisionPlugin"): "precision device",
    ("lightning_gaudi", "HPUDeepSpeedStrategy"): (
        f"{_SEVERAL} zero_optimization stage remote_device offload_optimizer offload_parameters "
        "offload_params_device nvme_path params_buffer_count params_buffer_size max_in_cpu "
        "offload_optimizer_device optimizer_buffer_count block_size queue_depth single_submit "
        "overlap_events thread_count pin_memory sub_group_size contiguous_gradients overlap_comm "
        "allgather_partitions reduce_scatter allgather_bucket_size reduce_bucket_size "
        "zero_allow_untested_optimizer logging_batch_size_per_gpu config logging_level loss_scale "
        "initial_scale_power loss_scale_window hysteresis min_loss_scale partition_activations "
        "cpu_checkpointing contiguous_memory_optimization synchronize_checkpoint_boundary "
        "load_full_weights precision_plugin process_group_backend"
    ),
    ("lightning_gaudi", "HPUFSDPPrecision"): "precision device recipe replace_layers",
    ("lightning_gaudi", "HPUFSDPStrategy"): f"{_OF_FSDP} checkpoint_io precision_plugin",
    ("lightning_gaudi", "HPUParallelStrategy"): f"{_SEVERAL} checkpoint_io precision_plugin",
    ("lightning_gaudi", "HPUPrecisionPlugin"): "precision device",
    ("lightning_gaudi", "HPUProfiler"): (
        "dirpath filename group_by_input_shapes export_to_chrome row_limit sort_by_key "
        "record_module_names"
    ),
    ("lightning_gaudi", "SingleHPUStrategy"): f"{_SINGLE} precision_plugin",
    ("lightning_gaudi.fabric", "HPUDDPStrategy"): (
        f"{_SEVERAL} checkpoint_io precision process_group_backend timeout start_method"
    ),
    ("lightning_gaudi.fabric", "HPUFSDPPrecision"): "precision device recipe replace_layers",
    ("lightning_gaudi.fabric", "HPUFSDPStrategy"): f"{_OF_FSDP} precision",
    ("lightning_gaudi.fabric", "HPUParallelStrategy"): f"{_SEVERAL} checkpoint_io precision",
    ("lightning_gaudi.fabric", "HPUPrecision"): "precision device",
    ("lightning_gaudi.fabric", "SingleHPUStrategy"): f"{_SINGLE} precision",
}
"""Each class that took arguments, and their names."""

FOR_STRATEGY = (
    *("hpu_single", "hpu_parallel", "hpu_ddp", "hpu_fsdp", "single_hpu", "hpu_deepspeed"),
    *("hpu_deepspeed_stage_1", "hpu_deepspeed_stage_2", "hpu_deepspeed_stage_2_offload"),
    *("hpu_deepspeed_stage_3", "hpu_deepspeed_stage_3_offload"),
    "hpu_deepspeed_stage_3_offload_nvme",
)
"""What its `register_strategies` made known; `"hpu"` was the name of its accelerators."""

VARIABLES = (
    *("PL_DEEPSPEED_CONFIG_PATH", "HABANA_PROFILE", "HABANA_LOGS", "DEEPSPEED_USE_HPU"),
    *("PT_HPU_LAZY_ACC_PAR_MODE", "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES"),
    *("LOWER_LIST", "FP32_LIST"),
)
"""What it read or set in the environment, or its documentation told to set."""
