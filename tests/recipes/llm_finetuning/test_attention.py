"""Rows of one document need no mask; rows whose tokens cards share; a mask that is too large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from recipes.common.errors import UserError
from recipes.llm_finetuning.attention import attend_over_cards, attend_without_mask, check_mask
from recipes.llm_finetuning.sharding import shard
from tests.recipes.llm_finetuning.conftest import FAMILIES, make_model, make_module, small_data
from tests.recipes.llm_finetuning.test_adapters import _fit, cli_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:You are using a custom batch sampler:UserWarning",
    # Lightning 2.6.6 calls functions that jsonargparse 4.53 has renamed.
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
)
_NEEDS_ONE = ("gemma2",)
"""Its scores are capped, which no kernel does."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_one_document_is_the_same_without_a_mask(
    save: Callable[..., str], rows: Path, family: str
) -> None:
    folder = save(family)
    module = make_module(folder)
    data = small_data(folder, rows, max_sequences_per_pack=1, batch_size=4)
    batch = next(iter(data.val_dataloader()))
    assert (batch["sequence_ids"] == 0).any()
    with torch.no_grad():
        expected = module(batch, scores=True)
        assert attend_without_mask(module.model) is (family not in _NEEDS_ONE)
        module._is_causal = family not in _NEEDS_ONE
        torch.testing.assert_close(module(batch, scores=True), expected)


def test_a_fit_goes_without_a_mask_and_a_prediction_with_one(
    base: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = cli_of(tmp_path, base, rows, "--data.max_sequences_per_pack=1", "--trainer.max_steps=2")
    made: list[Any] = []
    monkeypatch.setattr(type(cli.model), "_mask", lambda self, ids: made.append(ids))
    _fit(cli)
    assert not made
    assert cli.model.model.config._attn_implementation == "llm_finetuning_causal_sdpa"
    cli.model.hparams["max_new_tokens"] = 2
    cli.trainer.predict(cli.model, cli.datamodule)
    assert cli.model.model.config._attn_implementation == "sdpa"


def test_a_row_that_no_cards_share_is_refused(base: str, rows: Path, tmp_path: Path) -> None:
    message = r"sequence_parallel=ulysses is for cards that share rows"
    with pytest.raises(UserError, match=message):
        _fit(cli_of(tmp_path, base, rows, "--model.sequence_parallel=ulysses"))


def test_a_mask_that_would_take_much_of_a_card_is_refused() -> None:
    capacity = 96 * 2**30
    check_mask(1, 32768, 2, capacity)
    with pytest.raises(
        UserError, match=r"batch_size=4 packed row\(s\) of 32768 tokens .* 8\.0 GiB"
    ):
        check_mask(4, 32768, 2, capacity)


@pytest.fixture
def mesh() -> Any:
    """Of four cards that hold layers together, of which this process is one."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    names = ("data_parallel", "tensor_parallel")
    yield DeviceMesh("cpu", torch.arange(4).view(1, 4), mesh_dim_names=names)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("family", "sequence", "message"),
    [
        ("mixtral", None, r"transformers divides .* of MixtralForCausalLM in a way .*FSDP2"),
        ("llama", None, r"tensor_parallel_size=4, which does not divide .*num_key_value_heads=2"),
    ],
)
def test_a_model_that_cannot_be_cut_up_is_refused(
    mesh: DeviceMesh, family: str, sequence: str | None, message: str
) -> None:
    model = make_model(family)
    if family == "mixtral":
        model.config.num_key_value_heads = 4
    with pytest.raises(UserError, match=message):
        shard(torch.nn.Module(), model, mesh, sequence)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "length", "message"),
    [
        ("phi", 66, r"has 4 cards .* share a row's tokens \(data\.pack_length\), 66"),
        ("llama", 64, r"share the model's heads of keys, 2"),
        ("gemma2", 64, r"that of Gemma2ForCausalLM is eager"),
    ],
)
def test_rows_that_cards_cannot_share_are_refused(
    mesh: DeviceMesh, family: str, length: int, message: str
) -> None:
    model = make_model(family)
    if family == "gemma2":
        model.config.num_key_value_heads = 4
    with pytest.raises(UserError, match=message):
        attend_over_cards(model, mesh["tensor_parallel"], length)


def test_operations_of_a_batch_are_those_that_are_counted(base: str, rows: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module = make_module(base, method="lora", lora_rank=4, attention="eager")
    data = small_data(base, rows, batch_size=2)
    batch = {**next(iter(data.val_dataloader())), "mean_learnt": 1.0}
    with FlopCounterMode(display=False) as counter:
        module(batch)["loss"].backward()
    module._num_multiplied = module._count_multiplied()
    module._shape = tuple(batch["input_ids"].shape)
    module._data = lambda: data  # type: ignore[method-assign]
    # The first layer's input wants no gradient, and the loss computes each part again.
    assert module.flops_per_batch == pytest.approx(counter.get_total_flops(), rel=0.1)
