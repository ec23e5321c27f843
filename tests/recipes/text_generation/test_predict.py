"""Texts: those of transformers, in the order of the prompts, on any number of cards."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from lightning_gaudi.untrusted import printable
from recipes.common.errors import UserError
from recipes.text_generation.__main__ import main
from recipes.text_generation.module import TextGeneration
from tests.helpers.forked import fork_python
from tests.helpers.recipes import quiet_cli
from tests.helpers.trainers import run_trainers
from tests.recipes.text_generation.conftest import (
    PROMPTS,
    VOCABULARY,
    save_pretrained,
    small_data,
)
from tests.recipes.text_generation.test_training import SMALL, fit

NUM_TOKENS = 16
pytestmark = pytest.mark.filterwarnings(
    "default::DeprecationWarning",  # the compiler warns of its own doings
    "ignore:You are using a custom batch sampler",
    "ignore:The 'predict_dataloader' does not have many:UserWarning",
)


def write(
    name: str, path: Path, accelerator: str = "hpu", strategy: Any = "auto", **settings: Any
) -> list[dict[str, Any]]:
    """What `predict` leaves, and how long each batch is."""
    batch_size, devices = settings.pop("batch_size", 2), settings.pop("devices", 1)
    more = settings.pop("data", {})
    data = small_data(tokenizer=name, prompts=PROMPTS, eval_batch_size=batch_size, **more)
    writing = {"max_new_tokens": NUM_TOKENS, "predictions": str(path / "out.jsonl")}
    module = TextGeneration(name=name, tokenizer=name, **(writing | settings))
    trainer = Trainer(
        accelerator=accelerator,
        devices=devices,
        strategy=strategy,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=path,
    )
    trainer.predict(module, datamodule=data, return_predictions=False)
    if trainer.global_rank:  # the first one writes
        return []
    return [json.loads(line) for line in (path / "out.jsonl").read_text("utf-8").splitlines()]


def references(name: str) -> list[list[int]]:
    """The new tokens by transformers, each prompt alone and without padding."""
    model = AutoModelForCausalLM.from_pretrained(name).eval()
    tokenizer, found = AutoTokenizer.from_pretrained(name), []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        tokens = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False)
        found.append(tokens[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.slow_but("cpu-auto")
@pytest.mark.filterwarnings("ignore:The attention mask:UserWarning")
@pytest.mark.parametrize(
    ("accelerator", "engine"),
    [("cpu", "auto"), ("hpu", "none"), pytest.param("hpu", "auto", marks=pytest.mark.slow)],
)
def test_greedy_texts_are_those_of_transformers(pretrained, tmp_path, capsys, accelerator, engine):
    rows = write(pretrained, tmp_path, accelerator, engine=engine)
    assert [row["index"] for row in rows] == list(range(len(PROMPTS)))
    assert [row["prompt"] for row in rows] == PROMPTS
    assert [row["tokens"] for row in rows] == references(pretrained)
    assert len({token for row in rows for token in row["tokens"]}) >= 20
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    for row in rows:
        assert row["text"] == tokenizer.decode(row["tokens"], skip_special_tokens=True)
    shown = capsys.readouterr().out
    assert f"5 predictions written to {tmp_path / 'out.jsonl'}" in shown
    first = " ".join(f"The river|{rows[0]['text']}".splitlines())
    assert f"  0  {printable(first)}\n" in shown
    num_tokens = sum(len(row["tokens"]) for row in rows)
    lines = {line.strip().split("  ")[0]: line.split()[-1] for line in shown.splitlines() if line}
    assert lines["tokens"] == str(num_tokens)  # of prompts, and not of rows that fill
    assert lines["prompts"] == "5"
    assert "1 of each of 2 shape(s), not measured" in shown


def _everywhere(rank: int, path: Path, num_ranks: int) -> None:
    """DDP, and one model on both cards; which does not always divide."""

    def run(name: str, kind: str) -> None:
        strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=num_ranks)
        (path / kind).mkdir(exist_ok=True)
        settings = {"strategy": "auto" if kind == "ddp" else strategy, "devices": num_ranks}
        write(str(path / name), path / kind, engine="none", **settings)

    run("model", "ddp")
    run("model", "tp")
    with pytest.raises(UserError, match=r"num_attention_heads=3, which 2 cards cannot share"):
        run("odd", "odd")


@pytest.mark.slow
def test_two_cards_write_the_file_of_one(pretrained, tmp_path):
    save_pretrained(tmp_path / "model")
    save_pretrained(tmp_path / "odd", num_heads=3)
    run_trainers(_everywhere, tmp_path, tmp_path, 2, num_ranks=2)
    rows = write(pretrained, tmp_path, engine="none")
    for kind in ("ddp", "tp"):
        lines = (tmp_path / kind / "out.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == rows
        assert not list((tmp_path / kind).glob("out.jsonl.*"))


def _in_shards(rank: int, path: Path) -> None:
    write(str(path / "model"), path, strategy="deepspeed_stage_3", devices=2)


@pytest.mark.slow
def test_weights_in_shards_of_zero3_write_the_file_of_one(pretrained, tmp_path):
    """Which are neither captured nor compiled, by default."""
    save_pretrained(tmp_path / "model")
    run_trainers(_in_shards, tmp_path, tmp_path, num_ranks=2)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == write(pretrained, tmp_path)


@pytest.mark.slow
def test_lazy_mode_replays_graphs_to_the_same_texts(pretrained, tmp_path):
    fork_python(
        f"""
        from pathlib import Path
        from tests.recipes.text_generation.test_predict import write
        write({pretrained!r}, Path({str(tmp_path)!r}))
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == references(pretrained)


