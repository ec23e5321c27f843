"""All targets, and the readers that need none."""

from __future__ import annotations

from . import (  # noqa: F401
    targets_checkpoints,
    targets_models,
    targets_recipes,
    targets_settings,
    targets_tools,
)
from .target import TARGETS

__all__ = ["EXEMPT", "TARGETS"]

_OWN_PIPE = "it comes through a pipe or a file of this process's own, which nobody else can open"
_SYNC = "it opens a file or a folder to bring it to disk, and reads nothing"
_OURS = "it reads a file that this package is installed with: whoever can change it can change code"
_MAKES = "it makes text of what this process holds, and reads nothing of others"
_LOCKS = "it opens a folder to lock it, and reads nothing"
_KERNEL = "the kernel writes it, in one form"
_SHOWN = "any bytes become a text that is cut and escaped"
_MEMORY = "it looks at memory that this process holds"

EXEMPT = {
    "lightning_gaudi._core.processes.memory_limit:_read": _KERNEL,
    "lightning_gaudi.distributed.cluster:_ancestor": _KERNEL,
    "lightning_gaudi.tools.doctor.memory:_limit_of_pages": _KERNEL,
    "lightning_gaudi.distributed.elastic_rendezvous:claim_rank": _SHOWN,
    "lightning_gaudi._core.processes.farewell:Farewell._get": _SHOWN,
    "lightning_gaudi._core.processes.farewell:Farewell._listen": _SHOWN,
    "lightning_gaudi._core.processes.farewell:_shown": _SHOWN,
    "lightning_gaudi._core.processes.farewell:_Neighbours._read_new": _SHOWN,
    "lightning_gaudi.reliability.cards:CardQuestion._read_all": _SHOWN,
    "lightning_gaudi.strategies.signals:InterruptWatch._run": _OWN_PIPE,
    "lightning_gaudi.untrusted:_may_be_root": _KERNEL,
    "lightning_gaudi._core.processes:status": _KERNEL,
    "lightning_gaudi.untrusted:_escaped": _MAKES,
    "lightning_gaudi.untrusted:parse_json": "who calls it is a target",
    "lightning_gaudi.untrusted:read_integer": "who calls it is a target",
    "lightning_gaudi._core.workers.shared_memory:Memory._copy": _MEMORY,
    "lightning_gaudi._core.workers.shared_memory:_reduce_mapped": _MEMORY,
    "lightning_gaudi._core.workers.shared_memory:_storage": _MEMORY,
    "lightning_gaudi._core.workers.pickling:loads": _OWN_PIPE,
    "lightning_gaudi._core.workers.server:_import_new": _OWN_PIPE,
    "lightning_gaudi._core.workers.start:_Start._launch": _OWN_PIPE,
    "lightning_gaudi._core.workers.start:_remove_left": "any bytes are searched for a path",
    "lightning_gaudi.checkpoint.folders:sync": _SYNC,
    "lightning_gaudi.checkpoint.leftovers:_lock_domain": _KERNEL,
    "lightning_gaudi.checkpoint.stored_shards:_made": _LOCKS,
    "lightning_gaudi.checkpoint.stored_shards:_remove_unless_held": _LOCKS,
    "lightning_gaudi.deepspeed.checkpoint.save:_copy_tools": "DeepSpeed's tools, as installed",
    "lightning_gaudi.checkpoint.restricted:_OwnUnpickler.__init__": "bytes that this process wrote",
    "lightning_gaudi.checkpoint.snapshot:Snapshot.state": _MEMORY,
    "lightning_gaudi.tools.command_line.catalog:read_recipe": _OURS,
    "lightning_gaudi.tools.command_line:main": "the null device",
    "lightning_gaudi.deepspeed.ops.build:_build": _SYNC,
    "lightning_gaudi.deepspeed.ops.build:_describe": "DeepSpeed's sources, as installed",
    "lightning_gaudi.deepspeed.ops.build:_refuse_to_fail_again": "the first line of a log, escaped",
    "lightning_gaudi.deepspeed.strategy:DeepSpeedMixin._load_config": "deepspeed.config has it",
    "lightning_gaudi.tools.doctor.files:_locks": "it opens a file that it has just made",
    "lightning_gaudi.tools.doctor.files:_replaces": "it reads a word that it has just written",
    "lightning_gaudi.tools.doctor.wire_format:cut": _MAKES,
    "lightning_gaudi.tools.plan.model_changes:_unreserved": _MEMORY,
    "lightning_gaudi.tools.plan.module_program:main": _OWN_PIPE,
    "lightning_gaudi.tools.plan.plan:_free_bytes": _KERNEL,
    "lightning_gaudi.profiler.hpu:HPUProfiler._begin_step": _SYNC,
    "lightning_gaudi.profiler.trace:_export": "profiler.trace has what it leaves",
    "lightning_gaudi.profiler.trace:_save": "profiler.trace has what it leaves",
    "lightning_gaudi.reliability.stacks:busy_s": _KERNEL,
    "lightning_gaudi.reliability.heartbeat_store:Board.opened": _MEMORY,
    "lightning_gaudi.reliability.stacks:Question.__init__": "it opens what the next reads",
    "lightning_gaudi.reliability.watchdog:_board_of": "it opens what another process reads",
    "lightning_gaudi.reliability.watched:WatchedRank.__init__": "the heartbeat store has it",
    "lightning_gaudi.reliability.watched:WatchedRank.beat": "the heartbeat store has it",
    "lightning_gaudi.reliability.watcher:main": _OWN_PIPE,
    "lightning_gaudi.simulator.build:_key": _OURS,
    "lightning_gaudi.simulator.build:_sync": _SYNC,
    "lightning_gaudi.simulator.toolchain:find_torch": "torch's own sources, as installed",
    "lightning_gaudi.simulator.vendor_names.document:parse": _OWN_PIPE,
    "lightning_gaudi.simulator.vendor_names.found:_parameters": _OURS,
    "lightning_gaudi.simulator.vendor_names:_read": _OURS,
    "lightning_gaudi.strategies.resuming:_choose": "strategies.jobs has it",
    "recipes.bert_pretraining.cache:_make": _MAKES,
    "recipes.bert_pretraining.cache:_sync": _SYNC,
    "recipes.bert_pretraining.fill_mask:candidates": _MAKES,
    "recipes.bert_pretraining.prepared:_write_tokens": "it opens a folder that it has just written",
    "recipes.bert_pretraining.sequences:sentence_pairs": _MEMORY,
    "recipes.bert_pretraining.several:open_corpora": "recipes.corpora has it",
    "recipes.bert_pretraining.tokenized:write_tokens": _MAKES,
    "recipes.common.export:_name_for_transformers_4": "it reads what it has just written",
    "recipes.common.hub:load_hub_dataset": "datasets reads it, and is asked by name alone",
    "recipes.llm_finetuning.embedded:_names": "Python's own sources, as installed",
    "recipes.llm_finetuning.module:LlmFinetuning._print": "it reads what it has just written",
    "recipes.llm_finetuning.module:LlmFinetuning.on_predict_epoch_end": _MAKES,
    "recipes.text_generation.module:TextGeneration._print": "it reads what it has just written",
    "recipes.text_generation.module:TextGeneration.on_predict_epoch_end": _MAKES,
    "recipes.text_generation.prompts:beginnings": _MAKES,
    "recipes.common.prompts:encode_prompts": _MAKES,
    "recipes.common.writing:continuation": _MAKES,
    "recipes.text_to_image.painting:Painter._decode": "a model decodes pictures of this process",
    "recipes.text_to_image.painting:Painter.check_lengths": _MAKES,
    "recipes.text_to_image.scratch:make_tokenizer": _MEMORY,
}
"""Readers without a target, and why."""
