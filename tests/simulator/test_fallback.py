"""The CPU's kernels on the card's memory: identity, views, mutation, devices, strides."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import _hpu_sim
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.arange(12.0, device="hpu").view(3, 4)


@pytest.fixture(params=["eager", "lazy"])
def mode(request: pytest.FixtureRequest) -> None:
    if request.param == "lazy":
        request.getfixturevalue("lazy")


# Identity and views


def test_in_place_result_is_the_argument(matrix: torch.Tensor) -> None:
    assert matrix.add_(1) is matrix
    out = torch.empty(0, device="hpu")
    assert torch.add(matrix, 1, out=out) is out


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:, ::2],
        lambda x: x.t(),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.diagonal(),
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.expand(2, 3, 4),
        lambda x: x.view(2, 6),
        lambda x: x.detach(),
        lambda x: torch.view_as_complex(x.view(3, 2, 2)),
        lambda x: x.view(torch.int32),
    ],
    ids=lambda view: None,
)
def test_views_share_the_memory_of_their_base(
    view: Callable[[torch.Tensor], torch.Tensor], matrix: torch.Tensor
) -> None:
    result, expected = view(matrix), view(matrix.cpu())
    assert result.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()
    assert result.stride() == expected.stride()
    assert result.storage_offset() == expected.storage_offset()
    assert torch.equal(result.cpu(), expected)
    matrix.zero_()
    assert not result.cpu().any()


def test_version_counters_follow_mutations(matrix: torch.Tensor) -> None:
    matrix.requires_grad_()
    squares = (matrix * 1).square()
    saved = matrix * 2
    product = saved * saved
    saved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    squares.sum().backward()
    assert torch.equal(matrix.grad.cpu(), 2 * matrix.detach().cpu())


def test_out_resizes_whatever_shares_nothing(matrix: torch.Tensor) -> None:
    out = torch.empty(0, device="hpu")
    torch.mm(matrix, matrix.t(), out=out)
    assert torch.equal(out.cpu(), matrix.cpu() @ matrix.cpu().t())
    values, indices = torch.empty(0, device="hpu"), torch.empty(0, dtype=torch.long, device="hpu")
    torch.sort(matrix, descending=True, out=(values, indices))
    assert torch.equal(values.cpu(), matrix.cpu().sort(descending=True).values)


def test_metadata_mutations_reach_the_tensor(matrix: torch.Tensor) -> None:
    expected = matrix.cpu()
    for tensor in (matrix, expected):
        tensor.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1).resize_(2, 2)
    assert (matrix.shape, matrix.stride()) == (expected.shape, expected.stride())
    assert torch.equal(matrix.cpu(), expected)


def test_one_tensor_as_several_arguments(matrix: torch.Tensor) -> None:
    expected = torch.addmm(matrix.cpu(), matrix.cpu() @ matrix.cpu().t(), matrix.cpu())
    assert torch.equal(torch.addmm(matrix, matrix @ matrix.t(), matrix).cpu(), expected)
    matrix.mul_(matrix).sub_(matrix.view(12).view(3, 4))
    assert not matrix.any()


def test_many_tensors_of_one_call(matrix: torch.Tensor) -> None:
    tensors = [matrix + number for number in range(100)]
    torch._foreach_add_(tensors, tensors)
    torch._foreach_mul_(tensors, 0.5)
    assert all(torch.equal(t.cpu(), matrix.cpu() + n) for n, t in enumerate(tensors))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_compute_as_on_the_cpu(matrix: torch.Tensor, dtype: torch.dtype) -> None:
    def step(device: str) -> list[torch.Tensor]:
        start = [matrix.to(device, dtype) + 1, matrix.t().to(device, dtype) + 2]
        weights, means, squares = ([tensor.clone() for tensor in start] for _ in range(3))
        torch._foreach_mul_(weights, 0.9)
        torch._foreach_lerp_(means, weights, 0.1)
        torch._foreach_addcmul_(squares, weights, weights, 0.5)
        roots = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(roots, [2.0, 3.0])
        torch._foreach_add_(roots, 1e-3)
        torch._foreach_addcdiv_(weights, means, roots, [-0.1, -0.2])
        return [*weights, *means, *squares, *roots]

    for ours, theirs in zip(step("hpu"), step("cpu"), strict=True):
        assert ours.device.type == "hpu"
        assert ours.dtype == dtype
        assert torch.equal(ours.cpu(), theirs)


def test_conjugate_and_negative_views_keep_their_bits() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j], device="hpu")
    assert numbers.conj().is_conj()
    assert torch.equal((numbers.conj() * 2).cpu(), numbers.cpu().conj() * 2)
    assert torch.equal(numbers.conj().imag.cpu(), numbers.cpu().conj().imag)


def test_python_numbers_do_not_promote(matrix: torch.Tensor) -> None:
    assert (matrix.bfloat16() * 2.5).dtype == torch.bfloat16
    assert (matrix.int() + torch.tensor(1)).dtype == torch.int32
    assert (matrix.int() + 1.5).dtype == torch.float32


def test_int64_stays_int64() -> None:
    """Gaudi's lazy mode would make it int32; the simulated card keeps it."""
    large = torch.tensor([2**40], device="hpu")
    assert (large + 1).item() == 2**40 + 1


