"""Other trainers' scripts: `python -m tests.contract.other_trainers.train FOLDER DEVICE [RUN...]`.

What is here names the HPU nowhere: transformers, accelerate and trl find it. DEVICE is `cpu` for
the reference, which has to say so, or `auto`; RUN is one of SHARDED. Each rank leaves what it
computed in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

NUM_STEPS = 6
HALF = NUM_STEPS // 2
REWARDED_STEPS = 12
GLOBAL_BATCH_SIZE = 8
NUM_SAMPLES, NUM_TOKENS, VOCABULARY = 96, 12, 64
SHARDED = {
    f"fsdp{version}": {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"version": version, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
    }
    for version in (1, 2)
}
"""More arguments of `TrainingArguments`, for several cards."""

Found = dict[str, Any]


def _texts(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Token ids, each of which follows from the one before it."""
    starts = torch.randint(VOCABULARY, (count, 1), generator=torch.Generator().manual_seed(seed))
    ids = (starts + 3 * torch.arange(NUM_TOKENS)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in ids.tolist()]


def _model(dropout: float = 0.0) -> GPT2LMHeadModel:
    set_seed(3)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": VOCABULARY}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(
        GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    )


def _settings(folder: Path, device: str, **more: Any) -> dict[str, Any]:
    """Of `TrainingArguments`, and of those that trl derives from them."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        "output_dir": str(folder),
        "max_steps": NUM_STEPS,
        "per_device_train_batch_size": GLOBAL_BATCH_SIZE // 2 // ranks,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "learning_rate": 1e-2,
        "seed": 5,
        "logging_steps": 1,
        "save_steps": HALF,
        "eval_strategy": "steps",
        "eval_steps": HALF,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
        **more,
    }


def _history(trainer: Trainer) -> Found:
    """What it logged: a loss and a norm of gradients each step, a loss of each evaluation."""
    return {
        "device": trainer.args.device.type,
        "losses": [log["loss"] for log in trainer.state.log_history if "loss" in log],
        "norms": [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log],
        "eval": [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log],
    }


def _types_of(module: nn.Module) -> set[str]:
    """Of what it returns, filled while the model trains."""
    types: set[str] = set()
    module.register_forward_hook(lambda *args: types.add(str(args[2].dtype)))
    return types


def _num_held(model: nn.Module) -> int:
    """How many weights this process holds."""
    parameters = [getattr(each, "_local_tensor", each) for each in model.parameters()]
    return sum(each.numel() for each in parameters)


def hugging_face(folder: Path, device: str, dropout: float = 0.0, **settings: Any) -> Found:
    """A run of transformers' Trainer, and its last steps again from the checkpoint halfway."""
    found = {}
    for resumed_from in (None, str(folder / f"checkpoint-{HALF}")):
        model = _model(dropout)
        types = _types_of(model.transformer.h[0].mlp)
        trainer = Trainer(
            model,
            TrainingArguments(**_settings(folder, device, **settings)),
            train_dataset=_texts(NUM_SAMPLES, seed=1),
            eval_dataset=_texts(16, seed=2),
        )
        trainer.train(resume_from_checkpoint=resumed_from)
        found["resumed" if resumed_from else "whole"] = _history(trainer) | {
            "types": [*types],
            "num_held": _num_held(trainer.model_wrapped),
        }
    return found


def adapted(folder: Path, device: str) -> Found:
    """trl's SFTTrainer on adapters of peft, and the same model once they are merged into it."""
    from peft import LoraConfig

    adapters = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    trainer = _supervisor(folder, device, peft_config=adapters)
    trainer.train()
    found = _history(trainer)
    trainer.model = trainer.model_wrapped = trainer.model.merge_and_unload()
    return found | {"merged": trainer.evaluate()["eval_loss"]}


def supervised(folder: Path, device: str) -> Found:
    """trl's SFTTrainer on the whole model."""
    trainer = _supervisor(folder, device)
    trainer.train()
    return _history(trainer)


