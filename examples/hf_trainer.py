"""A small Llama on characters with the Trainer of `transformers`, resumed from a checkpoint.

The Trainer takes the device that it finds; for several, start it with `torchrun`, or with
`accelerate launch`.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

NUM_TOKENS = 64
VOCABULARY = 128


def windows(count: int, first: int) -> TensorDataset:
    """Pieces of the standard library's sources, in ASCII."""
    paths = sorted((Path(sysconfig.get_path("stdlib")) / "email").glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)
    ids = torch.tensor([min(byte, VOCABULARY - 1) for byte in text])
    return TensorDataset(ids[first * NUM_TOKENS :][: count * NUM_TOKENS].view(count, NUM_TOKENS))


def collate(rows: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.stack([row for (row,) in rows])
    return {"input_ids": ids, "labels": ids}


def build_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=NUM_TOKENS,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def main(args: argparse.Namespace) -> None:
    num_devices = int(os.environ.get("WORLD_SIZE", "1"))
    settings = {
        "output_dir": args.output_dir,
        "per_device_train_batch_size": args.batch_size // 2 // num_devices,
        "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 64 // num_devices,
        "learning_rate": 3e-3,
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "cosine",
        "max_steps": args.max_steps,
        "warmup_steps": args.max_steps // 10,
        "eval_strategy": "steps",
        "eval_steps": args.max_steps // 2,
        "save_steps": args.max_steps // 2,
        "logging_steps": 5,
        "bf16": args.bf16,
        "report_to": "none",
        "disable_tqdm": True,
    }
    losses = []
    for resumed_from in (None, f"{args.output_dir}/checkpoint-{args.max_steps // 2}"):
        set_seed(args.seed)
        trainer = Trainer(
            build_model(),
            TrainingArguments(**settings),
            data_collator=collate,
            train_dataset=windows(1024, first=0),
            eval_dataset=windows(128, first=1024),
        )
        trainer.train(resume_from_checkpoint=resumed_from)
        losses.append(trainer.evaluate()["eval_loss"])
    assert abs(losses[0] - losses[1]) < 1e-3, f"resumed, it reached another loss: {losses}"
    if trainer.is_world_process_zero():
        print(f"metric: val_loss {losses[-1]:.4f}")
    trainer.accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max_steps", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=32, help="over all devices")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--output_dir", default="checkpoints/hf_trainer")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