# Devices


@pytest.mark.parametrize(
    "mix",
    [
        lambda hpu, cpu: hpu + cpu,
        lambda hpu, cpu: cpu.add_(hpu),
        lambda hpu, cpu: torch.cat([cpu, hpu]),
        lambda hpu, cpu: torch.where(hpu > 0, cpu, hpu),
        lambda hpu, cpu: cpu[torch.tensor([0], device="hpu")],
        lambda hpu, cpu: hpu.index_put_((torch.tensor([0]),), cpu[0]),
        lambda hpu, cpu: torch.add(hpu, hpu, out=cpu),
    ],
    ids=lambda mix: None,
)
def test_tensors_of_two_devices_are_refused_by_argument(
    mix: Callable[..., Any], matrix: torch.Tensor
) -> None:
    message = r"at least two devices, hpu:0 and cpu! Argument '\w+' of aten::[\w.]+"
    with pytest.raises(RuntimeError, match=message):
        mix(matrix, matrix.cpu())


def test_what_may_stay_on_the_host(matrix: torch.Tensor) -> None:
    assert torch.equal(matrix[torch.tensor([1])].cpu(), matrix.cpu()[1:2])
    matrix[torch.tensor([0])] = 7.0
    matrix += torch.tensor(1.0)
    assert matrix[0, 0] == 8
    scalars = torch.tensor([2.0, 3.0])
    one, two = torch._foreach_addcmul([matrix] * 2, [matrix] * 2, [matrix] * 2, scalars)
    assert torch.equal(two - one, matrix * matrix)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("write", "operator"),
    [
        (lambda cpu, hpu: cpu.add_(hpu), r"'self' of aten::add_\.Tensor"),
        (lambda cpu, hpu: cpu.addcmul_(hpu, hpu), "'self' of aten::addcmul_"),
        (lambda cpu, hpu: cpu.bitwise_or_(hpu.bool()), r"'self' of aten::bitwise_or_\.Tensor"),
        (lambda cpu, hpu: torch.add(hpu, hpu, out=cpu), r"'out' of aten::add\.out"),
        (lambda cpu, hpu: torch.sum(hpu, (), out=cpu), r"'out' of aten::sum\.IntList_out"),
        (lambda cpu, hpu: torch._foreach_add_([hpu, cpu], [hpu, hpu]), r"'self' of aten::.*add_.*"),
        (lambda cpu, hpu: torch._foreach_mul_([hpu, cpu], 2), r"'self' of aten::_foreach_mul_.*"),
    ],
    ids=[
        "unboxed",
        "unboxed of three",
        "boxed",
        "out",
        "out of a reduction",
        "foreach",
        "foreach unboxed",
    ],
)
def test_number_of_the_host_is_not_written_by_the_card(
    write: Callable[..., Any], operator: str
) -> None:
    """As on CUDA: the host would otherwise wait for every such write without a word."""
    total = torch.tensor(0, dtype=torch.bool if "bitwise" in operator else torch.float32)
    with pytest.raises(
        RuntimeError,
        match=rf"hpu:0 and cpu! Argument {operator} is the other one: it is written.* \.item\(\)",
    ):
        write(total, torch.tensor(1.0, device="hpu"))
    assert total == 0


def test_a_running_total_on_the_host_takes_a_value_off_the_card() -> None:
    loss, total = torch.tensor(1.5, device="hpu"), torch.tensor(0.0)
    with pytest.raises(RuntimeError, match="it is written"):
        total += loss
    total += loss.item()
    total.copy_(total + loss.cpu())
    assert total == 3


def test_results_asked_for_on_the_host_are_there(matrix: torch.Tensor) -> None:
    assert torch.zeros_like(matrix, device="cpu").device.type == "cpu"
    assert matrix.new_ones(2, device="cpu").device.type == "cpu"
    assert torch.rand_like(matrix, device="cpu").device.type == "cpu"


