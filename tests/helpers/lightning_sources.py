# ruff: noqa: E501
"""Source hashes of Lightning's methods that we override, and of private functions that we call.

In Lightning 2.5.6 to 2.6.6, oldest first. To add one, see tests/test_overrides.py.
"""

from __future__ import annotations

KNOWN: dict[str, list[str]] = {
    "fabric.connector._convert_precision_to_unified_args": ["0d6d5936a253"],
    "fabric.plugins.io.torch_io.TorchCheckpointIO.load_checkpoint": [
        "a92839834a5b",
        "128e2b4d73ca",
    ],
    "fabric.plugins.io.torch_io.TorchCheckpointIO.save_checkpoint": ["e536edad1642"],
    "fabric.plugins.precision.precision.Precision.convert_input": ["6598ea8026a1"],
    "fabric.plugins.precision.precision.Precision.convert_module": ["e0422cba9fd4"],
    "fabric.plugins.precision.precision.Precision.convert_output": ["0e2020e1eb5d"],
    "fabric.plugins.precision.precision.Precision.forward_context": ["be84f4d137d2"],
    "fabric.plugins.precision.precision.Precision.module_init_context": ["cbaa76eb0527"],
    "fabric.plugins.precision.precision.Precision.tensor_init_context": ["7d2ec98d53a9"],
    "fabric.plugins.precision.utils._convert_fp_tensor": ["905728ac3844"],
    "fabric.strategies.ddp.DDPStrategy._configure_launcher": ["0869347d2833"],
    "fabric.strategies.ddp.DDPStrategy._determine_ddp_device_ids": ["c2ac228c12b5"],
    "fabric.strategies.ddp.DDPStrategy._setup_distributed": ["2904a02873d1"],
    "fabric.strategies.ddp.DDPStrategy.all_reduce": ["fd34e7d6354a"],
    "fabric.strategies.ddp.DDPStrategy.barrier": ["dc09ce508fbf"],
    "fabric.strategies.ddp.DDPStrategy.broadcast": ["8852997cedb7"],
    "fabric.strategies.ddp.DDPStrategy.module_to_device": ["c9f451f4c47b"],
    "fabric.strategies.ddp.DDPStrategy.register_strategies": ["d49c6ab2bec4"],
    "fabric.strategies.ddp.DDPStrategy.root_device": ["fe798fd8c90e"],
    "fabric.strategies.ddp.DDPStrategy.setup_environment": ["c25785b89108"],
    "fabric.strategies.ddp.DDPStrategy.setup_module": ["4617e166e46c"],
    "fabric.strategies.launchers.multiprocessing._MultiProcessingLauncher._wrapping_function": [
        "7d2a261f2b5d"
    ],
    "fabric.strategies.launchers.multiprocessing._MultiProcessingLauncher.launch": ["b9099f11d739"],
    "fabric.strategies.launchers.multiprocessing._check_missing_main_guard": ["0ff2a22dd755"],
    "fabric.strategies.launchers.subprocess_script._SubprocessScriptLauncher._call_children_scripts": [
        "4851f519ebce"
    ],
    "fabric.strategies.launchers.subprocess_script._SubprocessScriptLauncher.launch": [
        "e9e0ca71cbe5"
    ],
    "fabric.strategies.parallel.ParallelStrategy.reduce_boolean_decision": ["101dd94d3a67"],
    "fabric.strategies.single_device.SingleDeviceStrategy.__init__": ["8b862eaecd07"],
    "fabric.strategies.single_device.SingleDeviceStrategy.module_to_device": ["c9f451f4c47b"],
    "fabric.strategies.strategy.Strategy.backward": ["1bf68e8ea2a8"],
    "fabric.strategies.strategy.Strategy.checkpoint_io": ["263eecba64bc"],
    "fabric.strategies.strategy.Strategy.module_init_context": ["d1742603dcac"],
    "fabric.strategies.strategy.Strategy.optimizer_step": ["e375623cf795"],
    "fabric.strategies.strategy.Strategy.setup_optimizer": ["b46dc73c6a8e"],
    "fabric.strategies.strategy.Strategy.tensor_init_context": ["2f51494eb032"],
    "fabric.utilities.cloud_io._is_local_file_protocol": ["aaecacc12d70"],
    "fabric.utilities.cloud_io._load": ["7576152c2cbf", "2a7aa6173336"],
    "fabric.utilities.distributed._destroy_dist_connection": ["d4c60d97a5b6"],
    "fabric.utilities.distributed._init_dist_connection": ["2962c8442cd9"],
    "fabric.utilities.distributed._set_num_threads_if_needed": ["3b275a72d03b"],
    "trainer.accelerators.accelerator.Accelerator.get_device_stats": ["7a84ac94ff1c"],
    "trainer.loops.training_epoch_loop._TrainingEpochLoop._broadcast_sigterm_tensor": [
        "d4e504c3f7d8"
    ],
    "trainer.overrides.distributed._register_ddp_comm_hook": ["3d0e0897a3b2"],
    "trainer.profilers.profiler.Profiler.__init__": ["16fd7f231c62"],
    "trainer.profilers.profiler.Profiler._prepare_filename": [
        "008c4a1fe01a",
        "b1a0dbda548b",
        "d671d4f59c01",
    ],
    "trainer.profilers.profiler.Profiler._prepare_streams": ["02245d44e696"],
    "trainer.profilers.profiler.Profiler._rank_zero_info": ["85c806a69969"],
    "trainer.profilers.profiler.Profiler.profile": ["44b140936031"],
    "trainer.profilers.profiler.Profiler.setup": ["6582e44aeebc"],
    "trainer.profilers.profiler.Profiler.summary": ["4a85c2f1bb18"],
    "trainer.profilers.profiler.Profiler.teardown": ["b2f20074ca3f"],
    "trainer.strategies.ddp.DDPStrategy._configure_launcher": ["0869347d2833"],
    "trainer.strategies.ddp.DDPStrategy._register_ddp_hooks": ["d27a33ed5c76"],
    "trainer.strategies.ddp.DDPStrategy._setup_model": ["90231f6a128b"],
    "trainer.strategies.ddp.DDPStrategy.barrier": ["05e708d48139"],
    "trainer.strategies.ddp.DDPStrategy.broadcast": ["8852997cedb7"],
    "trainer.strategies.ddp.DDPStrategy.determine_ddp_device_ids": ["286e3acc8ce1"],
    "trainer.strategies.ddp.DDPStrategy.model_to_device": ["da0bf6a4e40c"],
    "trainer.strategies.ddp.DDPStrategy.post_backward": ["35d8d161afe6"],
    "trainer.strategies.ddp.DDPStrategy.reduce": ["aac0d8928928"],
    "trainer.strategies.ddp.DDPStrategy.register_strategies": ["5caf6cec9b3b"],
    "trainer.strategies.ddp.DDPStrategy.root_device": ["fe798fd8c90e"],
    "trainer.strategies.ddp.DDPStrategy.setup": ["3e1dd84901a3"],
    "trainer.strategies.ddp.DDPStrategy.setup_distributed": ["015c382c0ed5"],
    "trainer.strategies.ddp.DDPStrategy.setup_environment": ["1e0668689383"],
    "trainer.strategies.launchers.multiprocessing._MultiProcessingLauncher._wrapping_function": [
        "12d3857feb56"
    ],
    "trainer.strategies.launchers.multiprocessing._MultiProcessingLauncher.launch": [
        "ebde75861392"
    ],
    "trainer.strategies.launchers.subprocess_script._SubprocessScriptLauncher._call_children_scripts": [
        "1999295f64b0"
    ],
    "trainer.strategies.launchers.subprocess_script._SubprocessScriptLauncher.launch": [
        "3617d7fa2c09"
    ],
    "trainer.strategies.parallel.ParallelStrategy.reduce_boolean_decision": ["32ce648b1b2f"],
    "trainer.strategies.single_device.SingleDeviceStrategy.__init__": ["e137b464f3d7"],
    "trainer.strategies.single_device.SingleDeviceStrategy.model_to_device": ["667b1c37e782"],
    "trainer.strategies.single_device.SingleDeviceStrategy.register_strategies": ["66b57ad598fc"],
    "trainer.strategies.strategy.Strategy.checkpoint_io": ["2634738fb967"],
    "trainer.strategies.strategy.Strategy.load_optimizer_state_dict": ["cff5409e1fc5"],
    "trainer.strategies.strategy.Strategy.optimizer_step": ["ff24a5097b26"],
    "trainer.strategies.strategy.Strategy.predict_step": ["aa999de5d9a3"],
    "trainer.strategies.strategy.Strategy.save_checkpoint": ["b7a5fcce9457"],
    "trainer.strategies.strategy.Strategy.setup_environment": ["eef6a9415874"],
    "trainer.strategies.strategy.Strategy.teardown": ["0489e3c9707b"],
    "trainer.strategies.strategy.Strategy.test_step": ["4a01abe13a51"],
    "trainer.strategies.strategy.Strategy.validation_step": ["90be782bf3c4"],
    "trainer.trainer.connectors.signal_connector._SignalConnector._sigterm_notifier_fn": [
        "5f73424dfc7e"
    ],
}
