"""`torch.autocast("hpu")`: the vendor's lists, their precedence, and lists of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

Run = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.rand(4, 4, device="hpu")


LOWER: dict[str, Run] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: functional.linear(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "mean": lambda x: x.mean(),
    "mul": lambda x: x * x,
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
    "conv1d": lambda x: functional.conv1d(x[None], x[:, :, None]),
}
FP32: dict[str, Run] = {
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: x**2,
    "div": lambda x: x / x,
    "cross_entropy": lambda x: functional.cross_entropy(x, x.argmax(-1)),
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "embedding": lambda x: functional.embedding(torch.tensor([1], device="hpu"), x),
    "cdist": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_list_runs_in_the_lower_type(
    name: str, dtype: torch.dtype, inputs: torch.Tensor
) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        assert LOWER[name](inputs.to(dtype)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FP32)
def test_fp32_list_runs_in_fp32(name: str, dtype: torch.dtype, inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        assert FP32[name](inputs.to(dtype)).dtype == torch.float32


def test_promote_list_takes_the_widest_of_its_arguments(inputs: torch.Tensor) -> None:
    low = inputs.bfloat16()
    with torch.autocast("hpu", torch.bfloat16):
        assert (low + low).dtype == torch.bfloat16
        assert (low + inputs).dtype == torch.float32
        assert torch.cat([low, inputs]).dtype == torch.float32
        assert torch.stack([low, low]).dtype == torch.bfloat16


def test_only_the_input_of_a_norm_is_cast(inputs: torch.Tensor) -> None:
    weight = torch.full((4,), 1.001, device="hpu")  # bf16 would round it to 1
    with torch.autocast("hpu", torch.bfloat16):
        result = functional.layer_norm(inputs, (4,), weight)
    expected = functional.layer_norm(inputs.bfloat16().cpu(), (4,), weight.cpu())
    assert torch.equal(result.cpu(), expected)


def test_what_is_on_no_list_keeps_its_type(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        assert inputs.sum().dtype == torch.float32
        assert functional.gelu(inputs).dtype == torch.float32
        assert (inputs.double() @ inputs.double()).dtype == torch.float64
        assert (inputs.int() * inputs.int()).dtype == torch.int32


def test_in_place_and_out_are_left_alone(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        assert inputs.clone().mul_(inputs).dtype == torch.float32
        assert torch.mul(inputs, inputs, out=torch.empty_like(inputs)).dtype == torch.float32


def test_disabled_region_inside_runs_as_it_is(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16), torch.autocast("hpu", enabled=False):
        assert (inputs @ inputs).dtype == torch.float32


def test_tensors_of_the_cpu_are_left_alone(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        assert (inputs.cpu() @ inputs.cpu()).dtype == torch.float32


def test_gradients_of_a_cast_weight_come_back_in_its_type(inputs: torch.Tensor) -> None:
    weight = inputs.clone().requires_grad_()
    with torch.autocast("hpu", torch.bfloat16):
        loss = (inputs @ weight).exp().sum()
    loss.backward()
    assert weight.grad.dtype == torch.float32


_PRINT_TYPES = """
    import torch
    x = torch.rand(2, 2, device="hpu")
    low = x.bfloat16()
    with torch.autocast("hpu", torch.bfloat16):
        results = (x @ x, x.softmax(-1), x.sin(), x.cos(), low.sin(), low.log(), low.tan())
    print(*[str(result.dtype).removeprefix("torch.") for result in results])
"""
_LOWER_FILE, _FP32_FILE = (
    f"PT_HPU_AUTOCAST_{name}_OPS_LIST" for name in ("LOWER_PRECISION", "FP32")
)
_DEFAULT = "bfloat16 bfloat16 float32 float32 bfloat16 float32 float32"


def _run_with_lists(tmp_path: Path, lower: str | None, fp32: str | None) -> str:
    env = {}
    for variable, text in ((_LOWER_FILE, lower), (_FP32_FILE, fp32)):
        if text is not None:
            env[variable] = str(tmp_path / variable)
            (tmp_path / variable).write_bytes(text.encode())
    return run_python(_PRINT_TYPES, env=env).stdout.strip()


def test_without_files_the_defaults_hold() -> None:
    assert fork_python(_PRINT_TYPES).stdout.strip() == _DEFAULT


@pytest.mark.slow
def test_lists_from_files_replace_the_defaults_to_the_letter_and_lower_wins(
    tmp_path: Path,
) -> None:
    types = _run_with_lists(tmp_path, "sin\nlog\ncos \r\nmatmul", "log\n")
    assert types == "bfloat16 float32 bfloat16 float32 bfloat16 bfloat16 bfloat16"


@pytest.mark.slow
def test_list_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "fp32").write_text("sin\n")
    env = {_LOWER_FILE: str(tmp_path / "absent"), _FP32_FILE: str(tmp_path / "fp32")}
    types = run_python(_PRINT_TYPES, env=env).stdout.strip()
    assert types == "bfloat16 bfloat16 float32 float32 float32 bfloat16 bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lower", "fp32", "types"),
    [
        ("sin\n", None, "float32 float32 bfloat16 float32 bfloat16 float32 float32"),
        (None, "sin\n", "bfloat16 bfloat16 float32 float32 float32 bfloat16 bfloat16"),
        ("log\n", "log\n", "float32 float32 float32 float32 bfloat16 bfloat16 bfloat16"),
        ("sin \r\nmatmul", None, "bfloat16 float32 float32 float32 bfloat16 float32 float32"),
    ],
    ids=["lower", "fp32", "lower-wins", "to-the-letter"],
)
def test_each_list_replaces_its_default_alone(
    lower: str | None, fp32: str | None, types: str, tmp_path: Path
) -> None:
    assert _run_with_lists(tmp_path, lower, fp32) == types