@pytest.mark.parametrize("make", [torch.zeros, torch.randn, torch.randperm])
def test_another_card_is_refused(make: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"hpu:1 does not exist in this process"):
        make(3, device="hpu:1")


# What the card does not do

LAYOUTS: list[tuple[torch.layout, Any]] = [
    *((torch.sparse_coo, None), (torch.sparse_csr, None), (torch.sparse_csc, None)),
    *((torch.sparse_bsr, (1, 1)), (torch.sparse_bsc, (1, 1))),
]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.sparse_coo_tensor(x[:1].long(), x[0], (12,)),
        *(
            lambda x, layout=layout, size=size: (
                x.cpu().to_sparse(layout=layout, blocksize=size).to("hpu")
            )
            for layout, size in LAYOUTS
        ),
        lambda x: (
            functional.embedding(
                x[0].long(), torch.ones(9, 2, device="hpu", requires_grad=True), sparse=True
            )
            .sum()
            .backward()
        ),
    ],
    ids=["coo", "csr", "constructor", *(f"copy of {layout}" for layout, _ in LAYOUTS), "embedding"],
)
def test_sparse_tensors_are_refused(make: Callable[..., Any], matrix: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError, match="parse tensors are not supported on HPU"):
        make(matrix)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "Quantized.*quint8"),
        (lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).to("hpu"), "Quantized"),
        (
            lambda x: torch._empty_affine_quantized(
                [2], scale=0.1, zero_point=0, dtype=torch.quint8, device="hpu"
            ),
            "Quantized",
        ),
        (
            lambda x: torch._nested_tensor_from_mask(x[None], torch.ones(1, 3).bool().to("hpu")),
            "Nested.*Pad to one length",
        ),
        (lambda x: x.to_mkldnn(), "oneDNN's.*to_mkldnn"),
    ],
    ids=["quantized", "moved", "made", "nested", "mkldnn"],
)
def test_what_is_no_plain_array_is_refused_and_named(
    make: Callable[..., Any], message: str, matrix: torch.Tensor
) -> None:
    before = _hpu_sim.memory_stats()["InUse"]
    with pytest.raises(NotImplementedError, match=message):
        make(matrix)
    assert _hpu_sim.memory_stats()["InUse"] == before


def test_dlpack_and_queues_say_that_they_cannot(matrix: torch.Tensor) -> None:
    with pytest.raises(BufferError, match="Cannot pack tensors on hpu:0"):
        matrix.__dlpack__()
    with pytest.raises(RuntimeError, match="only available on CPU"):
        ForkingPickler.dumps(matrix)


# What the card does and the CPU does not


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.cdist(x, x + 1),
        lambda x: torch.pdist(x),
        lambda x: functional.multi_margin_loss(x, torch.tensor([1, 0, 2]).to(x.device)),
        lambda x: functional.multilabel_margin_loss(x, x.detach().argsort(-1)),
        lambda x: torch.special.erfcx(x),
    ],
    ids=["cdist", "pdist", "multi_margin_loss", "multilabel_margin_loss", "erfcx"],
)
def test_reduced_floats_compute_in_fp32_and_come_back(
    run: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    source = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    on_card = source.to("hpu").requires_grad_()
    on_host = source.float().requires_grad_()
    result, expected = run(on_card), run(on_host)
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu(), expected.to(dtype))
    if result.grad_fn is None or "Erfcx" in type(result.grad_fn).__name__:
        return  # torch has no derivative, or needs another one
    result.sum().backward()
    expected.sum().backward()
    assert on_card.grad.dtype == dtype
    torch.testing.assert_close(on_card.grad.cpu().float(), on_host.grad, rtol=0.02, atol=0.01)


def test_take_accepts_int32_indices(matrix: torch.Tensor) -> None:
    indices = torch.tensor([0, 5], dtype=torch.int32, device="hpu")
    assert torch.equal(matrix.take(indices).cpu(), torch.tensor([0.0, 5.0]))


