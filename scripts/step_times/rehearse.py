"""Counts what a plan counts of each published run of the recipes: rehearsed.jsonl.

    python -m scripts.step_times.rehearse [RECIPE/RUN ...]

Each run is planned by its own program and configuration. Models and data are not needed: a model is
its configuration beside a tokenizer that is learnt here, and the data are texts that fill the
lengths of the run, as its own do. Without names all runs that the file has are rehearsed again, one
after the other, which takes half an hour. `fit` and the tests read what this writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from lightning_gaudi.simulator.settings import (
    CARD,
    DRY,
    MAX_CARDS,
    RULES,
    SIMULATE,
    path_with_stand_in,
)
from lightning_gaudi.tools.plan.request import Request, read_results
from recipes.common.published import Run
from scripts.step_times.models import DECODERS, MODELS
from scripts.step_times.registries import PUBLISHED, RECIPES, REHEARSED, read_rehearsed, runs

_MODELS = {
    "bert-large-uncased": MODELS["bert-large-wwm"],
    "bert-large-uncased-whole-word-masking": MODELS["bert-large-wwm"],
    "t5-small": MODELS["t5-small"],
    "t5-3b": MODELS["t5-3b"],
    "bigscience/bloomz": DECODERS["bigscience/bloomz"],
    "bigscience/bloomz-7b1": DECODERS["bigscience/bloomz-7b1"],
    "huggyllama/llama-7b": MODELS["llama-7b"],
    "meta-llama/Llama-3.2-1B": MODELS["llama-3.2-1b"],
    "meta-llama/Llama-3.1-8B": MODELS["llama-3.1-8b"],
    "meta-llama/Meta-Llama-3.1-8B": MODELS["llama-3.1-8b"],
    "meta-llama/Llama-3.1-70B": MODELS["llama-3.1-70b"],
    "mistralai/Mistral-7B-Instruct-v0.2": MODELS["mistral-7b"],
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MODELS["mixtral-8x7b"],
    "Qwen/Qwen2-7B": MODELS["qwen2-7b"],
    "Qwen/Qwen2-72B": MODELS["qwen2-72b"],
    "tiiuae/falcon-40b": MODELS["falcon-40b"],
}
"""By the name that the runs give them."""
_CHAT = "{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"
_EMBEDDED = ["--data.source=embedded", "--data.path=null", "--data.subset=null"]
_NUM_ROWS = 600
_NUM_WORDS = 1500
"""Of a text: each has more than the longest row of a run that does not join them."""


def rehearse(recipe: str, run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields what a plan counts of a run: once for each kind of attention that its cards have."""
    command = [sys.executable, "-m", "scripts.step_times.counts_alone", recipe]
    command += ["predict" if recipe.startswith("text_") else "fit"]
    path = RECIPES / recipe / "published" / f"{run.name}.yaml"
    config = yaml.safe_load(path.read_text())
    command += ["--config", str(path), *_overrides(recipe, run, config, folder)]
    for cards in (("gaudi1",), ("gaudi2", "gaudi3")):
        if {PUBLISHED[card] for card in cards}.isdisjoint(run.hardware):
            continue
        result = folder / cards[0]
        request = Request(devices=run.num_cards, result=str(result))
        env = os.environ | _environment(config, path) | request.environment(folder / "request") | {
            SIMULATE: str(MAX_CARDS), DRY: "1", RULES: "off", CARD: cards[0],
            "LIGHTNING_GAUDI_RELIABILITY": "off",
            "PYTHONPATH": f"{path_with_stand_in()}{os.pathsep}{RECIPES.parent}",
        }  # fmt: skip
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found = next((each for each in read_results(result) if "counted" in each), None)
        if found is None:
            raise SystemExit(f"{recipe}/{run.name} cannot be rehearsed: {ended.stderr[-3000:]}")
        about = {"on": cards, "num_cards": run.num_cards, "batch_size": run.batch_size}
        yield about | {"counted": found["counted"]}


def _environment(config: Any, path: Path) -> dict[str, str]:
    """Returns what a run sets before torch is imported, its files in full."""
    found = {"PT_HPU_LAZY_MODE": "0"}
    for name, value in config.get("environment", {}).items():
        is_file = name.startswith("PT_HPU_AUTOCAST_")
        found[name] = str(path.with_name(value)) if is_file else str(value)
    return found


