"""Supervised fine-tuning with `trl`: a small Llama learns to answer sums of two numbers.

The loss is that of the answers alone. `SFTTrainer` takes the device that it finds; for several,
start it with `torchrun`, or with `accelerate launch`.
"""

import argparse
import os

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

CHARACTERS = "0123456789+="
END, PADDING = "<end>", "<pad>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character."""
    vocabulary = {token: i for i, token in enumerate([PADDING, END, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PADDING))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING)


def sums(is_validation: bool) -> Dataset:
    """Four of 25 sums are for validation: both parts are whole batches of 64."""
    pairs = [(a, b) for a in range(40) for b in range(40)]
    chosen = [pair for i, pair in enumerate(pairs) if (i % 25 < 4) == is_validation]
    return Dataset.from_list([{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in chosen])


def main(args: argparse.Namespace) -> None:
    num_devices = int(os.environ.get("WORLD_SIZE", "1"))
    set_seed(args.seed)
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir=args.output_dir,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size // num_devices,
            per_device_eval_batch_size=64 // num_devices,
            learning_rate=5e-3,
            warmup_steps=args.max_steps // 10,
            lr_scheduler_type="cosine",
            max_length=16,
            bf16=args.bf16,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=sums(is_validation=False),
        eval_dataset=sums(is_validation=True),
        processing_class=tokenizer,
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_mean_token_accuracy"]
    if trainer.is_world_process_zero():
        print(f"metric: val_token_accuracy {accuracy:.4f}")
    trainer.accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--output_dir", default="checkpoints/trl_sft")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