def _supervisor(folder: Path, device: str, **settings: Any) -> Any:
    """A SFTTrainer on tokens, so that it asks for no tokenizer's files."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from .words import tokenizer

    return SFTTrainer(
        _model(),
        args=SFTConfig(**_settings(folder, device, max_length=NUM_TOKENS, bf16=False)),
        train_dataset=Dataset.from_list(_texts(NUM_SAMPLES, seed=1)),
        eval_dataset=Dataset.from_list(_texts(16, seed=2)),
        processing_class=tokenizer(VOCABULARY),
        **settings,
    )


def preferred(folder: Path, device: str) -> Found:
    """trl's DPOTrainer on adapters, beside which the model as it was is the reference."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    from .words import tokenizer

    def pairs(count: int, seed: int) -> Any:
        rows = [[f"w{number}" for number in row["input_ids"]] for row in _texts(count, seed)]
        answers = [(" ".join(row[:4]), " ".join(row[4:]), " ".join(row[:3:-1])) for row in rows]
        return Dataset.from_list(
            [{"prompt": a, "chosen": f" {b}", "rejected": f" {c}"} for a, b, c in answers]
        )

    trainer = DPOTrainer(
        _model(),
        args=DPOConfig(**_settings(folder, device, max_length=NUM_TOKENS + 2, bf16=False)),
        train_dataset=pairs(NUM_SAMPLES, seed=1),
        eval_dataset=pairs(16, seed=2),
        processing_class=tokenizer(VOCABULARY),
        peft_config=LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
    )
    trainer.train()
    return _history(trainer)


def rewarded(folder: Path, device: str) -> Found:
    """trl's GRPOTrainer, which writes answers, and is rewarded for numbers that are even.

    Answers are drawn, and a card draws otherwise than a CPU: what it learns is compared.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from .words import tokenizer

    def even(completions: list[str], **_: Any) -> list[float]:
        words = [each.split() for each in completions]
        return [sum(int(word[1:]) % 2 == 0 for word in w) / max(len(w), 1) for w in words]

    settings = _settings(folder, device, bf16=False, eval_strategy="no", save_strategy="no")
    trainer = GRPOTrainer(
        _model(),
        reward_funcs=even,
        args=GRPOConfig(
            **settings | {"max_steps": REWARDED_STEPS, "per_device_train_batch_size": 8},
            num_generations=8,
            max_completion_length=8,
            beta=0.0,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"w{number}"} for number in range(1, 64)]),
        processing_class=tokenizer(VOCABULARY),
    )
    trainer.train()
    logs = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    return _history(trainer) | {"rewards": logs}


def own_loop(folder: Path, device: str, **settings: Any) -> Found:
    """A loop of one's own with accelerate, whose second half is run again from a saved state."""
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=device == "cpu", **settings)
    set_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    points = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(points, (points[:, 0] > 0).long())
    loader = DataLoader(data, GLOBAL_BATCH_SIZE // 2 // accelerator.num_processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def epoch() -> list[float]:
        losses = []
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
        return losses

    first = epoch()
    accelerator.save_state(str(folder))
    noise = torch.rand(3, device=accelerator.device).tolist()
    second = epoch()
    accelerator.wait_for_everyone()
    accelerator.load_state(str(folder))
    found = {
        "device": accelerator.device.type,
        "losses": first + second,
        "noise": [noise, torch.rand(3, device=accelerator.device).tolist()],
        "again": [second, epoch()],
        "gathered": accelerator.gather(
            torch.tensor([accelerator.process_index], device=accelerator.device)
        ).tolist(),
    }
    accelerator.free_memory()
    return found


def main(folder: Path, device: str, *more: str) -> None:
    """Run all, and write what they found."""
    rank = os.environ.get("RANK", "0")
    found = {
        "loop": own_loop(folder / "loop", device),
        "trainer": hugging_face(folder / "trainer", device),
        "sft": supervised(folder / "sft", device),
        "lora": adapted(folder / "lora", device),
        "dpo": preferred(folder / "dpo", device),
        "grpo": rewarded(folder / "grpo", device),
    }
    if device != "cpu":
        found["dropout"] = hugging_face(folder / "dropout", device, dropout=0.3)
        found["bf16"] = hugging_face(folder / "bf16", device, bf16=True)
    for name in more:
        found[name] = hugging_face(folder / name, device, **SHARDED[name])
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