@pytest.mark.slow
def test_a_drawn_text_depends_on_its_prompt_and_number_alone(pretrained, tmp_path):
    drawn = {"accelerator": "cpu", "temperature": 1.5, "top_k": 50, "top_p": 0.95}
    found = [write(pretrained, tmp_path, batch_size=size, **drawn) for size in (1, 2, 5)]
    assert found[0] == found[1] == found[2]
    greedy = write(pretrained, tmp_path, "cpu")
    assert [row["text"] for row in greedy] != [row["text"] for row in found[0]]
    other = write(pretrained, tmp_path, sampling_seed=7, **drawn)
    assert [row["text"] for row in other] != [row["text"] for row in found[0]]


def test_a_text_ends_with_its_end_or_goes_on(pretrained, tmp_path):
    """The end is exchanged for a token that comes early."""
    first = references(pretrained)[0]
    end = first[3]
    folder = tmp_path / "model"
    model = AutoModelForCausalLM.from_pretrained(pretrained)
    model.generation_config.eos_token_id = [end]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(pretrained).save_pretrained(folder)
    (row, *_) = write(str(folder), tmp_path, "cpu", check_end_every=4)
    assert row["tokens"] == first[: first.index(end) + 1]
    (row, *_) = write(str(folder), tmp_path, "cpu", stop_at_end=False)
    assert row["tokens"] == first


def test_bfloat16_is_that_of_the_weights(pretrained, tmp_path):
    rows = write(pretrained, tmp_path, "cpu", dtype="bf16", batch_size=1)
    model = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    tokens = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False)
    assert rows[0]["tokens"][:2] == tokens[0, ids.shape[1] :].tolist()[:2]


@pytest.mark.slow
def test_in_fp8_perplexity_is_nearly_that_in_bf16_and_texts_are_written(
    pretrained: str, tmp_path: Path
) -> None:
    texts = {kind: write(pretrained, tmp_path, dtype=kind) for kind in ("bf16", "fp8")}
    for inexact, exact in zip(texts["fp8"], texts["bf16"], strict=True):
        assert inexact["prompt"] == exact["prompt"]
        assert len(inexact["tokens"]) == NUM_TOKENS
    losses = {}
    for kind in texts:
        module = TextGeneration(name=pretrained, tokenizer=pretrained, dtype=kind)
        trainer = Trainer(accelerator="hpu", devices=1, logger=False, default_root_dir=tmp_path)
        data = small_data(tokenizer=pretrained, prompts=PROMPTS)
        [found] = trainer.test(module, data, verbose=False)
        losses[kind] = found["test/loss"]
        layers = [type(each).__name__ for each in module.modules()]
        assert layers.count("Fp8Linear") == (8 if kind == "fp8" else 0)
    assert losses["fp8"] == pytest.approx(losses["bf16"], abs=0.05)
    assert losses["fp8"] != losses["bf16"]


