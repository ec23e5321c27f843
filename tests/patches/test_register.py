"""The register of patches is all that is patched, and what is patched is what we know."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lightning_gaudi
from lightning_gaudi._core import mirror
from lightning_gaudi._patches.document import every_patch, markdown
from lightning_gaudi._patches.register import BY_NAME, REGISTER
from tests.helpers.forked import fork_python

PACKAGE = Path(lightning_gaudi.__file__).parent

# Source hashes of the functions of Lightning that are wrapped, in 2.5.6 to 2.6.6, oldest first.
SOURCES = {
    "{trainer}.trainer.connectors.accelerator_connector:_AcceleratorConnector.": {
        "_check_config_and_set_final_flags": ["947302743392"],
        "_choose_auto_accelerator": ["1b8c7af74bc2"],
        "_set_parallel_devices_and_init_accelerator": ["e3b768e3b375"],
        "_choose_and_init_cluster_environment": ["c6ae6d947245"],
        "_choose_strategy": ["81e89d036042"],
        "_check_strategy_and_fallback": ["26b169deb2f4"],
        "_check_and_init_precision": ["7e496b7b2ec1", "09dff7904c62"],
    },
    "{fabric}.connector:_Connector.": {
        "_check_config_and_set_final_flags": ["2ba96a581fcb"],
        "_choose_auto_accelerator": ["b3271d822696"],
        "_set_parallel_devices_and_init_accelerator": ["172be9304722"],
        "_choose_and_init_cluster_environment": ["c6ae6d947245"],
        "_choose_strategy": ["a4f082ff16cf"],
        "_check_strategy_and_fallback": ["6dce32242bd8"],
        "_check_and_init_precision": ["d0c28a357381"],
    },
    "{trainer}.trainer.connectors.checkpoint_connector:_CheckpointConnector.": {
        "_restore_modules_and_callbacks": ["df5f067c0573", "8a1e9a756740"],
    },
    "{trainer}.trainer.trainer:Trainer.": {"save_checkpoint": ["a8379985281c", "9230d5981224"]},
    "{fabric}.cli:": {"_get_num_processes": ["6b2ad2ac303e"]},
}
FUNCTIONS = [
    (f"{place}{name}", known) for place, names in SOURCES.items() for name, known in names.items()
]
FAMILIES = pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)


def format_target(text: str, family: mirror.Family) -> str:
    return text.format(trainer=family.trainer, fabric=family.fabric)


def resolve(target: str) -> Any:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _source_hash(function: Any) -> str:
    source = inspect.getsource(inspect.unwrap(function))
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        source = source.replace(name, "")
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@FAMILIES
@pytest.mark.parametrize(("target", "known"), FUNCTIONS, ids=[target for target, _ in FUNCTIONS])
def test_a_wrapped_function_is_one_we_know(
    target: str, known: list[str], family: mirror.Family
) -> None:
    """On a mismatch, read what Lightning changed, then add the hash."""
    assert any(target in patch.targets for patch in REGISTER)
    assert _source_hash(resolve(format_target(target, family))) in known


def test_every_function_that_is_wrapped_has_its_hash() -> None:
    """But for those that are called and looked at no further."""
    plain = {
        "{trainer}.trainer.setup:_log_device_info",
        "{trainer}.trainer.setup:_init_profiler",
        "{trainer}.trainer.connectors.checkpoint_connector:_CheckpointConnector._parse_ckpt_path",
        "{trainer}.trainer.connectors.checkpoint_connector:_CheckpointConnector.resume_start",
        "{fabric}.utilities.throughput:get_available_flops",
        "{fabric}.utilities.throughput:_plugin_to_compute_dtype",
        "{trainer}.callbacks.throughput_monitor:get_available_flops",
        "{trainer}.callbacks.throughput_monitor:_plugin_to_compute_dtype",
        "{fabric}.plugins.io.torch_io:pl_load",
        "{fabric}.plugins.precision.bitsandbytes:BitsandbytesPrecision.__init__",
        "{trainer}.cli:LightningArgumentParser.parse_args",
        "{trainer}.cli:LightningArgumentParser.error",
        "{trainer}.core.saving:pl_load",
        "{trainer}.utilities.memory:is_oom_error",
        "{trainer}.tuner.lr_finder:_try_loop_run",
        "{trainer}.tuner.batch_size_scaling:_try_loop_run",
        "{trainer}.core.saving:_load_state",
        "{trainer}.utilities.deepspeed:convert_zero_checkpoint_to_fp32_state_dict",
    }
    wrapped = {
        target
        for patch in REGISTER
        if patch.library == "lightning" and patch.trigger
        for target in patch.targets
        if inspect.isfunction(resolve(format_target(target, mirror.LIGHTNING)))
    }
    assert wrapped == plain | {target for target, _ in FUNCTIONS}


SNAPSHOT = """
import importlib, inspect, json, sys
for name in {modules!r}:
    importlib.import_module(name)
