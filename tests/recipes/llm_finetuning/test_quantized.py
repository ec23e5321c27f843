"""QLoRA: adapters beside weights in four bits, and what is refused under NF4."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lightning_gaudi.precision import HPUFP8Precision
from recipes.common.errors import UserError
from recipes.llm_finetuning.adapters import is_of_adapter
from recipes.llm_finetuning.exporting import export
from recipes.llm_finetuning.module import LlmFinetuning
from recipes.llm_finetuning.quantization import (
    four_bit_options,
    keep_gradients,
    refuse_fp8,
    refuse_shards,
)
from tests.recipes.llm_finetuning.conftest import VOCABULARY, make_module, make_tokenizer
from tests.recipes.llm_finetuning.test_adapters import _fit, cli_of, pytestmark  # noqa: F401

bnb = pytest.importorskip("bitsandbytes", reason="needs the extra llm")

NUM_STEPS, SAVED_AT = 20, 10
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a Llama whose layers have whole blocks of 64 weights, as real ones have."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.05,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def _cli(path: Path, base: str, rows: Path, *arguments: str) -> Any:
    quantized = ("--model.method=qlora", "--model.learning_rate=2e-3")
    steps = f"--trainer.max_steps={NUM_STEPS}"
    return cli_of(path, base, rows, *quantized, steps, *arguments)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, wide: str, rows: Path
) -> tuple[list[float], Path, Any]:
    """The losses of a run in fp32, its checkpoint in the middle, and what it ended with."""
    path = tmp_path_factory.mktemp("quantized")
    saver = ModelCheckpoint(
        path / "saved", filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1
    )
    cli = _cli(path, wide, rows)
    losses = _fit(cli, saver)
    return losses, path / "saved" / f"step={SAVED_AT}.ckpt", cli


def test_weights_in_four_bits_count_as_the_matrices_that_they_are(wide: str) -> None:
    counted = [make_module(wide, method=each, lora_rank=4) for each in ("lora", "qlora")]
    assert counted[0]._count_multiplied() == counted[1]._count_multiplied()


@slow
def test_losses_are_the_cpu_s(
    run: tuple[list[float], Path, Any], wide: str, rows: Path, tmp_path: Path
) -> None:
    losses, _, cli = run
    assert len(losses) == NUM_STEPS
    kinds = [type(each).__name__ for each in cli.model.modules()]
    assert kinds.count("Linear4bit") == 2 * 2 * 7  # peft's, and bitsandbytes' inside
    layers = [each for each in cli.model.modules() if isinstance(each, bnb.nn.Linear4bit)]
    assert all(each.weight.quant_state.nested for each in layers)
    on_cpu = _fit(_cli(tmp_path, wide, rows, "--trainer.accelerator=cpu"))
    assert losses == pytest.approx(on_cpu, rel=1e-5)
    assert losses[-1] < losses[0]


@slow
def test_losses_in_bfloat16_are_the_cpu_s(wide: str, rows: Path, tmp_path: Path) -> None:
    bf16 = "--trainer.precision=bf16-mixed"
    on_card = _fit(_cli(tmp_path / "hpu", wide, rows, bf16))
    on_cpu = _fit(_cli(tmp_path / "cpu", wide, rows, bf16, "--trainer.accelerator=cpu"))
    assert on_card == pytest.approx(on_cpu, rel=1e-3)


@slow
def test_a_resumed_run_goes_on_with_the_same_bits(
    run: tuple[list[float], Path, Any], wide: str, rows: Path, tmp_path: Path
) -> None:
    losses, path, _ = run
    content = torch.load(path, weights_only=True)["state_dict"]
    assert content
    assert all(map(is_of_adapter, content))
    assert _fit(_cli(tmp_path, wide, rows), resume=path) == losses[SAVED_AT:]


@slow
def test_what_is_exported_answers_as_the_model(
    run: tuple[list[float], Path, Any], wide: str, tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    path = run[1]
    export(path, tmp_path / "adapter", "adapter")
    export(path, tmp_path / "merged", "merged")
    written = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert "quantization_config" not in written
    module = make_module(wide, method="qlora", lora_rank=4)
    state = torch.load(path, weights_only=True)["state_dict"]
    module.load_state_dict(state, strict=False)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "merged")("Why?", return_tensors="pt")
    quantized = four_bit_options(torch.float32, double_quantization=True)
    others = [
        AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", **quantized).eval(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval(),
    ]
    keep_gradients(others[0])
    with torch.no_grad():
        expected = module.model(tokens["input_ids"]).logits
        plain = AutoModelForCausalLM.from_pretrained(wide)(tokens["input_ids"]).logits
        assert (expected - plain).abs().max() > 1e-2
        for other in others:
            logits = other(tokens["input_ids"]).logits
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


QUANTIZED = {
    "int8": {"load_in_8bit": True},
    "FP4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "NF4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "gptq": {"quant_method": "gptq", "bits": 4},
}


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        ("int8", "qlora", r"has weights in int8, and on a Gaudi .* has a kernel for NF4 alone"),
        ("FP4", "qlora", r"has weights in FP4, and on a Gaudi"),
        ("FP4", "lora", r"has weights in FP4, and on a Gaudi"),
        ("gptq", "qlora", r"has weights in gptq, and on a Gaudi"),
        (
            "NF4",
            "lora",
            r"has weights in NF4, and model\.method=lora does not .*Set model\.method=qlora",
        ),
    ],
)
def test_weights_that_are_quantized_otherwise_are_refused(
    wide: str, tmp_path: Path, kind: str, method: Any, message: str
) -> None:
    config = json.loads(Path(wide, "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", **QUANTIZED[kind]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"model\.name={tmp_path} {message}"):
        LlmFinetuning(name=str(tmp_path), tokenizer=wide, method=method)


@pytest.mark.parametrize("package", ["bitsandbytes", "accelerate"])
def test_a_missing_package_is_named(
    wide: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = LlmFinetuning(name=wide, tokenizer=wide, method="qlora")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"qlora needs the package {package}, .*\[recipes,llm\]"):
        module.configure_model()


@pytest.mark.parametrize("kind", [DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy])
def test_a_strategy_that_cuts_weights_up_is_refused(kind: Any) -> None:
    with pytest.raises(UserError, match=rf"{kind.__name__}, and model\.method=qlora keeps all"):
        refuse_shards(object.__new__(kind))


def test_fp8_beside_weights_in_four_bits_is_refused() -> None:
    with pytest.raises(UserError, match=r"four bits, and trainer\.precision=fp8 .*=bf16-mixed, or"):
        refuse_fp8(HPUFP8Precision())


def test_a_model_has_to_be_named() -> None:
    with pytest.raises(UserError, match=r"model\.method=qlora trains adapters .* is not set"):
        LlmFinetuning(method="qlora")