def test_fp8_is_refused_where_there_is_none(pretrained: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dtype=fp8 .* trainer\.accelerator is cpu.*dtype=bf16"):
        write(pretrained, tmp_path, "cpu", dtype="fp8")


def _gpt2(folder: Path, pretrained: str, num_positions: int) -> str:
    """A folder with a small GPT-2, and a tokenizer without padding, as GPT-2's own."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.4}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 2, "eos_token_id": 2}
    seed_everything(0, verbose=False)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **tokens, n_positions=num_positions))
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore:The attention mask:UserWarning")
def test_a_model_with_positions_and_without_padding_writes_as_transformers(pretrained, tmp_path):
    name = _gpt2(tmp_path / "model", pretrained, 64)
    rows = write(name, tmp_path, "cpu", data={"pad_token": "</s>"})
    assert [row["tokens"] for row in rows] == references(name)


def test_a_prompt_that_leaves_no_positions_is_refused(pretrained, tmp_path):
    name = _gpt2(tmp_path / "model", pretrained, 30)
    message = (
        r"Prompt 2 of 5 has \d+ tokens and model\.max_new_tokens is 16, but the model has 30 "
        r"positions: 'A silver letter .*data\.prompt_tokens=14"
    )
    with pytest.raises(UserError, match=message):
        write(name, tmp_path, "cpu", data={"pad_token": "</s>"})


def test_the_published_figures_are_printed_beside_those_of_the_run(pretrained, tmp_path, capsys):
    cli = quiet_cli(
        "text_generation",
        tmp_path,
        *(f"--model.name={pretrained}", f"--data.tokenizer={pretrained}", "--environment=null"),
        *(
            "--trainer.accelerator=cpu",
            "--model.engine=none",
            f"--model.predictions={tmp_path}/out",
        ),
        *("--data.prompt_buckets=[64]", "--model.max_new_tokens=4"),
        f"--model.predictions={tmp_path}/out",
        config="published/bloomz_7b_1x",
    )
    cli.trainer.predict(cli.model, cli.datamodule, return_predictions=False)
    shown = capsys.readouterr().out
    assert "published/bloomz_7b_1x: BLOOMZ-7B, 100 tokens after a prompt of 7" in shown
    assert re.search(r"latency_seconds +1.066 s +Gaudi 2 +[\d.]+ s", shown)
    for reason in (
        "this run was simulated, or on no Gaudi, the published one on Gaudi or Gaudi 2",
        f"model.name is {pretrained}, not bigscience/bloomz-7b1",
        "model.max_new_tokens is 4, not 100",
        "environment.PT_HPU_LAZY_MODE is <absent>, not 1",
    ):
        assert f"  {reason}" in shown
    texts = [json.loads(line)["text"] for line in (tmp_path / "out").read_text().splitlines()]
    assert len(texts) == 5
    assert len(set(texts)) == 1


def test_memory_is_told_and_refused_before_anything_is_loaded(
    pretrained, tmp_path, monkeypatch, capsys
):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        content = Path(pretrained, name).read_bytes()
        (tmp_path / "model" / name).write_bytes(content)  # and no weights
    monkeypatch.setattr("recipes.text_generation.module.card_memory_bytes", lambda: 100_000)
    with pytest.raises(UserError, match=r"would have to hold 0\.00 GiB and has 0\.00"):
        write(str(tmp_path / "model"), tmp_path)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"model\.name=.* has no model\.safetensors"):
        write(str(tmp_path / "model"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, r"model\.max_new_tokens=0 must be at least 1"),
        ({"num_warmup": -1}, r"model\.num_warmup=-1 must be at least 0"),
        ({"check_end_every": 0}, r"model\.check_end_every=0 must be at least 1"),
        ({"temperature": -1.0}, r"model\.temperature=-1\.0 must be 0"),
        ({"top_k": 5}, r"model\.top_k=5 is for drawing tokens, but model\.temperature=0"),
        ({"temperature": 1.0, "top_p": 2.0}, r"model\.top_p=2\.0 must be more than 0"),
        ({"check_end_every": 4, "stop_at_end": False}, r"model\.check_end_every=4 asks whether"),
        ({"num_heads": 3}, r"model\.hidden_size=32 is no multiple of model\.num_heads=3"),
        ({"name": "/no/such", "tokenizer": "x"}, r"model\.name=/no/such could not be loaded"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings, message):
    with pytest.raises(UserError, match=message):
        TextGeneration(**(SMALL | settings))


def test_a_published_model_wants_its_tokenizer(pretrained, tmp_path):
    with pytest.raises(UserError, match=r"data\.tokenizer is not set\. Set data\.tokenizer="):
        TextGeneration(name=pretrained)
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.add_tokens([f"<{number}>" for number in range(30)])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has \d+ tokens, but model\.name=.* for 320"):
        TextGeneration(name=pretrained, tokenizer=str(tmp_path))


def test_a_name_beside_the_checkpoint_of_another_model_is_refused(pretrained, tmp_path, capsys):
    fit("cpu", tmp_path, 2)
    named = [f"--model.name={pretrained}", f"--data.tokenizer={pretrained}"]
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--config=simulated", *named, f"--ckpt_path={tmp_path / 'last.ckpt'}"])
    assert ended.value.code == 2
    message = f"model.name={pretrained} and --ckpt_path are both set, but the checkpoint is of a "
    assert f"{message}model from nothing. Leave out" in capsys.readouterr().err.splitlines()[-1]


def test_a_model_with_an_encoder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    with pytest.raises(UserError, match=r"is a t5 model, which cannot generate .*an encoder"):
        TextGeneration(name=str(tmp_path), tokenizer="x")


def test_graphs_are_refused_in_eager_mode_and_on_the_cpu(pretrained, tmp_path):
    for accelerator in ("hpu", "cpu"):
        with pytest.raises(UserError, match="graph"):
            write(pretrained, tmp_path, accelerator, engine="graph")


def test_parts_of_a_model_are_not_trained(tmp_path):
    trainer = Trainer(
        accelerator="hpu",
        devices=1,
        strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1),
        logger=False,
        max_steps=1,
        enable_progress_bar=False,
    )
    with pytest.raises(UserError, match=r"ModelParallelStrategy, which is for `predict`"):
        trainer.fit(TextGeneration(**SMALL), datamodule=small_data())


def test_a_bfloat16_model_is_not_trained(tmp_path):
    trainer = Trainer(accelerator="cpu", devices=1, max_steps=1, logger=False)
    for kind, precision in (("bf16", "bf16-mixed"), ("fp8", "fp8")):
        message = rf"model\.dtype={kind} is for `predict`.*trainer\.precision={precision}\."
        with pytest.raises(UserError, match=message):
            trainer.fit(TextGeneration(**SMALL, dtype=kind), datamodule=small_data())