WIDENED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.dtype, ...]]] = {
    "avg_pool3d": (
        lambda x: functional.avg_pool3d(x.reshape(1, 1, 2, 4, 6), 2),
        (torch.bfloat16, torch.float16),
    ),
    "bilinear, antialiased": (
        lambda x: functional.interpolate(
            x.reshape(1, 2, 4, 6), (3, 3), mode="bilinear", antialias=True
        ),
        (torch.bfloat16, torch.float16),
    ),
    "bicubic, antialiased": (
        lambda x: functional.interpolate(
            x.reshape(1, 2, 4, 6), (3, 3), mode="bicubic", antialias=True
        ),
        (torch.bfloat16, torch.float16),
    ),
    "histc": (lambda x: x.histc(5, 0, 9), (torch.int32, torch.int64, torch.uint8)),
    "lerp": (lambda x: torch.lerp(x, x + 4, 3), (torch.int32, torch.int64)),
    "lerp_": (lambda x: x.clone().lerp_(x + 4, 3), (torch.int32,)),
    "nearest": (
        lambda x: functional.interpolate(x.reshape(1, 2, 4, 6), (8, 8)),
        (torch.int32, torch.int64, torch.int8, torch.bool),
    ),
    "erfcx, out": (
        lambda x: torch.special.erfcx(x, out=torch.empty(0, dtype=x.dtype, device=x.device)),
        (torch.bfloat16,),
    ),
    "abs": (torch.abs, (torch.bool,)),
}
"""What accelerators have in types for which the CPU has no kernel."""


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, each) for name, (_, dtypes) in WIDENED.items() for each in dtypes]
)
def test_types_without_a_kernel_of_the_cpu_are_computed_in_wider_ones(
    name: str, dtype: torch.dtype
) -> None:
    operate, _ = WIDENED[name]
    values = torch.arange(48).mul(0.37).remainder(9).to(dtype)
    with pytest.raises((NotImplementedError, RuntimeError)):
        operate(values)
    result = operate(values.to("hpu"))
    wide = torch.float32 if dtype.is_floating_point else torch.float64
    assert result.dtype == dtype
    assert torch.equal(result.cpu(), operate(values.to(wide)).to(dtype))


def test_integers_are_drawn_uniformly() -> None:
    drawn = torch.empty(1000, dtype=torch.int32, device="hpu").uniform_(-50, 10)
    assert drawn.dtype == torch.int32
    assert -50 <= drawn.min() < -40
    assert 0 < drawn.max() <= 10


def test_gradients_of_a_pooling_in_half_are_those_of_float32() -> None:
    values = torch.arange(48.0).reshape(1, 1, 2, 4, 6)
    gradients = []
    for tensor in (values.to("hpu", torch.float16), values):
        tensor.requires_grad_()
        functional.avg_pool3d(tensor, 2).square().sum().backward()
        gradients.append(tensor.grad.cpu().float())
    assert torch.allclose(*gradients, rtol=1e-3)


# Attention


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
def test_attention_equals_that_of_the_cpu(mask: str | None, dropout: float) -> None:
    # (B, T, H, D) seen as (B, H, T, D), as a model's projections give it.
    source = torch.randn(3, 2, 16, 4, 8, generator=torch.Generator().manual_seed(0))

    def run(device: str) -> list[torch.Tensor]:
        torch.default_generator.manual_seed(0)
        _hpu_sim.default_generator().manual_seed(0)
        query, key, value = (part.to(device).transpose(1, 2).requires_grad_() for part in source)
        allowed = torch.ones(16, 16, dtype=torch.bool).tril().to(device)
        masks = {"bool": allowed, "float": allowed.float().log()}
        result = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=masks.get(mask or ""),
            dropout_p=dropout,
            is_causal=mask == "causal",
        )
        result.square().sum().backward()
        return [result.detach().cpu(), *(part.grad.cpu() for part in (query, key, value))]

    for on_card, on_host in zip(run("hpu"), run("cpu"), strict=True):
        assert torch.equal(on_card, on_host)
        assert on_card.stride() == on_host.stride()


def test_attention_takes_the_fused_kernel_where_the_cpu_does() -> None:
    query = torch.randn(1, 2, 8, 4, device="hpu", requires_grad=True)
    fused = functional.scaled_dot_product_attention(query, query, query)
    composed = functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)
    assert "FlashAttention" in type(fused.grad_fn).__name__
    assert "FlashAttention" not in type(composed.grad_fn).__name__


# Strides


@pytest.fixture
def strided() -> list[torch.Tensor]:
    image = torch.randn(2, 3, 4, 4, device="hpu").to(memory_format=torch.channels_last)
    return [torch.randn(3, 4, device="hpu").t(), image]


POINTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + x,
    "gelu": functional.gelu,
    "where": lambda x: torch.where(x > 0, x, 0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "clone": torch.clone,
    "empty_like": torch.empty_like,
    "to": lambda x: x.to(torch.bfloat16),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort().values,
}


@pytest.mark.parametrize("name", POINTWISE)
def test_strides_are_those_that_fake_tensors_predict(
    name: str, strided: list[torch.Tensor]
) -> None:
    for tensor in strided:
        with FakeTensorMode() as mode:
            predicted = POINTWISE[name](mode.from_tensor(tensor))
        assert POINTWISE[name](tensor).stride() == predicted.stride()
