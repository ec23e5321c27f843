from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path("model")
torch.manual_seed(0)
if not folder.exists():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
prompts = DataLoader(torch.randint(4, 64, (2, 8)), batch_size=2)
