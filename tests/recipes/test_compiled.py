"""The recipes by default: few launches, no late graph, no waiting, and the losses as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_gaudi import vendor
from lightning_gaudi.compilation.settings import VARIABLE
from tests.helpers.recipes import quiet_cli

NUM_STEPS, FIRST_VALIDATION = 24, 12
OVERRIDES = {
    # Pairs of sentences train the pooler and its head, too.
    "bert_pretraining": ("--data.next_sentence=true",),
    # Two lengths: both have come before the first validation.
    "mrpc": ("--data.pairs_per_sentence=1", "--data.num_buckets=2"),
    "t5_summarization": (),
    "text_generation": (),
    "llm_finetuning": (),
}
NAMES = ("launch", "graph_compilation", "host_sync")


class Counts(Callback):
    """The losses of a fit, and the device's counts at the start of each step."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.starts: list[dict[str, int]] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.starts.append({name: vendor.metric(name)["TotalNumber"] for name in NAMES})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self.losses.append(outputs["loss"].detach())

    def between(self, name: str, first: int, last: int) -> int:
        return self.starts[last][name] - self.starts[first][name]


def _fit(recipe: str, path: Path, *arguments: str) -> Counts:
    torch.compiler.reset()
    cli = quiet_cli(
        recipe,
        path,
        *(f"--trainer.max_steps={NUM_STEPS}", f"--trainer.val_check_interval={FIRST_VALIDATION}"),
        *("--trainer.limit_val_batches=1", "--trainer.log_every_n_steps=1000"),
        *("--model.warmup_steps=0", *OVERRIDES[recipe], *arguments),
    )
    counts = Counts()
    cli.trainer.callbacks.append(counts)
    cli.trainer.fit(cli.model, cli.datamodule)
    return counts


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler warns of its own doings
@pytest.mark.parametrize("recipe", OVERRIDES)
def test_a_recipe_is_compiled_by_default(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = _fit(recipe, tmp_path)
    monkeypatch.delenv(VARIABLE)
    compiled = _fit(recipe, tmp_path)
    torch.testing.assert_close(
        torch.stack(compiled.losses), torch.stack(written.losses), rtol=1e-5, atol=0
    )
    # The first step that begins after a validation, which by then has its graphs.
    after = FIRST_VALIDATION
    num_graphs = compiled.between("graph_compilation", 0, NUM_STEPS - 1)
    num_steps = NUM_STEPS - 1 - after
    num_launches = compiled.between("launch", after, NUM_STEPS - 1) / num_steps
    assert num_graphs > 1
    assert num_launches <= num_graphs * 2 + 10
    assert num_launches <= 12
    assert written.between("launch", after, NUM_STEPS - 1) / num_steps > 100
    assert compiled.between("graph_compilation", after, NUM_STEPS - 1) == 0
    assert compiled.between("host_sync", after, NUM_STEPS - 1) == 0


@pytest.mark.slow
def test_recomputed_blocks_are_compiled_one_by_one(tmp_path: Path) -> None:
    cli = quiet_cli("t5_summarization", tmp_path, "--model.gradient_checkpointing=true")
    assert cli.model.compile_regions == ()
    cli = quiet_cli("t5_summarization", tmp_path)
    assert cli.model.compile_regions == ("T5Summarization",)
