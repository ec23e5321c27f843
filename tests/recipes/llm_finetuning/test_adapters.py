"""LoRA: what is trained, saved, resumed, refused and exported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.common.errors import UserError
from recipes.llm_finetuning.adapters import BASE_KEY, base_fingerprint, is_of_adapter, merge
from recipes.llm_finetuning.exporting import export
from recipes.llm_finetuning.module import LlmFinetuning
from tests.helpers.forked import fork_python
from tests.helpers.recipes import Losses, quiet_cli
from tests.recipes.llm_finetuning.conftest import make_module

NUM_STEPS, SAVED_AT = 6, 3
pytestmark = pytest.mark.filterwarnings(
    "ignore:You are using a custom batch sampler:UserWarning",
    # Lightning 2.6.6 calls functions that jsonargparse 4.53 has renamed.
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
    "ignore:Be aware that when using .ckpt_path.:UserWarning",
    "ignore:The dirpath has changed:UserWarning",
    # peft 0.21 asks transformers 5.23 by an old name.
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning",
)


def cli_of(path: Path, base: str, rows: Path, *arguments: str) -> Any:
    """Data, model and Trainer of `simulated_lora`, made small."""
    seed_everything(0, verbose=False)
    small = (
        *(f"--model.name={base}", f"--data.tokenizer={base}", "--data.source=path"),
        *(f"--data.path={rows}", "--data.max_length=64", "--data.batch_size=2"),
        *("--data.prompt_buckets=[64]", "--model.lora_rank=4", "--model.warmup_steps=0"),
        *(
            "--model.optimizer=adamw",
            "--model.learning_rate=1e-3",
        ),  # the vendor's adds epsilon elsewhere
        *(f"--trainer.max_steps={NUM_STEPS}", "--trainer.limit_val_batches=0"),
    )
    return quiet_cli("llm_finetuning", path, *small, *arguments, config="simulated_lora")


def _fit(cli: Any, *callbacks: Any, resume: Path | None = None) -> list[float]:
    losses = Losses()
    cli.trainer.callbacks += [losses, *callbacks]
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=resume)
    return [value.item() for value in losses.values]


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, base: str, rows: Path
) -> tuple[list[float], Path, Any]:
    """The losses of a run, its checkpoint in the middle, and what it ended with."""
    path = tmp_path_factory.mktemp("run")
    cli = cli_of(path, base, rows)
    saver = ModelCheckpoint(
        path / "saved", filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1
    )
    losses = _fit(cli, saver)
    return losses, path / "saved" / f"step={SAVED_AT}.ckpt", cli


def test_a_checkpoint_has_the_adapter_alone(run: tuple[list[float], Path, Any], base: str) -> None:
    losses, path, cli = run
    assert len(losses) == NUM_STEPS
    trained = sum(p.numel() * 4 for p in cli.model.parameters() if p.requires_grad)
    content = torch.load(path, weights_only=True)
    assert content["state_dict"]
    assert all(map(is_of_adapter, content["state_dict"]))
    tensors = [*content["state_dict"].values()]
    states = content["optimizer_states"][0]["state"].values()
    tensors += [each for state in states for each in state.values() if torch.is_tensor(each)]
    assert sum(each.nbytes for each in tensors) <= 3 * trained + 4 * len(tensors)
    assert content[BASE_KEY] == base_fingerprint(AutoModelForCausalLM.from_pretrained(base))


def test_a_resumed_run_goes_on_with_the_same_bits(
    run: tuple[list[float], Path, Any], base: str, rows: Path, tmp_path: Path
) -> None:
    losses, path, _ = run
    assert _fit(cli_of(tmp_path, base, rows), resume=path) == losses[SAVED_AT:]


def test_losses_are_the_cpu_s(
    run: tuple[list[float], Path, Any], base: str, rows: Path, tmp_path: Path
) -> None:
    on_cpu = _fit(cli_of(tmp_path, base, rows, "--trainer.accelerator=cpu"))
    assert run[0] == pytest.approx(on_cpu, abs=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--model.lora_rank=8", r"other adapters than those that are configured.*lora_rank=8"),
        ("--model.lora_targets=[q_proj]", r"other adapters .*lora_targets=\['q_proj'\]"),
    ],
)
def test_another_adapter_is_refused(
    run: tuple[list[float], Path, Any],
    base: str,
    rows: Path,
    tmp_path: Path,
    setting: str,
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        _fit(cli_of(tmp_path, base, rows, setting), resume=run[1])


def test_an_adapter_of_another_base_is_refused(
    run: tuple[list[float], Path, Any], save: Callable[..., str], rows: Path, tmp_path: Path
) -> None:
    other = save("llama", 1)
    with pytest.raises(UserError, match=rf"trained beside other weights than.*{other}"):
        _fit(cli_of(tmp_path, other, rows), resume=run[1])


def test_what_is_exported_answers_as_the_model(
    run: tuple[list[float], Path, Any], base: str, tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    path = run[1]
    assert "AutoPeftModelForCausalLM" in export(path, tmp_path / "adapter", "adapter")
    assert "LlamaForCausalLM" in export(path, tmp_path / "merged", "merged")
    names = {each.name for each in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    assert "model.safetensors" not in names
    module = make_module(base, method="lora", lora_rank=4)
    state = torch.load(path, weights_only=True)["state_dict"]
    module.load_state_dict(state, strict=False)
    merge(module.model)
    others = [
        AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval(),
    ]
    tokens = AutoTokenizer.from_pretrained(tmp_path / "merged")("Why?", return_tensors="pt")
    with torch.no_grad():
        expected = module.model(tokens["input_ids"]).logits
        plain = AutoModelForCausalLM.from_pretrained(base)(tokens["input_ids"]).logits
        assert (expected - plain).abs().max() > 1e-3
        for other in others:
            torch.testing.assert_close(other(tokens["input_ids"]).logits, expected)


def test_an_export_has_to_be_told_what_it_is(
    run: tuple[list[float], Path, Any], base: str, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"holds an adapter\. Choose what .*--adapter.*--merged"):
        export(run[1], tmp_path / "none", None)
    cli = cli_of(tmp_path, base, rows, "--model.method=full", "--trainer.max_steps=1")
    saver = ModelCheckpoint(tmp_path / "saved", filename="full", every_n_train_steps=1)
    _fit(cli, saver)
    with pytest.raises(UserError, match=r"--merged is for a checkpoint of model\.method=lora"):
        export(tmp_path / "saved" / "full.ckpt", tmp_path / "merged", "merged")
    assert "LlamaForCausalLM" in export(tmp_path / "saved" / "full.ckpt", tmp_path / "whole", None)


def test_a_model_from_a_folder_is_trained_with_its_dropout(base: str) -> None:
    module = LlmFinetuning(name=base, tokenizer=base, method="lora", lora_dropout=0.5)
    module.configure_model()
    assert all(part.training for part in module.modules())


@pytest.mark.parametrize("targets", ["q_prog", ["q_prog", "v_prog"], ["v_proj", "q_prog"]])
def test_targets_that_no_layer_has_are_refused(base: str, targets: Any) -> None:
    """One of several, too, which peft leaves out without a word."""
    message = r"lora_targets=.*no layer has the name 'q_prog'\. Did you mean 'q_proj'\?.*all-linear"
    with pytest.raises(UserError, match=message):
        LlmFinetuning(name=base, tokenizer=base, method="lora", lora_targets=targets)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lora"}, r"model\.method=lora trains adapters .* model\.name is not set"),
        ({"hidden_size": 30}, r"heads of 7\.5 each"),
        ({"max_new_tokens": 0}, r"model\.max_new_tokens=0"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LlmFinetuning(**settings)


def test_a_vocabulary_that_grew_without_the_embedding_is_refused(base: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([f"<extra_{number}>" for number in range(8)])
    tokenizer.save_pretrained(tmp_path)
    message = r"328 tokens, but model\.name=.* embeddings for 320\. "
    with pytest.raises(UserError, match=f"{message}Set data.tokenizer={base}"):
        LlmFinetuning(name=base, tokenizer=str(tmp_path))
    shutil.copytree(base, tmp_path, ignore=shutil.ignore_patterns("token*"), dirs_exist_ok=True)
    with pytest.raises(UserError, match=rf"{message}Tokens were added .*_embeddings\(328\)"):
        LlmFinetuning(name=str(tmp_path), tokenizer=str(tmp_path))


def test_frozen_weights_alone_may_be_bf16(
    run: tuple[list[float], Path, Any], base: str, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"model\.dtype=bf16 is for frozen weights"):
        _fit(cli_of(tmp_path, base, rows, "--model.dtype=bf16", "--model.method=full"))
    cli = cli_of(tmp_path, base, rows, "--model.dtype=bf16", "--trainer.precision=bf16-mixed")
    assert _fit(cli)[0] == pytest.approx(run[0][0], rel=2e-2)
    kinds = {p.dtype for p in cli.model.parameters() if p.requires_grad}
    assert kinds == {torch.float32}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("neural_compressor") is None, reason="needs Neural Compressor")
def test_adapters_fit_a_gaudi_1_beside_neural_compressor() -> None:
    """It knows no Gaudi 1, and peft asks it about each layer."""
    program = """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        from recipes.llm_finetuning.adapters import add_lora, is_of_adapter

        sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 32)
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))
        settings = {"rank": 2, "alpha": 4, "dropout": 0.0, "base_name": None}
        add_lora(model, targets=["q_proj", "v_proj"], **settings)
        num_added = sum(is_of_adapter(name) for name, _ in model.named_parameters())
        print(torch.hpu.get_device_name(), num_added)
    """
    env = {"LIGHTNING_GAUDI_SIMULATE": "1", "LIGHTNING_GAUDI_SIMULATE_CARD": "gaudi1"}
    assert fork_python(program, env=env).stdout.strip().splitlines()[-1] == "GAUDI 4"
