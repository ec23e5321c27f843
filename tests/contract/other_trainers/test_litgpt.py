"""LitGPT's own commands, unmodified, on one card and on two.

On simulated cards losses and weights are the CPU's to 1e-5, and quantized ones stay near them.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lightning_gaudi._core import vendor
from tests.contract.several_cards.torchrun import need_cards, run

litgpt = pytest.importorskip("litgpt", reason="needs LitGPT: pip install --no-deps litgpt==0.5.13")
# It asks for releases of its dependencies that are older than those of the other libraries.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STEPS = 6
EXACT = 1e-5
NEAR = 1e-2
"""Of losses with weights in four bits; the model is so small that each of them counts."""
SIZES = {
    **{"n_layer": 2, "n_embd": 64, "n_head": 4, "n_query_groups": 4, "head_size": 16},
    **{"intermediate_size": 128, "padded_vocab_size": 64, "vocab_size": 64, "block_size": 128},
}
WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "is", "a", "the", "and"]
ON_CPU = {"LT_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
"""LitGPT has no option for it, and Fabric looks there; what it compiles takes a minute there."""
Command = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Pythia, as LitGPT keeps one, and its tokenizer."""
    folder = tmp_path_factory.mktemp("litgpt")
    torch.manual_seed(0)
    config = litgpt.Config.from_name("pythia-14m", **SIZES)
    torch.save(litgpt.GPT(config).state_dict(), folder / "lit_model.pth")
    (folder / "model_config.yaml").write_text(yaml.dump(asdict(config)))
    ids = {word: number for number, word in enumerate(["<|endoftext|>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Runs one of LitGPT's commands, and returns the folder that it has written."""
    with pytest.MonkeyPatch.context() as environment:

        def litgpt_runs(*arguments: object, folder: str, **variables: str) -> Path:
            for name in ON_CPU:
                environment.delenv(name, raising=False)
            for name, value in variables.items():
                environment.setenv(name, value)
            run("-m", "litgpt", *arguments, "--out_dir", tmp_path / folder)
            return tmp_path / folder

        yield litgpt_runs


def _instructions(folder: Path) -> Path:
    """A file of instructions and answers, made of a few words."""
    draw = random.Random(0)
    rows = [
        {
            "instruction": " ".join(draw.choices(WORDS, k=4)),
            "input": "",
            "output": " ".join(draw.choices(WORDS, k=5)),
        }
        for _ in range(64)
    ]
    (folder / "data.json").write_text(json.dumps(rows))
    return folder / "data.json"


def _finetune(data: Path) -> list[object]:
    return [
        *("--data", "JSON", "--data.json_path", data, "--data.val_split_fraction", 0.1),
        *("--data.num_workers", 0, "--train.global_batch_size", 8, "--train.micro_batch_size", 4),
        *("--train.max_steps", NUM_STEPS, "--train.epochs", 2, "--train.lr_warmup_steps", 2),
        *("--train.log_interval", 1, "--train.max_seq_length", 64, "--eval.initial_validation"),
        *("false", "--eval.max_new_tokens", 8, "--eval.max_iters", 2, "--eval.interval", 100),
        *("--lora_dropout", 0, "--logger_name", "csv"),
    ]


PRETRAIN: list[object] = [
    *("pretrain", "pythia-14m", "--data", "tests.contract.other_trainers.tokens.Tokens"),
    *("--train.global_batch_size", 8, "--train.log_interval", 1),
    *("--train.max_seq_length", 32, "--train.max_tokens", NUM_STEPS * 8 * 32),
    *("--train.lr_warmup_steps", 2, "--eval.interval", 100, "--eval.initial_validation", "false"),
    *("--eval.max_iters", 100, "--precision", "32-true", "--logger_name", "csv"),
    *(word for name, value in SIZES.items() for word in (f"--model_config.{name}", value)),
    *("--model_config.name", "pythia-14m"),
]


def _logged(folder: Path, column: str) -> list[float]:
    with next(folder.glob("logs/csv/*/metrics.csv")).open() as lines:
        return [float(row[column]) for row in csv.DictReader(lines) if row[column]]


def _weights(folder: Path, file: str = "lit_model.pth") -> dict[str, torch.Tensor]:
    # With the loader of its data, which LitGPT pickles.
    found: Any = torch.load(folder / "final" / file, weights_only=False)
    return found.get("model", found)  # type: ignore[no-any-return]


def test_finetune_lora_computes_what_it_does_on_the_cpu(
    checkpoint: Path, command: Command, tmp_path: Path
) -> None:
    arguments = ["finetune_lora", checkpoint, *_finetune(_instructions(tmp_path))]
    whole = [*arguments, "--precision", "32-true"]
    on_cpu, on_card = command(*whole, folder="cpu", **ON_CPU), command(*whole, folder="card")
    expected = _logged(on_cpu, "loss")
    assert len(expected) == 2 * NUM_STEPS
    assert expected[-1] < expected[0]
    assert _logged(on_card, "loss") == pytest.approx(expected, rel=EXACT)
    assert _logged(on_card, "val_loss") == pytest.approx(_logged(on_cpu, "val_loss"), rel=EXACT)
    # As users call it: in bfloat16, merged into weights of four bits at the end.
    quantized = command(
        *arguments, "--precision", "bf16-true", "--quantize", "bnb.nf4", folder="nf4"
    )
    losses = _logged(quantized, "loss")
    assert losses == pytest.approx(expected, rel=NEAR)
    assert losses != pytest.approx(expected, rel=EXACT), "nothing was quantized"
    ours, theirs = (_weights(each, "lit_model.pth.lora") for each in (quantized, on_cpu))
    assert ours.keys() == theirs.keys()
    assert _weights(quantized).keys() == _weights(on_cpu).keys()


def test_generate_writes_what_it_does_on_the_cpu(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("-m", "litgpt", "generate", checkpoint, "--prompt", "red blue")
    short = (*arguments, "--max_new_tokens", 8, "--temperature", 0)
    on_card = run(*short, "--precision", "32-true")
    quantized = run(*short, "--precision", "bf16-true", "--quantize", "bnb.nf4")
    for name, value in ON_CPU.items():
        monkeypatch.setenv(name, value)
    on_cpu = run(*short, "--precision", "32-true")
    texts = [
        next(line for line in each.splitlines() if line.startswith("red blue"))
        for each in (on_cpu, on_card, quantized)
    ]
    assert texts[1] == texts[0] != "red blue"
    assert set(texts[2].split()) <= {*WORDS, "<unk>"}


@pytest.mark.skipif(vendor.is_lazy(), reason="FSDP needs eager mode: PT_HPU_LAZY_MODE=0")
def test_pretrain_on_two_cards_ends_with_the_weights_of_one_process(
    checkpoint: Path, command: Command
) -> None:
    need_cards(2)
    start = ["--initial_checkpoint_dir", checkpoint, "--tokenizer_dir", checkpoint]
    # One batch a step: LitGPT's learning rate goes with the batches that are accumulated.
    whole, half = ("--train.micro_batch_size", 8), ("--train.micro_batch_size", 4)
    on_cpu = command(*PRETRAIN, *start, *whole, "--devices", 1, folder="cpu", **ON_CPU)
    on_two = command(*PRETRAIN, *start, *half, "--devices", 2, folder="two")
    expected, got = _weights(on_cpu), _weights(on_two)
    before = torch.load(checkpoint / "lit_model.pth", weights_only=True)
    assert expected.keys() == got.keys() == before.keys()
    for name, weight in expected.items():
        # Adam makes steps of the rounding errors that a bias of keys has for a gradient.
        torch.testing.assert_close(got[name], weight, rtol=1e-4, atol=1e-4)
    assert not torch.equal(expected["lm_head.weight"], before["lm_head.weight"])
