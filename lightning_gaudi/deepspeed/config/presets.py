"""Published settings of DeepSpeed with which models have been trained on Gaudi.

Settings of a run, such as batch sizes, optimizer and schedule, are left out. A preset can be passed
by its name, `HPUDeepSpeedStrategy(config="bert-1.5b")`, or changed first:
`{**PRESETS["bert-1.5b"], "gradient_clipping": 0.5}`. All need `precision="bf16-mixed"`.
"""

from __future__ import annotations

from typing import Any

_BF16 = {"enabled": True}

PRESETS: dict[str, dict[str, Any]] = {
    # Trained with 12288 samples a step, 32 on a card at a time.
    # Source: HabanaAI/Model-References, deepspeed-bert, deepspeed_config_bert_1.5b.json.
    "bert-1.5b": {
        "bf16": _BF16,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1, "contiguous_gradients": False},
        "zero_allow_untested_optimizer": True,
    },
    # Source: HabanaAI/Model-References, deepspeed-bert, deepspeed_config_bert_5b_lans.json.
    "bert-5b": {
        "bf16": _BF16,
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": False,
            "reduce_scatter": False,
            "contiguous_gradients": False,
            "reduce_bucket_size": 150_000_000,
        },
        "zero_allow_untested_optimizer": True,
    },
    # Source: huggingface/optimum-habana, notebooks/configs/deepspeed_zero_2.json.
    "gpt2-xl": {
        "bf16": _BF16,
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": False,
            "reduce_scatter": False,
            "contiguous_gradients": False,
        },
        "zero_allow_untested_optimizer": True,
    },
    # On the first generation of cards: few parameters are whole at a time.
    # Source: huggingface/optimum-habana, tests/configs/deepspeed_zero_3_gaudi1.json.
    "bloom-7b-gaudi1": {
        "bf16": _BF16,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 100_000,
            "stage3_max_live_parameters": 100_000,
            "stage3_max_reuse_distance": 100_000,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "zero_allow_untested_optimizer": True,
    },
    # Source: huggingface/optimum-habana, summarization, ds_flan_t5_z3_config_bf16.json.
    "flan-t5-xxl": {
        "bf16": _BF16,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1_000_000_000,
            "reduce_bucket_size": 1_666_777,
            "reduce_scatter": False,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_gather_16bit_weights_on_model_save": False,
        },
        "zero_allow_untested_optimizer": True,
    },
}
"""Settings by the name of the model."""
