"""Counts what steps compute and move: counts.csv, decoders.csv and references.csv.

    python -m scripts.step_times.count

There is no program of a published run that could be rehearsed here. So transformers makes its model
from the configuration, on a dry card as in a plan, and the model takes a forward, a backward and a
step of the vendor's fused AdamW, which `lightning_gaudi.tools.plan.work.Work` counts. Collectives
are not rehearsed: `sent_bytes` computes their size from the strategy, as a plan does. The reference
steps of `lightning-gaudi verify` are counted as they are.
"""

from __future__ import annotations

import csv
import gc
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

from lightning_gaudi.tools.plan.request import Counted
from scripts.step_times.models import DECODERS, MODELS
from scripts.step_times.rule import HERE, read

Row = Mapping[str, str]
COUNTS = (
    "flops",
    "float8_flops",
    "moved_bytes",
    "fused_bytes",
    "product_bytes",
    "weight_bytes",
    "num_trained",
    "num_weights",
    "num_operators",
    "num_attentions",
    "num_passes",
)
SETTINGS = (
    "model", "task", "trained", "strategy", "cards", "batch", "accumulation", "length",
    "checkpointing", "precision", "attention",
)  # fmt: skip
_HEADS = {
    "classification": "SequenceClassification",
    "question answering": "QuestionAnswering",
    "masked language modeling": "MaskedLM",
    "image classification": "ImageClassification",
}


def is_counted(row: Row) -> bool:
    """Returns whether a run's settings are known well enough to count it."""
    is_known = row["model"] in MODELS and row["kind"] in (
        "text", "fp8", "encoder-decoder", "vision", "eager mode", "fsdp, compiled",
    )  # fmt: skip
    return is_known and row["strategy"] != "megatron"


def key_of(row: Row) -> tuple[str, ...]:
    """Returns the settings of a run that determine its counts."""
    return tuple(row[name] for name in SETTINGS)


def main() -> int:
    """Counts the runs that counts.csv does not have yet, in a process with a dry card."""
    if not os.environ.get("LIGHTNING_GAUDI_SIMULATE_DRY"):
        command = [sys.executable, "-m", "scripts.step_times.count"]
        return subprocess.run(command, env=_environment(), check=False).returncode
    from lightning_gaudi.simulator.memory import unlimited_memory

    with (HERE / "decoders.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", "weights", "layers"])
        table.writerows([model, *weights_of(model)] for model in DECODERS)
    unlimited_memory()
    with (HERE / "references.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", *REFERENCE_COUNTS])
        table.writerows([name, *count_reference(name).values()] for name in REFERENCES)
    path = HERE / "counts.csv"
    found = {key_of(row): row for row in read("counts")} if path.exists() else {}
    for row in [*read("training"), *read("registries")]:
        if not is_counted(row) or key_of(row) in found:
            continue
        counted = {name: str(value) for name, value in count(row).items()}
        found[key_of(row)] = {name: row[name] for name in SETTINGS} | counted
        print(*key_of(row), counted["flops"], flush=True)
        gc.collect()
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, (*SETTINGS, *COUNTS), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found.values())
    return 0


def _environment() -> dict[str, str]:
    from lightning_gaudi.simulator.settings import CARD, DRY, RULES, SIMULATE, path_with_stand_in

    return os.environ | {
        SIMULATE: "1", DRY: "1", RULES: "off", CARD: "gaudi2",
        "LIGHTNING_GAUDI_RELIABILITY": "off", "PYTHONPATH": path_with_stand_in(),

    }  # fmt: skip