def _overrides(recipe: str, run: Run, config: Any, folder: Path) -> list[str]:
    """Returns the settings that have a run take a model and data of this machine."""
    if recipe == "text_to_image":
        return [f"--model.name={_pipeline(folder)}"]
    if recipe == "bert_pretraining":  # its model has no name, and its tokenizer is learnt
        return [*_EMBEDDED, "--data.tokenizer=null"]
    model = _model(config["model"]["name"], folder)
    found = [f"--model.name={model}", f"--data.tokenizer={model}"]
    if recipe == "llm_finetuning" or run.name == "tldr_news_8x":
        found += ["--data.source=path", f"--data.path={_rows(folder)}", "--data.subset=null"]
    elif recipe != "text_generation":
        found += _EMBEDDED
    return found


def _model(name: str, folder: Path) -> Path:
    """Writes a model's configuration and a tokenizer, and none of its weights."""
    import transformers

    from recipes.common.tokenization import train_bpe, train_byte_bpe, train_wordpiece

    path = folder / name.replace("/", "_")
    kind, settings = _MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**settings, dtype="bfloat16")
    if kind == "T5":
        config.decoder_start_token_id = 0
    config.save_pretrained(path)
    learn = {"Bert": train_wordpiece, "T5": train_bpe}.get(kind, train_byte_bpe)
    tokenizer = learn([[_text(0)]], 1000)
    if kind == "Bert":  # its recipe wants one of as many tokens as its model has
        tokenizer.add_tokens([f"[unused{n}]" for n in range(config.vocab_size - len(tokenizer))])
    elif kind != "T5":
        tokenizer.chat_template = _CHAT
    tokenizer.save_pretrained(path)
    return path


def _text(number: int) -> str:
    return " ".join(f"word{(number * 7919 + place * 31) % 997}" for place in range(_NUM_WORDS))


def _rows(folder: Path) -> Path:
    """Writes rows with all columns that the runs read."""
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for number in range(_NUM_ROWS):
            question, answer, other = (_text(3 * number + each) for each in range(3))
            messages = [{"role": "user", "content": question}]
            messages.append({"role": "assistant", "content": answer})
            row: dict[str, Any] = {"instruction": question, "input": "", "output": answer}
            row |= {"question": question, "response_j": answer, "response_k": other}
            file.write(
                json.dumps(row | {"messages": messages, "text": question, "content": answer})
            )
            file.write("\n")
    return path


def _pipeline(folder: Path) -> Path:
    """Writes the configurations of Stable Diffusion 1.4, of its size, with no weights."""
    from diffusers import AutoencoderKL, PNDMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig

    from recipes.text_to_image.scratch import make_tokenizer

    path = folder / "stable_diffusion"
    parts = {
        "unet": UNet2DConditionModel,
        "vae": AutoencoderKL,
    }
    settings: dict[str, dict[str, Any]] = {
        "unet": {"sample_size": 64, "cross_attention_dim": 768},
        "vae": {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2}
        | {"down_block_types": ("DownEncoderBlock2D",) * 4, "sample_size": 512}
        | {"up_block_types": ("UpDecoderBlock2D",) * 4},
    }
    import torch

    for name, kind in parts.items():
        with torch.device("meta"):
            kind(**settings[name]).save_config(path / name)
    text = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    text.save_pretrained(path / "text_encoder")
    make_tokenizer().save_pretrained(path / "tokenizer")
    noise = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
    PNDMScheduler(**noise, skip_prk_steps=True, steps_offset=1).save_pretrained(path / "scheduler")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    (path / "model_index.json").write_text(json.dumps(index))
    return path


def main(names: Sequence[str]) -> int:
    """Rehearses runs, and writes what they count beside what was rehearsed before."""
    known = runs()
    found = {**read_rehearsed()} if REHEARSED.exists() else {}
    for recipe, name in [tuple(each.split("/")) for each in names] or [*found]:
        with tempfile.TemporaryDirectory(prefix="lightning-gaudi-rehearse-") as folder:
            rows = [*rehearse(recipe, known[recipe, name], Path(folder))]
        found[recipe, name] = [{"recipe": recipe, "run": name, **row} for row in rows]
        operations = ", ".join(f"{row['counted']['flops']:.4g}" for row in rows)
        print(f"{recipe}/{name}: {operations} operations", flush=True)
        lines = [json.dumps(row) for key in known if key in found for row in found[key]]
        REHEARSED.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