ROOTS = ("torch", "lightning", "lightning_fabric", "pytorch_lightning")
kept = []  # so that no address is used again

def state():
    found = {{}}
    for name, module in list(sys.modules.items()):
        if module is None or name != getattr(module, "__name__", ""):
            continue  # Lightning enters its graveyard under the old names of modules, too
        if name.split(".")[0] not in ROOTS:
            continue
        for attribute, value in list(vars(module).items()):
            kept.append(value)
            found[f"{{name}}:{{attribute}}"] = id(value)
            if inspect.isclass(value) and value.__module__ == name and "graveyard" not in name:
                for method, function in list(vars(value).items()):
                    kept.append(function)
                    found[f"{{name}}:{{attribute}}.{{method}}"] = id(function)
            elif isinstance(value, dict) and type(value) is not dict:
                found[f"{{name}}:{{attribute}}"] = sorted(map(str, value))
    return found

before = state()
import lightning_gaudi
after = state()
changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
print(json.dumps(sorted(changed)))
"""
REGISTRIES = {
    "StrategyRegistry": "strategies",
    "AcceleratorRegistry": "accelerators",
    "STRATEGY_REGISTRY": "strategies",
    "ACCELERATOR_REGISTRY": "accelerators",
}


@pytest.mark.slow
def test_what_changes_when_we_are_imported_is_what_the_register_says() -> None:
    """Nothing else in Lightning and torch is another object than before."""
    patches = [
        patch
        for patch in REGISTER
        if patch.library in ("lightning", "torch")
        and patch.trigger
        and not patch.trigger.startswith("habana_frameworks")
    ]
    pairs = [(patch, family) for patch in patches for family in mirror.FAMILIES]
    result = fork_python(
        SNAPSHOT.format(modules=[format_target(patch.trigger, family) for patch, family in pairs]),
        env={"LIGHTNING_GAUDI_AUTOLOAD": "0", "LIGHTNING_GAUDI_SIMULATE": None},
    )
    targets = {format_target(target, family) for patch, family in pairs for target in patch.targets}
    # It is a command's option, which is neither in a module nor in a class.
    targets -= {f"{family.fabric}.cli:_run.params" for family in mirror.FAMILIES}
    # Lightning has done it itself since 2.6.6.
    targets -= {
        f"{family.trainer}.core.saving:_load_state"
        for family in mirror.FAMILIES
        if hasattr(
            importlib.import_module(f"{family.trainer}.core.saving"), "_ALLOWED_INSTANTIATORS"
        )
    }
    # How a module finds what it has no more (PEP 562).
    stubs = {
        format_target(t, family) for t in BY_NAME["old-names"].targets for family in mirror.FAMILIES
    }
    targets |= {f"{stub.partition(':')[0]}:__getattr__" for stub in stubs}
    changed = {name for name in json.loads(result.stdout) if not _is_import_of_registry(name)}
    assert changed == targets


def _is_import_of_registry(name: str) -> bool:
    """Whether it is one of Lightning's registries where another module has imported it."""
    module, _, attribute = name.partition(":")
    return attribute in REGISTRIES and not module.endswith(f".{REGISTRIES[attribute]}")


