"""Lists all changes to Lightning, torch, transformers and DeepSpeed while they run.

`docs/reference/patches.md` is generated from it and from the patches that tools add while they
observe a program. Nothing without an entry can be patched; see `apply`.

In targets and triggers, `{trainer}` and `{fabric}` stand for Lightning's packages of the Trainer
and of Fabric, in each of the two namespaces that Lightning is published under.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

LIGHTNING = "2.5.6 to 2.6.6"
_DEEPSPEED = "0.19.0 to 0.19.8"

_NEVER = "never"


class Patch(NamedTuple):
    """A change, and its reason."""

    name: str
    library: str
    """`"lightning"`, `"torch"`, `"transformers"` or `"deepspeed"`."""
    checked: str
    """The versions of the library that it was checked with."""
    targets: tuple[str, ...]
    """What is changed: `module:name`, or `a <class>:name` for one object."""
    why: str
    without: str
    """What does not work without it."""
    undone: str = _NEVER
    """When it is undone."""
    trigger: str = ""
    """The module after whose import it is applied; empty if our code applies it where it must."""
    apply: str = ""
    """The function that applies it then: `module:function`, given the module. The module is one of
    this package, or of a tool by its whole name."""


_CONNECTOR_METHODS = (
    "_check_config_and_set_final_flags",
    "_choose_auto_accelerator",
    "_set_parallel_devices_and_init_accelerator",
    "_choose_and_init_cluster_environment",
    "_choose_strategy",
    "_check_strategy_and_fallback",
    "_check_and_init_precision",
)
_CONNECTOR_WHY = (
    "It decides on accelerator, strategy and precision, and knows no HPU: it raises, takes the "
    "CPU, or autocasts for CUDA. Each method does what it did unless the accelerator is an HPU."
)
STUBS = {
    "HPUAccelerator": ("accelerators",),
    "HPUParallelStrategy": ("strategies",),
    "SingleHPUStrategy": ("strategies",),
    "HPUCheckpointIO": ("plugins", "plugins.io"),
    "HPUPrecisionPlugin": ("plugins", "plugins.precision"),
}
"""Classes that Lightning had until 2.5.5 and only has stubs of since, and their packages."""


def _connector(module: str, connector: str) -> tuple[str, ...]:
    return tuple(f"{module}:{connector}.{method}" for method in _CONNECTOR_METHODS)


REGISTER = (
    Patch(
        name="trainer-connector",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            *_connector(
                "{trainer}.trainer.connectors.accelerator_connector", "_AcceleratorConnector"
            ),
            "{trainer}.accelerators:AcceleratorRegistry",
            "{trainer}.strategies:StrategyRegistry",
        ),
        why=_CONNECTOR_WHY,
        without="Trainer(accelerator='hpu') will not work",
        trigger="{trainer}.trainer.connectors.accelerator_connector",
        apply="connector:patch_trainer",
    ),
    Patch(
        name="fabric-connector",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            *_connector("{fabric}.connector", "_Connector"),
            "{fabric}.accelerators:ACCELERATOR_REGISTRY",
            "{fabric}.strategies:STRATEGY_REGISTRY",
        ),
        why=_CONNECTOR_WHY,
        without="Fabric(accelerator='hpu') will not work",
        trigger="{fabric}.connector",
        apply="connector:patch_fabric",
    ),
    Patch(
        name="precision-names",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{fabric}.plugins.precision.precision:_PRECISION_INPUT_STR",
            "{fabric}.plugins.precision.precision:_PRECISION_INPUT",
        ),
        why=(
            "They are what may be passed as `precision`, also on a command line and in YAML, where "
            'nothing else is taken. "fp8" is added, which on an HPU means "transformer-engine".'
        ),
        without="precision='fp8' is unknown; 'transformer-engine' means the same",
        trigger="{fabric}.plugins.precision.precision",
        apply="connector:patch_precision_names",
    ),
    Patch(
        name="old-names",
        library="lightning",
        checked=LIGHTNING,
        targets=tuple(
            f"{module}:{name}"
            for name, packages in STUBS.items()
            for module in (
                "{trainer}._graveyard.hpu",
                *(f"{{trainer}}.{package}" for package in packages),
            )
        ),
        why=(
            "Until 2.5.5 Lightning had classes of these names, and has stubs of them that raise. "
            "Old projects import them from there: they get ours, when they ask."
        ),
        without="Lightning's own old HPU classes stay stubs that raise",
        trigger="{trainer}._graveyard.hpu",
        apply="trainer_setup:patch_stubs",
    ),
    Patch(
        name="resuming",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{trainer}.trainer.connectors.checkpoint_connector:_CheckpointConnector._parse_ckpt_path",
            "{trainer}.trainer.connectors.checkpoint_connector:_CheckpointConnector.resume_start",
        ),
        why=(
            "It takes the file of that name that was written last for the last checkpoint, whether "
            "or not it is complete, and has no hook to choose another. Both do what they did "
            "unless the accelerator is an HPU."
        ),
        without="ckpt_path='last' and damaged checkpoints are what Lightning makes of them",
        trigger="{trainer}.trainer.connectors.checkpoint_connector",
        apply="checkpoints:patch_resuming",
    ),
    Patch(
        name="device-log",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.trainer.setup:_log_device_info",),
        why="It logs the devices in use, but has no line for HPUs.",
        without="the Trainer will not log which HPUs it uses",
        trigger="{trainer}.trainer.setup",
        apply="trainer_setup:patch_device_log",
    ),
    Patch(
        name="profiler-by-name",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.trainer.setup:_init_profiler",),
        why='It has a fixed list of names, to which `Trainer(profiler="hpu")` is added.',
        without="Trainer(profiler='hpu') will not work; pass profiler=HPUProfiler()",
        trigger="{trainer}.trainer.setup",
        apply="trainer_setup:patch_profiler_names",
    ),
    Patch(
        name="fabric-throughput",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{fabric}.utilities.throughput:get_available_flops",
            "{fabric}.utilities.throughput:_plugin_to_compute_dtype",
        ),
        why=(
            "`ThroughputMonitor` looks a device's peak and a plugin's dtype up in lists that have "
            "none of ours."
        ),
        without="Lightning's ThroughputMonitor will not work on HPUs",
        trigger="{fabric}.utilities.throughput",
        apply="trainer_setup:patch_throughput",
    ),
    Patch(
        name="trainer-throughput",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{trainer}.callbacks.throughput_monitor:get_available_flops",
            "{trainer}.callbacks.throughput_monitor:_plugin_to_compute_dtype",
        ),
        why="The Trainer's `ThroughputMonitor` has its own lists, or copies of them.",
        without="Lightning's ThroughputMonitor will not work on HPUs",
        trigger="{trainer}.callbacks.throughput_monitor",
        apply="trainer_setup:patch_throughput",
    ),
    Patch(
        name="trainer-out-of-memory",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.utilities.memory:is_oom_error",),
        why="It recognizes the errors of CUDA and of the CPU for full memory, but not an HPU's.",
        without="BatchSizeFinder and scale_batch_size end with the error of the largest batch",
        trigger="{trainer}.utilities.memory",
        apply="trainer_setup:patch_out_of_memory",
    ),
    *(
        Patch(
            name=f"trial-losses-{finder.replace('_', '-')}",
            library="lightning",
            checked=LIGHTNING,
            targets=(f"{{trainer}}.tuner.{finder}:_try_loop_run",),
            why="The Tuner takes trial steps, up to infinite losses, without marking them as such.",
            without="lr_find and BatchSizeFinder may end with LossNotFiniteError",
            trigger=f"{{trainer}}.tuner.{finder}",
            apply="trainer_setup:patch_trials",
        )
        for finder in ("lr_finder", "batch_size_scaling")
    ),
    Patch(
        name="fabric-run",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{fabric}.cli:_SUPPORTED_ACCELERATORS",
            "{fabric}.cli:_get_num_processes",
            "{fabric}.cli:_run.params",
        ),
        why=(
            "The choices of `fabric run --accelerator` are fixed when it is imported, and its "
            "launcher counts the processes for the devices that it knows."
        ),
        without="`fabric run --accelerator=hpu` will not work; use torchrun",
        trigger="{fabric}.cli",
        apply="fabric_run:patch_cli",
    ),
    Patch(
        name="four-bit-dtype",
        library="lightning",
        checked=LIGHTNING,
        targets=("{fabric}.plugins.precision.bitsandbytes:BitsandbytesPrecision.__init__",),
        why=(
            "Its default is bfloat16 where CUDA computes in it, and float16 elsewhere, which no "
            "HPU makes of NF4."
        ),
        without="BitsandbytesPrecision('nf4') is refused unless dtype=torch.bfloat16 is passed",
        trigger="{fabric}.plugins.precision.bitsandbytes",
        apply="connector:patch_four_bit_dtype",
    ),
    Patch(
        name="checkpoint-loading",
        library="lightning",
        checked=LIGHTNING,
        targets=("{fabric}.plugins.io.torch_io:pl_load",),
        why=(
            "Lightning 2.5 trusts all files, 2.6 those of the web, and in the vendor's lazy mode "
            "all. Where there is an HPU, it gets tensors and plain data, or an error."
        ),
        without="TorchCheckpointIO may run code that is in a checkpoint",
        trigger="{fabric}.plugins.io.torch_io",
        apply="checkpoints:patch_load",
    ),
    Patch(
        name="load-from-checkpoint",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.core.saving:pl_load",),
        why=(
            "As `checkpoint-loading`. And in lazy mode it would fail: the vendor calls the "
            "function for `map_location` with a device, where torch has a text."
        ),
        without="load_from_checkpoint may run code that is in a checkpoint",
        trigger="{trainer}.core.saving",
        apply="checkpoints:patch_load",
    ),
    Patch(
        name="instantiator",
        library="lightning",
        checked="2.5.6 to 2.6.5; 2.6.6 does it",
        targets=("{trainer}.core.saving:_load_state",),
        why=(
            "`_instantiator` among a checkpoint's hyperparameters names a function that "
            "`load_from_checkpoint` imports and calls: CVE-2026-58659. Only LightningCLI's may be."
        ),
        without="load_from_checkpoint may call a function that a checkpoint names",
        trigger="{trainer}.core.saving",
        apply="checkpoints:patch_instantiator",
    ),
    Patch(
        name="shards-to-file",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.utilities.deepspeed:convert_zero_checkpoint_to_fp32_state_dict",),
        why="It loads DeepSpeed's files with weights_only=False; see `deepspeed-loading`.",
        without="convert_zero_checkpoint_to_fp32_state_dict may run code that is in a checkpoint",
        trigger="{trainer}.utilities.deepspeed",
        apply="checkpoints:patch_conversion",
    ),
    Patch(
        name="cli-errors",
        library="lightning",
        checked=f"{LIGHTNING}, with jsonargparse 4.35 to 4.53",
        targets=(
            "{trainer}.cli:LightningArgumentParser.parse_args",
            "{trainer}.cli:LightningArgumentParser.error",
        ),
        why=(
            "LightningCLI names no file, line or nearest setting for a wrong setting, and no file "
            "for a syntax error. If there is an HPU, its message ends with them."
        ),
        without="LightningCLI's errors name no file and line",
        trigger="{trainer}.cli",
        apply="trainer_setup:patch_parser",
    ),
    Patch(
        name="class-swap",
        library="lightning",
        checked=LIGHTNING,
        targets=("a strategy or precision plugin:__class__",),
        why=(
            "A strategy or plugin that a user has made for any device becomes its form for the "
            "HPU, and stays the user's object with its arguments."
        ),
        without="a strategy or plugin that was passed as an object will not work",
    ),
    Patch(
        name="deepspeed-summary",
        library="lightning",
        checked="2.5.6; 2.6 has it",
        targets=(
            "{trainer}.utilities.model_summary.model_summary_deepspeed:DeepSpeedSummary.flop_counts",
        ),
        why=("Lightning 2.5 asks the summary of a model in shards for FLOPs that it never counts."),
        without="the summary of a model under DeepSpeed will not work",
    ),
    Patch(
        name="sigterm",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "a Trainer's _SignalConnector:_sigterm_notifier_fn",
            "a Trainer's _SignalConnector:_slurm_sigusr_handler_fn",
            "a Trainer's _TrainingEpochLoop:_broadcast_sigterm_tensor",
        ),
        why=(
            "Before each step it asks the device of every rank whether rank 0 got a SIGTERM, for "
            "which the host waits. At SLURM's signal it saves in the middle of a step, and trains "
            "on. The ranks agree over a group on the CPU instead, and end between two steps."
        ),
        without="ranks will wait for their devices at each step, and SLURM's signal ends no fit",
        undone="with the Trainer",
    ),
    Patch(
        name="exact-resume",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "a Trainer's _FitLoop:reset",
            "a Trainer's _FitLoop:on_advance_start",
            "a Trainer's _FitLoop:on_advance_end",
            "a Trainer's _FitLoop:on_run_end",
            "a Trainer's _TrainingEpochLoop:reset",
            "a Trainer's _TrainingEpochLoop:advance",
            "a DataLoader:_get_iterator",
            "a DataLoader:state_dict",
            "a DataLoader:load_state_dict",
        ),
        why=(
            "Resumed, it begins the data of an epoch anew, and goes on at the next batch whatever "
            "was left to do after the last: a validation, a scheduler that waits for its metric; "
            "`on_train_epoch_start` is left out, and what hooks had changed. "
            "What is taken from a loader is counted, and passed over when a fit resumes."
        ),
        without="a fit that resumes within an epoch will not go on exactly",
        undone="loaders when the fit ends, loops with the Trainer",
    ),
    Patch(
        name="auto-resume",
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{trainer}.trainer.connectors.checkpoint_connector:"
            "_CheckpointConnector._restore_modules_and_callbacks",
        ),
        why=(
            "A fit that torchrun or SLURM has started again begins as at its first start. It goes "
            "on from the newest checkpoint that it has saved, unless `auto_resume` is off."
        ),
        without="a fit that is started again will not go on by itself; pass ckpt_path",
        trigger="{trainer}.trainer.connectors.checkpoint_connector",
        apply="checkpoints:patch_loading",
    ),
    Patch(
        name="auto-resume-saving",
        library="lightning",
        checked=LIGHTNING,
        targets=("{trainer}.trainer.trainer:Trainer.save_checkpoint",),
        why=(
            "What a fit has saved is written down, so that a further start of the same job finds "
            "it, and not what another run has saved in the same folder."
        ),
        without="a fit that is started again will not go on by itself; pass ckpt_path",
        trigger="{trainer}.trainer.trainer",
        apply="checkpoints:patch_saving",
    ),
    Patch(
        name="whole-losses",
        library="lightning",
        checked=LIGHTNING,
        targets=("a _AutomaticOptimization:output_result_cls",),
        why=(
            "Lightning divides each loss by the number of accumulated batches, also by 1: a launch "
            "in forward and one in backward. A loss that is divided by 1 stays as it is."
        ),
        without="each step launches two divisions by 1",
        undone="with the Trainer",
    ),
    Patch(
        name="shard-clipping",
        library="lightning",
        checked=LIGHTNING,
        targets=("a Precision:clip_grad_by_norm", "a Precision:clip_grad_by_value"),
        why=(
            "torch clips gradients of one mesh, or plain ones, but not both at once. Only a plugin "
            "without a way of its own gets ours."
        ),
        without="gradients of tensor parallel models cannot be clipped",
        undone="with the plugin",
    ),
    Patch(
        name="mixed-weights",
        library="torch",
        checked="2.13",
        targets=("torch.optim:Optimizer._group_tensors_by_device_and_dtype",),
        why=(
            "torch has no operator for a list of DTensors and plain tensors, as tensor parallelism "
            "leaves a group. Each kind is stepped at once; other groups are as before."
        ),
        without="an optimizer launches eight operators for each weight of a tensor parallel model",
    ),
    Patch(
        name="adam-kernel",
        library="torch",
        checked="2.13",
        targets=("torch.optim.adam:_multi_tensor_adam",),
        why=(
            "Adam and AdamW launch seven operators for what they step at once. The bridge has a "
            "kernel for the whole since 1.24; torch's option for it, fused, rules out clipping in "
            "Lightning. Where weights are whole they are stepped as before, as on other devices."
        ),
        without="Adam and AdamW launch five operators more for each of their groups",
    ),
    Patch(
        name="fsdp2-copies",
        library="torch",
        checked="2.13",
        targets=(
            "torch.distributed.fsdp._fully_shard._fsdp_collectives:_get_param_all_gather_inputs",
            "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_all_gather_copy_out",
            "the operator fsdp:all_gather_copy_in for HPU",
        ),
        why=(
            "torch copies and frees each weight that FSDP2 gathers by a launch of its own on an "
            "HPU. The weights of a group share their memory, and are copied and freed at once. "
            "Groups on other devices, and those of DTensors or of several dtypes, are as before."
        ),
        without="FSDP2 launches three copies for each weight and gathering",
    ),
    Patch(
        name="inductor",
        library="torch",
        checked="2.6 to 2.13",
        targets=("torch._inductor.compile_fx:compile_fx",),
        why=(
            "`torch.compile` without a backend is inductor, which has no code for an HPU and fails "
            "with a KeyError. A graph on the HPU goes to the vendor's compiler, others stay."
        ),
        without="torch.compile will need backend='hpu_backend' on the HPU",
        trigger="torch._inductor.compile_fx",
        apply="inductor:patch_inductor",
    ),
    Patch(
        name="process-group",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.19 to 1.24.0",
        targets=(
            "torch.distributed:init_process_group",
            "torch.distributed:destroy_process_group",
            "sys:exit",
            "_sitebuiltins:Quitter.__call__",
        ),
        why=(
            "Up to release 1.20 the vendor's package puts a wrapper in the place of the first that "
            "does not take device_id=None, which Lightning always passes: DDP on the CPUs of a "
            "Gaudi server would fail. And groups of HCCL end together, as the interpreter does, "
            "also those that the second has destroyed: each rank waits for ever where another has "
            "failed. A rank of several, whoever has connected it, sees at its end first whether "
            "the others come to theirs, and with which status it is ended."
        ),
        without="Lightning's DDP on CPUs may fail on a Gaudi server, and a rank that fails hangs",
        trigger="habana_frameworks.torch.core",
        apply="process_group:patch_process_group",
    ),
    Patch(
        name="lazy-load",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.19 to 1.24.0",
        targets=("torch:load",),
        why=(
            "The vendor's function of lazy mode trusts all files unless it gets weights_only=True. "
            "Without that argument torch's own default counts again."
        ),
        without="in lazy mode torch.load may run code that is in a file",
        trigger="habana_frameworks.torch.core",
        apply="checkpoints:patch_lazy_load",
    ),
    Patch(
        name="fused-attention",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.24.0",
        targets=("torch.nn.functional:scaled_dot_product_attention",),
        why=(
            "On a card it is composed of operators, and keeps the scores in memory. For tensors on "
            "the HPU it is the vendor's FusedSDPA, where `lightning_gaudi.attention` says so."
        ),
        without="F.scaled_dot_product_attention is not fused on the HPU",
        trigger="habana_frameworks.torch.core",
        apply="attention:patch_sdpa",
    ),
    Patch(
        name="fp8-checkpointing",
        library="torch",
        checked="2.6 to 2.13",
        targets=("torch.utils.checkpoint:CheckpointFunction.forward",),
        why=(
            "The first pass of reentrant activation checkpointing computes no gradients, as an "
            "evaluation does not. Layers in fp8 measure in the one and not in the other."
        ),
        without="fp8 with reentrant activation checkpointing will not work",
    ),
    Patch(
        name="accelerator-memory",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.24.0",
        targets=tuple(
            f"torch.accelerator{part}:{name}"
            for part in ("", ".memory")
            for name in (
                "empty_cache",
                "empty_host_cache",
                "memory_stats",
                "get_memory_info",
                "reset_peak_memory_stats",
                "reset_accumulated_memory_stats",
            )
        ),
        why=(
            "torch 2.9 and later cannot report the memory of the vendor's allocator: the functions "
            'raise "Allocator for hpu is not a DeviceAllocator". They report what it counts.'
        ),
        without="torch.accelerator's functions of memory raise",
        trigger="habana_frameworks.torch.core",
        apply="device_names:patch_accelerator_memory",
    ),
    Patch(
        name="graph-wrapper",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.24.0",
        targets=("habana_frameworks.torch.hpu:wrap_in_hpu_graph",),
        why=(
            "It exists in eager mode, too, where the first forward of the module that it returns "
            "raises. Libraries that look for the name, such as sentence-transformers, use it."
        ),
        without="what libraries wrap in an HPU graph fails in eager mode",
        trigger="habana_frameworks.torch.hpu",
        apply="device_names:patch_graph_wrapper",
    ),
    Patch(
        name="graph-captures",
        library="torch",
        checked="2.6 to 2.13, with the vendor's bridge 1.24.0",
        targets=tuple(
            f"habana_frameworks.torch.hpu:HPUGraph.{method}"
            for method in ("capture_begin", "capture_end", "reset")
        ),
        why=(
            "The vendor's `is_current_stream_capturing` says no while `wrap_in_hpu_graph` "
            "captures. Each method does what it did, and it is noted that a capture has begun or "
            "ended."
        ),
        without="it is not known whether an HPU graph is being captured",
        trigger="habana_frameworks.torch.hpu",
        apply="device_names:patch_graphs",
    ),
    Patch(
        name="linear",
        library="torch",
        checked=f"2.6 to 2.13, with deepspeed {_DEEPSPEED}",
        targets=("torch.nn.functional:linear",),
        why=(
            "ZeRO-3 replaces it for the whole process, after which tensor parallelism fails in "
            "inference mode. Torch's own is put back when the strategy has ended."
        ),
        without="tensor parallelism may fail in a process that has used ZeRO-3",
        undone="by the next engine of ZeRO-3",
    ),
    Patch(
        name="transformers-attention",
        library="transformers",
        checked="4.49 to 5.24",
        targets=(
            "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS['gaudi_fused_sdpa']",
            "transformers.masking_utils:ALL_MASK_ATTENTION_FUNCTIONS['gaudi_fused_sdpa']",
            "transformers.modeling_utils:PreTrainedModel.__init__",
            "transformers.modeling_utils:PreTrainedModel.set_attn_implementation",
        ),
        why=(
            '`attn_implementation="gaudi_fused_sdpa"` is a name that transformers does not have. '
            "Models that never look a name up would pass over it: they refuse it instead."
        ),
        without="attn_implementation='gaudi_fused_sdpa' will not work",
        trigger="transformers.modeling_utils",
        apply="attention:patch_transformers",
    ),
    Patch(
        name="transformers-captures",
        library="transformers",
        checked="4.49 to 5.24",
        targets=("transformers.utils.import_utils:is_cuda_stream_capturing",),
        why=(
            "transformers reads on the host whether a mask of padding hides anything, unless a "
            "graph of a GPU is being captured. It takes an HPU graph that is being captured for "
            "one; where none is, nothing changes."
        ),
        without="encoders of transformers with a mask of padding are in no HPU graph",
        trigger="transformers.modeling_utils",
        apply="device_names:patch_transformers",
    ),
    Patch(
        name="bloom-attention",
        library="transformers",
        checked="4.49 to 5.24",
        targets=(
            "transformers.models.bloom.modeling_bloom:BloomAttention.__init__",
            "transformers.models.bloom.modeling_bloom:BloomAttention.forward",
            "transformers.models.bloom.modeling_bloom:ALL_ATTENTION_FUNCTIONS",
            "transformers.models.bloom.modeling_bloom:"
            "BloomPreTrainedModel._can_set_attn_implementation",
            "transformers.models.bloom.modeling_bloom:"
            "BloomPreTrainedModel.get_correct_attn_implementation",
        ),
        why=(
            "Bloom computes its attention itself, and looks no name up. With "
            '`attn_implementation="gaudi_fused_sdpa"` the kernel computes it; otherwise nothing '
            "changes."
        ),
        without="attn_implementation='gaudi_fused_sdpa' will not work for Bloom",
        trigger="transformers.models.bloom.modeling_bloom",
        apply="attention:patch_bloom",
    ),
    Patch(
        name="deepspeed-import",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("deepspeed.accelerator.hpu_accelerator:HPU_Accelerator.__init__",),
        why=(
            "It makes all of torch deterministic, stops torch from filling new tensors, and sets "
            "variables of the vendor's, all for the rest of the program."
        ),
        without="importing DeepSpeed will make torch deterministic, and slower",
        trigger="deepspeed.accelerator.hpu_accelerator",
        apply="deepspeed:patch_accelerator",
    ),
    Patch(
        name="deepspeed-trial-step",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=(
            "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer.initialize_optimizer_states",
            "deepspeed.runtime.fp16.unfused_optimizer:"
            "FP16_UnfusedOptimizer.initialize_optimizer_states",
        ),
        why=(
            "In half precision and stage 0 it steps the optimizer once before there are gradients. "
            "Adam counts that step and decays the weights, so all later losses would differ."
        ),
        without="losses of stage 0 in half precision differ from those of other stages",
        undone="when the engine is made",
    ),
    Patch(
        name="deepspeed-masters",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("a DeepSpeedZeroOptimizer_Stage3:fp32_partitioned_groups_flat",),
        why=(
            "In fp32 master weights and weights should share memory, but DeepSpeed compares a "
            "device with its name, which are never equal: each card would hold its share twice."
        ),
        without="ZeRO-3 holds fp32 weights twice",
        undone="with the engine",
    ),
    Patch(
        name="deepspeed-regions",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=(
            "deepspeed.utils:set_z3_leaf_module",
            "a DeepSpeedZeRoOffload:forward_hooks",
            "a DeepSpeedZeRoOffload:backward_hooks",
        ),
        why=(
            "ZeRO-3 gathers layer by layer, by hooks that cut a compiled region. It is told to "
            "gather each region as one, and its hooks on what is in there are taken off."
        ),
        without="under ZeRO-3 nothing is compiled",
        undone="with the engine",
    ),
    Patch(
        name="deepspeed-steps",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("a DeepSpeedZeRoOffload:fwd_pre_hook",),
        why=(
            "ZeRO-3 begins a step whenever its model is called, and training_step calls it in the "
            "middle of one: weights were never gathered ahead, and ranks compared records in each "
            "step. A step begins where the engine is called."
        ),
        without="ZeRO-3 waits in each step, and gathers nothing ahead",
        undone="with the engine",
    ),
    Patch(
        name="deepspeed-copies",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=(
            "a DeepSpeedZeroOptimizer:reduce_independent_p_g_buckets_and_remove_grads",
            "a DeepSpeedZeroOptimizer:reduce_ipg_grads",
            "a DeepSpeedZeroOptimizer:allreduce_and_scatter",
            "a DeepSpeedZeroOptimizer:copy_grads_in_partition",
            "a DeepSpeedZeroOptimizer_Stage3:partition_grads",
        ),
        why=(
            "ZeRO copies each gradient into its bucket, and from there to its shard, by a launch "
            "for each weight. Those of a bucket are copied together."
        ),
        without="ZeRO launches one or two copies for each weight in each step",
    ),
    Patch(
        name="deepspeed-norms",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=(
            "a DeepSpeedZeroOptimizer:scaled_global_norm",
            "a DeepSpeedZeroOptimizer_Stage3:_get_norm_groups",
            "a ZeROOptimizer:unscale_and_clip_grads",
            "deepspeed.runtime.fp16.loss_scaler:LossScalerBase.scale_loss",
        ),
        why=(
            "ZeRO launches a norm for each weight, waits for each group of weights to see whether "
            "the norm is a number, launches a dozen operators for each group to find what to "
            "divide it by, and multiplies each loss by a scale of 1. All gradients are measured at "
            "once, and the host, which has to look at the norm, does the rest."
        ),
        without="ZeRO launches a norm for each weight, and waits several times a step",
    ),
    Patch(
        name="deepspeed-step",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("a DeepSpeedEngine:step", "its optimizer:__class__"),
        why=(
            "In Fabric's loop a user steps and zeroes gradients as with any optimizer: whether "
            "DeepSpeed is in the middle of an accumulation is known to the engine alone."
        ),
        without="Fabric's loops lose gradients under DeepSpeed",
        undone="with the engine",
    ),
    Patch(
        name="deepspeed-saving",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("a DeepSpeedEngine:checkpoint_engine", "a DeepSpeedEngine:_copy_recovery_script"),
        why=(
            "A rank that fails to write raises at once, and the others wait for it; a file that is "
            "half written looks whole. Files are written at once, and errors kept for all ranks."
        ),
        without="a full disk hangs the ranks that save",
        undone="when the checkpoint is saved",
    ),
    Patch(
        name="deepspeed-loading",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("torch:load",),
        why=(
            "DeepSpeed loads its files with weights_only=False: they could run any code. It gets "
            "tensors, plain data and its own few classes instead, or an error."
        ),
        without="loading a checkpoint of DeepSpeed's may run code that is in it",
        undone="when the checkpoint is loaded",
    ),
    Patch(
        name="deepspeed-resize",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("a DeepSpeedConfig:load_universal_checkpoint",),
        why="It is a setting of the whole run; here it holds for one checkpoint.",
        without="a checkpoint cannot be loaded on another number of cards",
        undone="when the checkpoint is loaded",
    ),
    Patch(
        name="deepspeed-ops",
        library="deepspeed",
        checked=_DEEPSPEED,
        targets=("deepspeed.ops.op_builder.builder:OpBuilder._loaded_ops",),
        why=(
            "A build of DeepSpeed's that was killed leaves a lock for which every later one waits. "
            "What we have built elsewhere is entered where its builder looks first."
        ),
        without="offloading to the CPU will not work",
    ),
)

BY_NAME = {patch.name: patch for patch in REGISTER}


def add(patches: Iterable[Patch]) -> None:
    """Adds the patches of a tool; adding them twice is harmless."""
    BY_NAME.update({patch.name: patch for patch in patches})
