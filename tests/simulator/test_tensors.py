"""Tensors on hpu behave as tensors of any torch device: files, copies, views, printing, compile."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.forked import fork_python


def _saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.fixture
def tensor() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float32, device="hpu").view(3, 4)


# Files


@pytest.mark.parametrize(
    ("map_location", "device"),
    [(None, "hpu:0"), ("hpu", "hpu:0"), ("cpu", "cpu"), (torch.device("hpu", 0), "hpu:0")],
)
def test_saved_on_hpu_loads_where_asked(
    tensor: torch.Tensor, map_location: str | None, device: str
) -> None:
    loaded = torch.load(_saved(tensor), map_location=map_location, weights_only=True)
    assert str(loaded.device) == device
    assert torch.equal(loaded.cpu(), tensor.cpu())


def test_saved_on_cpu_loads_on_hpu() -> None:
    source = torch.randn(3, 4)
    loaded = torch.load(_saved(source), map_location="hpu", weights_only=True)
    assert str(loaded.device) == "hpu:0"
    assert torch.equal(loaded.cpu(), source)


@pytest.mark.parametrize("map_location", ["hpu", "cpu"])
def test_saved_views_share_their_storage_again(tensor: torch.Tensor, map_location: str) -> None:
    both = {"whole": tensor, "row": tensor[1]}
    loaded = torch.load(_saved(both), map_location=map_location, weights_only=True)
    loaded["row"].zero_()
    assert loaded["whole"][1].abs().sum() == 0


def test_a_module_and_its_optimizer_resume_from_a_file() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to("hpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch = torch.randn(2, 4, device="hpu")

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return model.weight.detach().clone()

    step(model, optimizer)
    file = _saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    expected = step(model, optimizer)
    state = torch.load(file, map_location="cpu", weights_only=True)
    resumed = nn.Linear(4, 4).to("hpu")
    resumed.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(resumed.parameters(), lr=0.1)
    optimizer.load_state_dict(state["optimizer"])
    assert torch.equal(step(resumed, optimizer), expected)


def test_file_saved_on_hpu_loads_on_a_machine_without_one(
    tensor: torch.Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "tensor.pt"
    torch.save(tensor, path)
    source = """
        import sys, torch
        print(torch.load(sys.argv[1], map_location="cpu", weights_only=True).sum().item())
        try:
            torch.load(sys.argv[1], weights_only=True)
        except Exception as error:
            print(error)
    """
    result = fork_python(source, str(path), env={"LIGHTNING_GAUDI_SIMULATE": None})
    total, error = result.stdout.split("\n", 1)
    assert float(total) == 66
    assert "HPU device module is not registered" in error or "deserialize object on a HPU" in error


# Copies


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda tensor: pickle.loads(pickle.dumps(tensor)),
        torch.clone,
        lambda tensor: tensor.to("cpu").to("hpu"),
        lambda tensor: tensor.to("hpu", copy=True),
    ],
    ids=["deepcopy", "pickle", "clone", "round-trip", "to-copy"],
)
def test_copies_are_equal_and_have_memory_of_their_own(
    tensor: torch.Tensor, duplicate: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    source = tensor.t().requires_grad_()
    copied = duplicate(source)
    assert copied.device == source.device
    assert copied.stride() == source.stride()
    assert copied.requires_grad
    assert torch.equal(copied, source)
    assert copied.data_ptr() != source.data_ptr()


def test_to_returns_the_tensor_itself_when_it_is_there(tensor: torch.Tensor) -> None:
    assert tensor.to("hpu") is tensor
    assert tensor.hpu() is tensor


def test_copies_convert_dtype_and_strides() -> None:
    source = torch.arange(12.0).view(3, 4)
    target = torch.empty(4, 3, device="hpu", dtype=torch.bfloat16).t()
    target.copy_(source, non_blocking=True)
    assert torch.equal(target.cpu(), source.bfloat16())
    assert torch.equal(source.to("hpu", torch.int32).cpu(), source.int())


def test_moved_module_keeps_its_parameters() -> None:
    module = nn.Linear(2, 2)
    parameters = [id(parameter) for parameter in module.parameters()]
    module.to("hpu")
    assert [id(parameter) for parameter in module.parameters()] == parameters
    assert {parameter.device.type for parameter in module.parameters()} == {"hpu"}
    assert module.cpu().weight.device.type == "cpu"
    assert module.hpu().weight.is_hpu


# Views


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(4, 3),
        lambda x: x.t(),
        lambda x: x[1:],
        lambda x: x[:, ::2],
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.chunk(2)[0],
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.diagonal(),
        lambda x: x.expand(2, 3, 4)[0],
        lambda x: x.detach(),
        lambda x: x.unbind()[2],
        lambda x: x.view(torch.int32).view(torch.float32),
        lambda x: torch.as_strided(x, (2, 2), (4, 1), 1),
        lambda x: x.squeeze().unsqueeze(0).flatten().reshape(2, 6).permute(1, 0),
    ],
)
def test_writes_through_a_view_reach_its_base(
    tensor: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    on_cpu = tensor.cpu()
    for source in (tensor, on_cpu):
        view(source).mul_(-2)
    assert torch.equal(tensor.cpu(), on_cpu)
    assert (tensor < 0).any()
    assert view(tensor).untyped_storage().data_ptr() == tensor.data_ptr()


def test_out_argument_is_resized_in_place(tensor: torch.Tensor) -> None:
    out = torch.empty(0, device="hpu")
    assert torch.add(tensor, tensor, out=out) is out
    assert torch.equal(out, tensor * 2)


def test_storage_can_be_freed_and_grown_again(tensor: torch.Tensor) -> None:
    """What FSDP does with the weights of a layer."""
    tensor = tensor.repeat(2**10 + 1, 1)  # a small one lies in a pool that is there anyway
    storage = tensor.untyped_storage()
    num_bytes = storage.nbytes()
    in_use = torch.hpu.memory_allocated()
    storage.resize_(0)
    in_steps = -(-num_bytes // 128) * 128
    assert torch.hpu.memory_allocated() == in_use - in_steps
    storage.resize_(num_bytes)
    assert torch.equal(tensor.fill_(3).cpu(), torch.full_like(tensor, 3.0, device="cpu"))


# Host memory


def test_pinned_memory_is_told_from_pageable() -> None:
    source = torch.randn(3)
    pinned = source.pin_memory()
    assert pinned.is_pinned()
    assert not source.is_pinned()
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned.to("hpu", non_blocking=True).cpu(), source)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_data_loader_pins_its_batches(num_workers: int) -> None:
    dataset = TensorDataset(torch.arange(8.0).view(4, 2))
    loader = DataLoader(dataset, batch_size=2, pin_memory=True, num_workers=num_workers)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.equal(torch.cat([batch.to("hpu") for batch in batches]).cpu(), dataset.tensors[0])


def test_numpy_refuses_a_tensor_of_the_device(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="can't convert hpu:0 device type tensor to numpy"):
        tensor.numpy()
    assert np.array_equal(torch.from_numpy(np.ones(2)).to("hpu").cpu().numpy(), np.ones(2))


def test_scalars_and_lists_come_back_to_python(tensor: torch.Tensor) -> None:
    assert tensor[1, 2].item() == 6
    assert tensor[0].tolist() == [0, 1, 2, 3]
    assert [float(value) for value in tensor[0]] == [0, 1, 2, 3]
    assert bool(tensor.any())


# Names


def test_printing_shows_values_and_device(tensor: torch.Tensor) -> None:
    assert repr(torch.tensor([1, 2], device="hpu")) == "tensor([1, 2], device='hpu:0')"
    assert "device='hpu:0', requires_grad=True" in repr(tensor.requires_grad_())
    assert repr(torch.zeros(1, device="hpu").device) == "device(type='hpu', index=0)"


def test_hpu_and_is_hpu_tell_and_move() -> None:
    source = torch.randn(2)
    assert not source.is_hpu
    assert source.hpu().is_hpu
    assert source.hpu().device == torch.device("hpu:0")
    assert not source.hpu().cpu().is_hpu
    assert nn.Parameter(source).hpu().is_hpu


def test_device_is_the_accelerator_of_the_process() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("hpu")
    with torch.device("hpu"):
        assert torch.zeros(1).is_hpu


# Mistakes


def test_tensors_of_two_devices_do_not_mix(tensor: torch.Tensor) -> None:
    message = r"hpu:0 and cpu! Argument '{}' of aten::{} is the other one: move it with \.to\(\"hpu"
    with pytest.raises(RuntimeError, match=message.format("other", r"add\.Tensor")):
        tensor + torch.ones(3, 4)
    with pytest.raises(RuntimeError, match=message.format("mat2", "addmm")):
        nn.Linear(4, 4)(tensor)
    with pytest.raises(RuntimeError, match=message.format("mat1", "addmm")):
        nn.Linear(4, 4).to("hpu")(tensor.cpu())


def test_numbers_and_indices_of_the_cpu_may_go_to_the_device(tensor: torch.Tensor) -> None:
    assert torch.equal((tensor + torch.tensor(1.0)).cpu(), tensor.cpu() + 1)
    assert torch.equal(tensor[torch.tensor([2, 0])].cpu(), tensor.cpu()[[2, 0]])
    tensor[torch.tensor([0])] = 9.0
    assert tensor[0].tolist() == [9, 9, 9, 9]


def test_a_second_card_is_refused_in_one_process(tensor: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="hpu:1 does not exist in this process"):
        tensor.to("hpu:1")


def test_sparse_tensors_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError, match="Sparse tensors are not supported on HPU"):
        tensor.to_sparse()


# Compilers


class Block(nn.Module):
    """A small network with a branch on shapes, a buffer and an in-place update."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        x = self.norm(x + torch.nn.functional.gelu(self.linear(x)))
        return x.softmax(-1) if x.shape[0] > 2 else x


@pytest.mark.slow_but("2-eager")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_compiled_module_trains_as_the_plain_one(backend: str, batch_size: int) -> None:
    torch.manual_seed(0)
    plain = Block().to("hpu")
    module = copy.deepcopy(plain)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(batch_size, 8, device="hpu")
    for network in (plain, compiled):
        network(x).square().sum().backward()
    assert torch.equal(compiled(x), plain(x))
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.grad, plain.get_parameter(name).grad), name
    assert module.num_calls == plain.num_calls == 2