def _foreign_assignments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where something is set that belongs neither to `self` nor to the function."""
    for node in ast.walk(tree):
        is_set = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        if isinstance(node, ast.Attribute) and is_set:
            if ast.unparse(node.value) not in ("self", "cls"):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Subscript) and is_set:
            owner = ast.unparse(node.value)
            if owner in ("sys.modules",) or ".__dict__" in owner or owner.startswith("vars("):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            yield node.lineno, ast.unparse(node)


OWN = {
    # What FSDP2 itself makes of its weights after the first gathering, and where they came from.
    "_patches/fsdp2.py": {
        "each._sharded_param_data",
        "each._unsharded_param",
        "each.all_gather_outputs",
        "each.sharded_param._local_tensor",
        "fsdp_params[0].__dict__[_WHOLE]",
    },
    # What ZeRO itself sets where it copies gradients.
    "deepspeed/engine/copies.py": {
        "bucket.elements",
        "bucket.index",
        "gradient.data",
        "optimizer.grads_in_partition",
        "optimizer.grads_in_partition_offset",
        "weight.grad",
    },
    # Objects of our own.
    "_core/mirror.py": {"setattr(sys.modules[package], name, found)", "spec.loader"},
    "_core/processes/__init__.py": {"self._ranks.is_quiet"},
    # As torch marks its own functions whose result a traced program may keep.
    "attention/kernel.py": {"_card_without_kernel._dynamo_marked_constant"},
    # Of an error that is raised on: the address that it lacks.
    "checkpoint/remote.py": {"error.args", "error.strerror"},
    "checkpoint/stored_shards.py": {"error.args", "error.filename"},
    # The state of an object that this pickle has made.
    "checkpoint/unpickler.py": {"setattr(target, name, value)"},
    # A class that is made there, and a bias, as its layer casts it later.
    "fabric/precision/bitsandbytes.py": {
        "Quantized.__name__",
        "Quantized.__qualname__",
        "layer.bias.data",
    },
    "distributed/process_group.py": {"meeting.address", "meeting.listener"},
    "reliability/heartbeat_store.py": {"board.limits"},
    "reliability/links.py": {"channel.host"},
    "reliability/watchdog.py": {
        "_current.board.limits",
        "self._watcher.returncode",
        "self.board.state",
    },
    "reliability/cards.py": {"each.returncode"},
    "reliability/watcher.py": {"rank.board.order", "self._ranks[0].board.news"},
    "tools/verify/hosts.py": {"found.seconds"},
    # Of models that it makes for its own steps and programs.
    "tools/verify/parts/steps.py": {
        "config.decoder_start_token_id",
        "setattr(block.self_attn, name, _LowRank(layer, 8).to(torch.bfloat16))",
    },
    "tools/verify/process.py": {
        "self.outcome.has_hung",
        "self.outcome.said",
        "self.outcome.statuses",
    },
    "tools/verify/programs/graphs.py": {"self.__dict__['use']", "setattr(net, 'scale', 3.0)"},
    "tools/verify/run.py": {"found.seconds", "self._found.identity", "self._found.memory"},
    "attention/bloom.py": {"setattr(alibi, _MEMO, (attention_mask, made_for, made))"},
    "callbacks/graphs.py": {
        "report.cpu_fallbacks",
        "report.graph_compilations",
        "report.host_syncs",
        "report.launches",
        "self.report.num_log_steps",
        "self.report.num_steps",
        "self.report.recompilations",
    },
    "callbacks/throughput.py": {
        "report.num_flops",
        "report.num_samples",
        "report.num_slots",
        "report.num_steps",
        "report.num_tokens",
        "report.seconds",
        "self.report.num_flops",
        "self.report.peak_flops",
    },
    "callbacks/settings.py": {"setattr(strategy, self.attribute, value)"},
    "tools/plan/host.py": {"full.of_rank"},
    # Of a model that a rehearsal has made of its configuration.
    "tools/plan/model_changes.py": {
        "layer.quant_state",
        "layer.weight",
        "model.generation_config",
        "second.dtype",
    },
    "_core/memory/owners.py": {
        "found.buckets",
        "found.gathered",
        "found.gradients",
        "found.own",
    },
    # Of a process that rehearses, and ends then.
    "tools/plan/dry_run.py": {"group._check_cards"},
    "tools/plan/trainer.py": {
        "self._trainer.__class__",
        "loader.num_workers",
        "self._trainer.strategy.teardown",
        "strategy.setup",
    },
    "tools/plan/loop.py": {"loader.num_workers", "sys.excepthook"},
    "distributed/device_mesh.py": {"plugin.scaler.spans_ranks"},
    "tools/doctor/hosts.py": {"answers.said", "answers.status"},
    "data/shape_report.py": {
        "report.num_batches",
        "report.num_batches_total",
        "twin.__dict__",
        "twin.__dict__[name]",
    },
    "data/loader.py": {
        "batch_sampler._counts_itself",
        "sampler.progress.position",
        "self.__dict__['sampler']",
    },
    "data/sampler.py": {"self.progress.position"},
    "deepspeed/config/validation.py": {"found.asked"},
    "inference/latency.py": {
        "self._current.first_token_seconds",
        "self._current.num_steps",
        "self._current.num_tokens",
        "self._current.seconds",
    },
    # Tensors, which are there to be written.
    "_core/precision/gradient_clipping.py": {"parameter.grad"},
    "deepspeed/engine/lifecycle.py": {"tensor.data"},
    # Settings, which Lightning's methods, or a user, set just so.
    "callbacks/exit_checkpoint.py": {
        "checkpoint.save_last",
        "exception.code",
        "trainer._signal_connector.received_sigterm",
    },
    "compilation/model.py": {
        "config.optimize_ddp",
        "config.skip_nnmodule_hook_guards",
        "setattr(config, name, max(limit, getattr(config, name)))",
    },
    "distributed/strategy.py": {"loader.multiprocessing_context"},
    "_patches/connector.py": {
        "setattr(connector, spec.precision_plugin, plugin)",
        "connector._devices_flag",
        "connector._num_nodes_flag",
        "connector._strategy_flag",
    },
    "_patches/deepspeed.py": {"torch.utils.deterministic.fill_uninitialized_memory"},
    "strategies/base.py": {"self._checkpoint_io.checkpoint_io"},
    "strategies/deepspeed.py": {"self.precision_plugin.gradient_clipping"},
    "strategies/fsdp.py": {"plugin.is_sharded", "plugin.model"},
    "strategies/signals.py": {
        # A loader that could not start is none: Lightning asks it for its length as it ends.
        "fetcher._combined_loader",
        "exception.code",
        "found.save_last",
        "self._trainer._signal_connector.received_sigterm",
    },
    # Workers that stay have the samples of another place: torch makes them anew.
    "data/resumable.py": {"loader._iterator"},
    # A mark on a gradient, and what a hook of the user's has set in the process that saved.
    "strategies/optimizer_state.py": {"setattr(grad, _TAKEN, grad._version)"},
    "strategies/fit_changes.py": {"setattr(owner, attribute, value)"},
    # A wrapper that was made there, and by which its strategy finds the weights it averages.
    "distributed/ddp.py": {"setattr(wrapped, _UNFROZEN, self)", "weight.grad"},
    # A note to the compiler on a function of our own.
    "attention/switch.py": {"_warn_once._dynamo_marked_constant"},
    # A user's model while it trains: compiled in place, and given back as it was.
    "compilation/method.py": {"self.module.__dict__[self._name]"},
    "strategies/compiled_steps.py": {
        "setattr(module, name, untraced)",
        "setattr(self._module, name, own)",
    },
    # A process of ours, in which the vendor's package must not be imported for the user's modules.
    "_core/workers/server.py": {"sys.modules['habana_frameworks']"},
    # A worker, in which torch's loop takes no other handler of its signals.
    "_core/workers/start.py": {
        "signal_handling._set_worker_signal_handlers",
        "torch_worker.ExceptionWrapper",
        "wrapped.exc_msg",
    },
    # A worker's modules, changed as its program has changed them; and its process, before it runs.
    "_core/workers/program_state.py": {
        "setattr(target, attribute, function)",
        "setattr(owner, attribute, value)",
    },
    "_core/workers/pickling.py": {"bare._args", "bare._kwargs", "process._args", "process._kwargs"},
    # A cache and a mode that were made there.
    "inference/caches.py": {
        "layer.cumulative_length",
        "layer.device",
        "layer.keys",
        "layer.values",
        "mode.may_turn_const",
    },
    # A user's model, which is converted because they asked for it.
    "inference/fp8.py": {
        "setattr(model.get_submodule(parent), child, Fp8Linear(layer, largest[name], limit))",
    },
    # A user's model, which is cut up because they asked for it; and a configuration's copy.
    "inference/tensor_parallel.py": {
        "attention.embed_dim",
        "attention.num_heads",
        "attention.split_size",
        "base.build_alibi_tensor",
        "block.self_attention.num_heads",
        "config.num_key_value_heads",
        "setattr(model.get_submodule(owner), attribute, layer)",
    },
    # The `forward` of a user's layers while they train in fp8, and what their engines count.
    "_core/precision/fp8.py": {
        "Fp8Forward.in_checkpoint",
        "engine.run_cnt",
        "engine.training",
        "self.engine.training",
        "self.layer.forward",
    },
    # How much memory a plugin saves, with the strategy that was chosen.
    "fabric/precision/fp8.py": {"plugin.minimize_memory"},
    # A note on a user's model.
    "distributed/fsdp.py": {"vars(model)[_ROOT]"},
    # A copy of a user's loader; and what two classes of ours tell each other.
    "data/position.py": {
        "sampler.seed",
        "self.start.drawn",
        "self.taken.is_over",
        "self.taken.number",
        "watched.__dict__[index]",
        "watched.collate_fn",
        "watched.worker_init_fn",
    },
    "data/position_iterators.py": {"self._sampler.num_passed"},
    # What Lightning itself sets as a fit goes on.
    "strategies/exact_resume.py": {
        "loop._restarting",
        "loop.epoch_loop._skip_next_val",
        "loop.epoch_loop.restarting",
        "parameter.grad",
    },
    "strategies/loop_position.py": {"epochs.completed", "epochs.processed", "loop.restarting"},
}
"""What is set and is no patch, by file."""


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        # The simulator is a device and the vendor's package: it sets in torch what those set.
        if path.relative_to(PACKAGE).parts[0] != "simulator"
    ],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_nothing_is_patched_but_by_the_register(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    if name in ("_patches/apply.py", "_patches/on_import.py"):
        return
    found = list(_foreign_assignments(ast.parse(path.read_text())))
    strange = [f"{name}:{line}: {text}" for line, text in found if text not in OWN.get(name, set())]
    assert not strange, "use _patches.apply, with an entry of the register"
    assert OWN.get(name, set()) <= {text for _, text in found}


def test_the_document_is_the_registers() -> None:
    document = (PACKAGE.parent / "docs" / "reference" / "patches.md").read_text()
    assert document == markdown(), "run `python -m lightning_gaudi._patches.document`"
    assert [patch.name for patch in every_patch() if f"### {patch.name}\n" not in document] == []
