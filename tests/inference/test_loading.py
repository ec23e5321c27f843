"""Weights from safetensors files: whole models, errors, and what a host process holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from lightning_gaudi.inference import load_weights
from lightning_gaudi.simulator import host_syncs
from tests.helpers.ranks import run_ranks
from tests.inference.parallel_models import make, on_cards

INDEX = "model.safetensors.index.json"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A Bloom in several files."""
    make("bloom").save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def _on_meta(model: Any, **settings: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model.config, **settings).eval()


@pytest.mark.parametrize("name", ["bloom", "llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("device", ["cpu", "hpu"])
def test_a_model_on_meta_becomes_the_one_that_was_saved(
    tmp_path: Path, name: str, device: str
) -> None:
    saved = make(name)
    saved.save_pretrained(tmp_path)
    model = _on_meta(saved)
    load_weights(model, tmp_path, device)
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        logits = model(ids.to(device)).logits.cpu()
        torch.testing.assert_close(logits, saved(ids).logits, rtol=0, atol=1e-5)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == model.config.tie_word_embeddings
    assert not any(each.is_meta for each in [*model.parameters(), *model.buffers()])
    # What is loaded is no view of a file that somebody may write to.
    if device == "cpu":
        path = tmp_path / "model.safetensors"
        path.write_bytes(b"\0" * path.stat().st_size)
        assert torch.equal(model(ids).logits, logits)


def test_weights_get_the_dtype_of_the_model_and_computed_buffers_keep_theirs(
    tmp_path: Path,
) -> None:
    saved = make("llama")
    saved.save_pretrained(tmp_path)
    model = _on_meta(saved, dtype=torch.bfloat16)
    load_weights(model, tmp_path, "cpu")
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    expected = saved.model.norm.weight.bfloat16()
    assert torch.equal(model.model.norm.weight, expected)
    frequencies = model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, saved.model.rotary_emb.inv_freq)


def test_a_model_saved_without_its_head_loads_into_one_with_it(tmp_path: Path) -> None:
    saved = make("bloom")
    saved.transformer.save_pretrained(tmp_path)
    assert "word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    model = _on_meta(saved)
    load_weights(model, tmp_path, "cpu")
    assert torch.equal(model.lm_head.weight, saved.lm_head.weight)


def test_a_missing_file_of_the_index_is_named(saved: Path) -> None:
    missing = sorted(saved.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(ValueError, match=rf"{INDEX} names \d files, of which {missing.name} is mi"):
        load_weights(_on_meta(make("bloom")), saved, "cpu")


def test_a_truncated_file_is_named(saved: Path) -> None:
    path = sorted(saved.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=rf"{path.name} cannot be read \(\d+ bytes\).*truncated"):
        load_weights(_on_meta(make("bloom")), saved, "cpu")


def test_a_tensor_of_another_shape_is_named_with_its_file(saved: Path) -> None:
    path = next(
        path for path in saved.glob("*.safetensors") if "transformer.ln_f.bias" in load_file(path)
    )
    tensors = load_file(path)
    tensors["transformer.ln_f.bias"] = torch.zeros(31)
    save_file(tensors, path)
    model = _on_meta(make("bloom"))
    match = rf"transformer.ln_f.bias in .*{path.name} has the shape \(31,\).*model's is \(32,\)"
    with pytest.raises(ValueError, match=match):
        load_weights(model, saved, "cpu")
    assert model.lm_head.weight.is_meta  # nothing was read


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    make("bloom").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: each for name, each in tensors.items() if "h.1.mlp" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    match = r"lacks transformer.h.1.mlp.dense_h_to_4h.weight, .* and 1 more, which BloomForCausalLM"
    with pytest.raises(ValueError, match=match):
        load_weights(_on_meta(make("bloom")), tmp_path, "cpu")


def test_an_index_that_names_what_its_file_does_not_have_is_refused(saved: Path) -> None:
    index = json.loads((saved / INDEX).read_text())
    index["weight_map"]["another"] = next(iter(index["weight_map"].values()))
    (saved / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"says that another is in .*, which does not have it"):
        load_weights(_on_meta(make("bloom")), saved, "cpu")
    (saved / INDEX).write_text("{}")
    with pytest.raises(ValueError, match=r"is no index of safetensors files \(KeyError"):
        load_weights(_on_meta(make("bloom")), saved, "cpu")


def test_a_module_of_ones_own_is_refused(saved: Path) -> None:
    with pytest.raises(TypeError, match="Linear is no model of transformers"):
        load_weights(torch.nn.Linear(2, 2), saved, "cpu")


def test_folders_without_safetensors_are_refused(tmp_path: Path) -> None:
    model = _on_meta(make("bloom"))
    with pytest.raises(ValueError, match="There is no folder"):
        load_weights(model, tmp_path / "none", "cpu")
    with pytest.raises(ValueError, match=r"has no model\.safetensors and no .*index\.json\.$"):
        load_weights(model, tmp_path, "cpu")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"has pytorch_model\.bin, a pickle.*Convert"):
        load_weights(model, tmp_path, "cpu")


def test_tensors_that_the_model_has_no_place_for_are_told(tmp_path: Path) -> None:
    make("bloom").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "transformer.h.2.more": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.warns(
        UserWarning, match=r"has transformer\.h\.2\.more, for which Bloom.* no place"
    ):
        load_weights(_on_meta(make("bloom")), tmp_path, "cpu")


def _peak_bytes() -> Iterator[int]:
    """How much more the process holds at once than at the first call, device memory included."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    while True:
        yield _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _load_in_parts(rank: int, folder: Path, largest_bytes: int, whole_bytes: int) -> None:
    mesh = init_device_mesh("hpu", (dist.get_world_size(),))
    torch.zeros(1, device="hpu")
    peak = _peak_bytes()
    next(peak)
    model = on_cards(folder, mesh)
    peak_bytes = next(peak)
    part_bytes = sum(
        (each.to_local() if isinstance(each, DTensor) else each).nbytes
        for each in set(model.parameters())
    )
    # A card's memory is the host's here: what is loaded counts as the rank's part.
    assert part_bytes < 0.27 * whole_bytes
    assert peak_bytes <= part_bytes + 1.3 * largest_bytes, (peak_bytes, part_bytes)
    assert peak_bytes < whole_bytes
    assert host_syncs() == {}


@pytest.mark.slow
def test_a_host_process_holds_no_more_than_its_part_and_one_tensor(tmp_path: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(hidden_size=512, n_layer=6, n_head=8, vocab_size=16384)
    model = BloomForCausalLM(config)
    sizes = [each.nbytes for each in model.parameters()]
    model.save_pretrained(tmp_path, max_shard_size="48MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(_load_in_parts, ranks, tmp_path, max(sizes), sum(sizes), num_ranks=4)
