"""python plain_programs.py NAME [ANYTHING]: trains without Lightning; prints the peak of rank 0.

It saves and logs as people do. With a second argument it takes a few steps alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IS_SHORT = len(sys.argv) > 2
WORDS = 1000


def _layers(width: int = 512) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))


def loader() -> None:
    """Trains, evaluates, logs and saves, epoch by epoch."""
    torch.manual_seed(0)
    device = torch.device("hpu" if torch.hpu.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(320, 512), torch.randint(10, (320,)))
    next(iter(DataLoader(data, 4)))  # it looks at its data
    train, val = DataLoader(data, 32, shuffle=True), DataLoader(data, 64)
    for epoch in range(2):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in val)
        Path("log.json").write_text(json.dumps({"epoch": epoch, "right": right}))
        with open("losses.txt", "a") as file:  # noqa: PTH123 (as people do)
            file.write(f"{loss.item()}\n")
        torch.save({"model": model.state_dict()}, "model.pt")
        torch.save(obj=model.state_dict(), f="weights.pt")


def own_batches() -> None:
    """Cuts its batches out of a text, and accumulates gradients."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(128, 256), nn.Linear(256, 128)
            layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            hidden = self.layers(self.embed(x), mask=mask, is_causal=True)
            return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())

    text = torch.randint(128, (10_000,))

    def batch() -> list[torch.Tensor]:
        starts = torch.randint(len(text) - 65, (12,)).tolist()
        return [torch.stack([text[i + n : i + n + 64] for i in starts]).to("hpu") for n in (0, 1)]

    model = Net().to("hpu")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4 if IS_SHORT else 10**9):
        for _ in range(2):
            (model(*batch()) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def adversarial() -> None:
    """Has two models and two optimizers."""
    maker = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784)).to("hpu")
    judge = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 1)).to("hpu")
    of_maker, of_judge = (torch.optim.Adam(each.parameters()) for each in (maker, judge))
    criterion = nn.BCEWithLogitsLoss()
    for x in DataLoader(torch.randn(320, 784), 64, shuffle=True):
        made = maker(torch.randn(len(x), 64, device="hpu"))
        ones = torch.ones(len(x), 1, device="hpu")
        of_judge.zero_grad()
        loss = criterion(judge(x.to("hpu")), ones) + criterion(judge(made.detach()), 0 * ones)
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        criterion(judge(made), ones).backward()
        of_maker.step()


def closures() -> None:
    """Has an optimizer that calls the model."""
    model = nn.Linear(64, 8, device="hpu")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=2)
    for x in DataLoader(torch.randn(256, 64), 32):
        inputs = x.to("hpu")

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def predicts() -> None:
    """Trains nothing."""
    model = _layers(1024).to("hpu").eval()
    with torch.inference_mode():
        for x in DataLoader(torch.randn(256, 1024), 32):
            model(x.to("hpu")).cpu()


def accelerated() -> None:
    """A loop of accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = _layers()
    optimizer = torch.optim.Adam(model.parameters())
    loaders = [DataLoader(torch.randn(size, 512), 16) for size in (256, 64)]
    model, optimizer, train, val = accelerator.prepare(model, optimizer, *loaders)
    for batch in train:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.inference_mode():
        outputs = [accelerator.gather_for_metrics(model(batch)) for batch in val]
    accelerator.print(torch.cat(outputs).mean().item())
    accelerator.save_state("state")


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": WORDS}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens))


def hugging_face() -> None:
    """The Trainer of transformers, with an evaluation and a checkpoint each epoch."""
    from transformers import Trainer, TrainingArguments

    ids = torch.randint(WORDS, (128, 64)).tolist()
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        max_steps=3 if IS_SHORT else -1,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="tensorboard",
        disable_tqdm=True,
    )
    trainer = Trainer(_gpt2(), arguments, train_dataset=data, eval_dataset=data[:32])
    trainer.train()
    trainer.evaluate()
    trainer.save_model("final")
    trainer.model.save_pretrained("final")


def lora() -> None:
    """LoRA by trl and peft."""
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(WORDS)}, unk_token="t1"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="t0", eos_token="t2", unk_token="t1"
    )
    data = Dataset.from_list(
        [{"input_ids": row} for row in torch.randint(WORDS, (128, 64)).tolist()]
    )
    settings = {"max_length": 64, "gradient_checkpointing": False, "disable_tqdm": True}
    steps = {"per_device_train_batch_size": 8, "max_steps": 3 if IS_SHORT else -1}
    trainer = SFTTrainer(
        _gpt2(),
        SFTConfig("out", **settings, **steps),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model("final")


def _train_ranks(model: Any, optimizer: torch.optim.Optimizer) -> None:
    data = torch.randn(512, 512)
    for x in DataLoader(data, 16, sampler=DistributedSampler(data)):
        loss = model(x.to("hpu")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ddp(rank: int = -1, size: int = -1) -> None:
    """DistributedDataParallel of torch, by a launcher's ranks or its own."""
    import habana_frameworks.torch.distributed.hccl  # noqa: F401, TID251 (a user's program)
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("hccl", rank=rank, world_size=size)
    model = DistributedDataParallel(_layers().to("hpu"))
    _train_ranks(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def _ddp_of(rank: int) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29517")
    ddp(rank, 2)
    dist.destroy_process_group()


def spawned() -> None:
    """DistributedDataParallel, by torch.multiprocessing."""
    torch.multiprocessing.spawn(_ddp_of, nprocs=2)


def fsdp2() -> None:
    """`fully_shard` of torch."""
    import habana_frameworks.torch.distributed.hccl  # noqa: F401, TID251 (a user's program)
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("hccl")
    model = _layers()
    for layer in [*model, model]:
        fully_shard(layer)
    _train_ranks(model, torch.optim.Adam(model.parameters()))


def zero2() -> None:
    """DeepSpeed without Lightning."""
    import deepspeed

    model = _layers()
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for x in DataLoader(torch.randn(128, 512), 16):
        engine.backward(engine(x.to("hpu", torch.bfloat16)).square().mean())
        engine.step()


def main(name: str) -> None:
    """Runs one of them, and prints its peak."""
    globals()[name]()
    if name != "spawned" and int(os.environ.get("RANK", "0")) == 0:
        print("PEAK of rank 0:", torch.hpu.memory_stats()["MaxInUse"], flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