def count(row: Row) -> dict[str, int]:
    """Counts a step of the optimizer on one card, on this process's dry card."""
    import torch

    from lightning_gaudi.tools.plan.work import Work

    model = make(row)
    trained = [each for each in model.parameters() if each.requires_grad]
    is_sharded = row["strategy"].startswith("zero")
    optimizer = None if is_sharded else _optimizer(trained)
    batch = _batch(row, model.config)
    is_autocast = row["precision"] == "autocast"
    cast = torch.autocast("hpu", torch.bfloat16) if is_autocast else nullcontext()
    for step in range(2):  # the second step is counted, since the first one makes the states
        if step:
            work = Work(model.parameters())
            work.start()
        with cast:
            loss = model(**batch).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        del loss
        if not step:
            gc.collect()
    work.stop()
    found = work.so_far()
    assert work.is_complete
    micro = int(row["accumulation"])
    weights = sum(each.numel() for each in trained)
    # A rank of ZeRO steps its part of the weights, which moves 30 bytes a weight: it reads the
    # gradient, reads and writes both moments and the master weight, and writes the weight.
    stepped = weights // int(row["cards"]) * 30 if is_sharded else 0
    return {
        "flops": found.flops * micro,
        "float8_flops": _float8_flops(row, found.flops) * micro,
        "moved_bytes": found.moved_bytes * micro + stepped,
        "fused_bytes": found.fused_bytes * micro + stepped,
        "product_bytes": found.product_bytes * micro,
        "weight_bytes": found.weight_bytes * micro,
        "num_trained": weights,
        "num_weights": sum(each.numel() for each in model.parameters()),
        "num_operators": found.num_operators * micro,
        "num_attentions": found.num_attentions * micro,
        "num_passes": found.num_passes * micro,
    }


_DTYPES = {"fp32": "float32", "fp8": "float8_e4m3fn"}
"""The dtype of most products, by the precision of a run; for other precisions it is bfloat16."""
REFERENCES = ("BERT-large", "LoRA", "decoding")
"""The steps of `lightning-gaudi verify` that resemble published runs."""
REFERENCE_COUNTS = (
    "flops",
    "fused_bytes",
    "product_bytes",
    "weight_bytes",
    "num_attentions",
    "num_cross_attentions",
    "num_passes",
)


def count_reference(name: str) -> dict[str, int]:
    """Counts a reference step, on this process's dry card."""
    import torch

    from lightning_gaudi.tools.plan.work import Work
    from lightning_gaudi.tools.verify.parts.steps import STEPS

    made = STEPS[name](torch.device("hpu"), False)
    made.step()  # the next step is counted, since this one makes the optimizer's states
    work = Work(made.model.parameters())
    work.start()
    made.step()
    work.stop()
    found = work.so_far()
    assert work.is_complete
    return {each: getattr(found, each) for each in REFERENCE_COUNTS}


def read_references() -> dict[str, Counted]:
    """Returns the counts of the reference steps, by name."""
    return {
        row["step"]: Counted(
            **{name: int(row[name]) for name in REFERENCE_COUNTS},
            flops_of={"bfloat16": int(row["flops"])},
            is_trained=row["step"] != "decoding",
        )
        for row in read("references")
    }


def _float8_flops(row: Row, flops: int) -> int:
    """Returns the products that the vendor's Linear of float8 has: all but those of attention."""
    return flops if row["precision"] == "fp8" else 0


def sent_bytes(row: Row, trained: int, weights: int) -> int:
    """Returns the bytes that a rank sends in a step of the optimizer, in a ring, as a plan does.

    Args:
        row: A run.
        trained: The number of weights that have gradients.
        weights: The number of all weights.
    """
    cards = int(row["cards"])
    share = (cards - 1) / cards
    size = 2 if row["precision"] != "autocast" and row["trained"] == "all" else 4
    strategy = row["strategy"]
    if cards == 1:
        return 0
    if strategy == "ddp":
        return int(2 * share * trained * size)
    micro = int(row["accumulation"])
    if strategy in ("zero1", "zero2"):
        # DeepSpeed reduces whole buckets on every rank, and gathers the weights that were stepped.
        # With ZeRO-2, which shards gradients, too, it reduces after each micro-batch.
        return int((2 * (micro if strategy == "zero2" else 1) + 1) * share * trained * 2)
    # ZeRO-3 gathers the weights for the forward and the backward of each micro-batch, and scatters
    # the gradients once in each.
    return int(share * 2 * micro * (2 * weights + trained))


