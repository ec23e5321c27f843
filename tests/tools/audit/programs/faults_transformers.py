"""A script for the Trainer of transformers with eight faults; the lines name the rules."""

import sys

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY = 64


def sentences(count):
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 60, (count,), generator=draw).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]


def pad(rows):
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": tokens}


class Model(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)  # uncompiled
        scale = torch.ones((), dtype=torch.float64, device=output.loss.device)  # float64-demoted
        places = torch.arange(output.logits.shape[1]).to(output.loss.device)  # copy-to-card-blocks
        certain = output.logits.detach().amax(-1)
        self.late = (certain * places).cummax(1).values.mean()  # cummax-on-cpu
        self.sure = certain[certain > 0].mean()  # mask-index-dynamic
        self.last_loss = output.loss.item()  # item-waits
        output.loss = output.loss * scale.float()
        return output


def main():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        use_cache=False,
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        max_steps=60,
        dataloader_num_workers=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(Model(config), arguments, data_collator=pad, train_dataset=sentences(400))
    trainer.train()  # dynamic-shapes fork-beside-card
    print("trained to the end")


if __name__ == "__main__":
    main()
