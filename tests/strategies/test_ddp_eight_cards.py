"""Eight cards on one machine: started by the Trainer, a small BERT, as many threads as cores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.helpers.process import run

pytest.importorskip("transformers")

_SCRIPT = """
import json, os, re, sys
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM

class Bert(pl.LightningModule):
    # The size of recipes/bert_pretraining/simulated.yaml.
    def __init__(self):
        super().__init__()
        self.bert = BertForMaskedLM(BertConfig(
            vocab_size=2048, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=256, max_position_embeddings=128))

    def training_step(self, batch, batch_idx):
        return self.bert(input_ids=batch[0], labels=batch[0]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_end(self):
        # Not what getrusage tells: that includes the process which has started this one.
        with open("/proc/self/status") as file:
            peak_kib = re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]
        checksum = sum(weight.double().sum() for weight in self.parameters()).item()
        with open(f"{sys.argv[1]}/rank{self.global_rank}.json", "w") as file:
            json.dump({
                "checksum": checksum,
                "steps": self.trainer.global_step,
                "threads": torch.get_num_threads(),
                "peak_mib": int(peak_kib) // 1024,
            }, file)

pl.seed_everything(1)
data = TensorDataset(torch.randint(2048, (8 * 20 * 4, 128)))
pl.Trainer(
    accelerator="hpu", devices=8, max_steps=20, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Bert(), DataLoader(data, batch_size=4))
"""


@pytest.mark.slow
def test_a_small_bert_trains_on_eight_cards(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    env = {"LIGHTNING_GAUDI_SIMULATE": "8", "OMP_NUM_THREADS": None}
    run([sys.executable, str(tmp_path / "train.py"), str(tmp_path)], env=env, timeout=240)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(8)]
    assert {facts["steps"] for facts in ranks} == {20}
    assert len({facts["checksum"] for facts in ranks}) == 1
    # More would be too many for the cores: Lightning shares them among the ranks.
    assert {facts["threads"] for facts in ranks} == {max(1, (os.cpu_count() or 1) // 8)}
    assert max(facts["peak_mib"] for facts in ranks) < 1024
