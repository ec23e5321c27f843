"""Counts what a step of each published training computes, moves and sends, as a plan counts it.

    python scripts/step_times/count.py      # writes scripts/step_times/counts.json; a few minutes

Each model is built from its configuration on a dry card, which has sizes and no values, with one
layer and with three: all that is counted grows by the same amount with each layer. What several
cards send follows from the strategy, see `sent_bytes`.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]

os.environ |= {
    "LIGHTNING_GAUDI_SIMULATE": "1",
    "LIGHTNING_GAUDI_SIMULATE_DRY": "1",
    "LIGHTNING_GAUDI_SIMULATE_RULES": "off",
}

import torch
import transformers

from runs import MODELS, Run, read_runs
from lightning_gaudi.tools.plan.work import Work

Counts = dict[str, float]


def count_training(run: Run) -> Counts:
    """Returns what one batch of a run takes of a card: forward, backward, the optimizer's step.

    Returns:
        `flops` and `moved_bytes` of forward and backward; `step_bytes`, which the optimizer moves;
        `weights` and `trained`, the numbers of each; `products`, the operators that multiply.
    """
    few, more = (_counted(run, layers) for layers in (1, 3))
    num_layers = MODELS[run.model].layers
    return {name: few[name] + (more[name] - few[name]) / 2 * (num_layers - 1) for name in few}


def _counted(run: Run, layers: int) -> Counts:
    model = _model(run, layers)
    trained = [each for each in model.parameters() if each.requires_grad]
    batch = _batch(run)
    cast = torch.autocast("hpu", torch.bfloat16) if run.is_autocast else nullcontext()
    work = Work(model.parameters())
    counts: Counts = {}
    for is_counted in (False, True):  # the first may set up what stays
        model.zero_grad()
        if is_counted:
            work.start()
        with cast:
            loss = model(**batch).loss
        loss.backward()
        if is_counted:
            work.stop()
            counts = {"flops": work.num_flops, "moved_bytes": work.moved_bytes}
    num_weights = sum(each.numel() for each in model.parameters())
    num_trained = sum(each.numel() for each in trained)
    return {**counts, "weights": num_weights, "trained": num_trained}


def _model(run: Run, layers: int) -> Any:
    known = MODELS[run.model]
    settings = {**known.settings, known.layers_name: layers}
    config = transformers.AutoConfig.for_model(known.kind, **settings)
    config._attn_implementation = "sdpa" if run.is_flash else "eager"
    config.use_cache = False
    kind = getattr(transformers, f"AutoModelFor{run.head}")
    with torch.device("hpu"):
        torch.set_default_dtype(torch.float32 if run.is_autocast else torch.bfloat16)
        try:
            model = kind.from_config(config)
        finally:
            torch.set_default_dtype(torch.float32)
    model.train()
    if run.adapter:
        model = _with_adapters(model, run)
    if run.is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if run.adapter:
            model.enable_input_require_grads()
    return model


def _with_adapters(model: Any, run: Run) -> Any:
    import peft

    more: dict[str, Any] = {"target_modules": run.targets.split(), "task_type": "CAUSAL_LM"}
    if run.adapter == "ADALORA":
        more |= {"init_r": run.rank, "target_r": 4, "total_step": 1000}
    elif run.rank:
        more["r"] = run.rank
    if run.adapter == "IA3":
        more["feedforward_modules"] = []
    kind = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType[run.adapter]]
    return peft.get_peft_model(model, kind(**more))


def _batch(run: Run) -> dict[str, torch.Tensor]:
    size, length = run.batch, run.length
    if run.head == "ImageClassification":
        pixels = torch.zeros(size, 3, 224, 224, device="hpu")
        return {"pixel_values": pixels, "labels": torch.zeros(size, dtype=torch.long, device="hpu")}
    ids = torch.zeros(size, length, dtype=torch.long, device="hpu")
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if run.head == "QuestionAnswering":
        ends = torch.zeros(size, dtype=torch.long, device="hpu")
        return {**found, "start_positions": ends, "end_positions": ends}
    of_tokens = run.head in ("CausalLM", "MaskedLM")
    return {**found, "labels": ids if of_tokens else ids[:, 0].contiguous()}


def main() -> None:
    """Counts all runs and writes the file."""
    known: dict[str, Counts] = {}
    for run in read_runs():
        if run.key not in known:
            known[run.key] = count_training(run)
            print(run.key, {k: f"{v:.4g}" for k, v in known[run.key].items()}, flush=True)
    text = json.dumps(known, indent=1, sort_keys=True)
    (FOLDER / "counts.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
