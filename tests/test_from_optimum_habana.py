"""docs/migration/from-optimum-habana.md accounts for each class and argument, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.forked import fork_python

PAGE = (Path(__file__).parents[1] / "docs" / "migration" / "from-optimum-habana.md").read_text()
# Source: optimum-habana 1.21.0.dev0, transformers/training_args.py, without what TrainingArguments
# has too; transformers/gaudi_configuration.py; the public classes of its packages.
_ARGUMENTS = """
use_habana gaudi_config_name use_lazy_mode use_hpu_graphs_for_inference
use_hpu_graphs_for_training use_hpu_graphs use_compiled_autograd compile_from_sec_iteration
compile_dynamic use_zero3_leaf_promotion cache_size_limit use_regional_compilation
inline_inbuilt_nn_modules allow_unspec_int_on_nn_module disable_tensor_cache_hpu_graphs
max_hpu_graphs distribution_strategy context_parallel_size minimize_memory
throughput_warmup_steps adjust_throughput pipelining_fwd_bwd ignore_eos non_blocking_data_copy
profiling_warmup_steps profiling_steps profiling_warmup_steps_eval profiling_steps_eval
profiling_record_shapes profiling_with_stack attn_implementation flash_attention_recompute
flash_attention_fast_softmax flash_attention_causal_mask flash_attention_fp8 sdp_on_bf16 fp8
use_fused_adam use_fused_clip_norm use_torch_autocast autocast_bf16_ops autocast_fp32_ops
use_dynamic_shapes
"""
_CLASSES = """
GaudiTrainer GaudiSeq2SeqTrainer GaudiTrainingArguments GaudiSeq2SeqTrainingArguments
GaudiConfig GaudiAccelerator GaudiSFTTrainer GaudiSFTConfig GaudiDPOTrainer GaudiDPOConfig
GaudiGRPOTrainer GaudiGRPOConfig GaudiRewardTrainer GaudiPPOTrainer GaudiPPOConfig
GaudiDDPOTrainer SentenceTransformerGaudiTrainer SentenceTransformerGaudiTrainingArguments
GaudiStableDiffusionPipeline GaudiDDIMScheduler GaudiGenerationConfig GaudiGenerationMixin
adapt_transformers_to_gaudi DistributedRunner gaudi_spawn
"""


def test_every_class_and_argument_is_accounted_for() -> None:
    expected = {*_ARGUMENTS.split(), *_CLASSES.split()}
    cells = " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    words = set(re.findall(r"\w+", cells))
    assert expected <= words, expected - words


@pytest.mark.slow
def test_the_code_runs_on_a_card(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    check = "print(type(trainer.optimizer.optimizer).__name__, trainer.state.global_step)\n"
    found = fork_python("\n".join([*blocks, check]), cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"})
    lines = found.stdout.splitlines()
    assert "hpu:0" in lines
    assert lines[-1] == "FusedAdamW 2"