def make(row: Row, device: str = "hpu") -> Any:
    """Returns a new model with the configuration of a run, on a device."""
    import torch
    import transformers

    kind, settings = MODELS[row["model"]]
    config = getattr(transformers, f"{kind}Config")(**settings)
    head = _HEADS.get(row["task"], "LMHeadModel" if kind == "GPT2" else "CausalLM")
    head = "ConditionalGeneration" if kind == "T5" else head
    config.use_cache = False
    config.decoder_start_token_id = 0  # of T5
    if head == "SequenceClassification":
        config.pad_token_id = 0
    config._attn_implementation = "sdpa" if row["attention"] == "fused" else "eager"
    dtype = torch.float32 if row["precision"] in ("autocast", "fp32") else torch.bfloat16
    torch.set_default_dtype(dtype)
    with torch.device(device):
        infix = "" if head == "LMHeadModel" else "For"
        model = getattr(transformers, f"{kind}{infix}{head}")(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if row["trained"].startswith("lora"):
        _add_lora(model, row["trained"].split(), device)
    if row["checkpointing"] == "yes":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _add_lora(model: Any, words: list[str], device: str) -> None:
    """Freezes a model, and adds LoRA matrices to its linear layers with the given names."""
    import torch
    from torch import nn

    rank, names = int(words[1][1:]), set(words[2:])
    model.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            with torch.device(device):
                self.a = nn.Linear(base.in_features, rank, bias=False)
                self.b = nn.Linear(rank, base.out_features, bias=False)
            self.dropout = nn.Dropout(0.05)

        def forward(self, inputs: Any) -> Any:
            low = self.a(self.dropout(inputs).to(self.a.weight.dtype))
            return self.base(inputs) + self.b(low).to(inputs.dtype)

    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, Lora(child))
    model.enable_input_require_grads()


def _optimizer(trained: list[Any]) -> Any:
    from lightning_gaudi._core import vendor

    return vendor.fused_adamw()(trained, lr=1e-4)


def _batch(row: Row, config: Any) -> dict[str, Any]:
    import torch

    batch, task, length = int(row["batch"]), row["task"], row["length"]
    labels = torch.zeros(batch, dtype=torch.long, device="hpu")
    if task == "image classification":
        size = (batch, 3, *map(int, length.split("x")))
        return {"pixel_values": torch.zeros(size, device="hpu"), "labels": labels}

    def ids(tokens: str) -> Any:
        return torch.zeros(batch, int(tokens), dtype=torch.long, device="hpu")

    if "+" in length:
        source, target = length.split("+")
        return {"input_ids": ids(source), "attention_mask": ids(source) + 1, "labels": ids(target)}
    found = {"input_ids": ids(length)}
    if config.model_type not in ("gpt2", "bloom"):
        found["attention_mask"] = ids(length) + 1
    if task == "question answering":
        return found | {"start_positions": labels, "end_positions": labels}
    return found | {"labels": labels if task == "classification" else ids(length)}


@cache
def _decoders() -> dict[str, Row]:
    return {row["model"]: row for row in read("decoders")}


def weights_of(model: str) -> tuple[int, int]:
    """Returns the number of weights in a decoder's linear layers, and of its layers."""
    import torch
    import transformers
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    kind, settings = DECODERS[model]
    config = getattr(transformers, f"{kind}Config")(**settings)
    names = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    with torch.device("meta"):
        made = getattr(transformers, names.get(kind, f"{kind}ForCausalLM"))(config)
    products = [each for each in made.modules() if isinstance(each, (nn.Linear, Conv1D))]
    return sum(each.weight.numel() for each in products), config.num_hidden_layers


def count_decoding(row: Row) -> Counted:
    """Returns the counts of a decoded token on each card, where products read each weight once."""
    made = _decoders()[row["model"]]
    weights, layers = int(made["weights"]) // int(row["cards"]), int(made["layers"])
    flops = 2 * weights * int(row["batch"])
    return Counted(
        flops=flops,
        weight_bytes=2 * weights,
        num_attentions=layers,
        num_passes=1,
        flops_of={"bfloat16": flops},
        is_trained=False,
    )


def count_training(row: Row, counts: Row) -> Counted:
    """Returns a line of counts.csv as the counts of a plan."""
    flops = int(counts["flops"])
    weights = int(counts["num_trained"]), int(counts["num_weights"])
    kind = "all_gather" if row["strategy"].startswith("zero") else "all_reduce"
    return Counted(
        flops=flops,
        moved_bytes=int(counts["moved_bytes"]),
        fused_bytes=int(counts["fused_bytes"]),
        product_bytes=int(counts["product_bytes"]),
        weight_bytes=int(counts["weight_bytes"]),
        collective_bytes={kind: sent_bytes(row, *weights)},
        num_micro_batches=int(row["accumulation"]),
        num_replicas=int(row["cards"]),
        num_operators=int(counts["num_operators"]),
        num_attentions=int(counts["num_attentions"]),
        num_passes=int(counts["num_passes"]),
        flops_of={_DTYPES.get(row["precision"], "bfloat16"): flops},
    )


if __name__ == "__main__":
    raise SystemExit(main())
