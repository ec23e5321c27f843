"""For every rule that a card or an audit can say, the programs that its advice leads to.

Each takes the device; a rule has one for each way out that its sentence names. A collective's also
expects a default process group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.nn import functional

from lightning_gaudi.data import worker_context
from lightning_gaudi.tools.verify.programs.collectives import _ones, _shares
from lightning_gaudi.tools.verify.programs.values import on, positive, symmetric, uniform

Remedy = Callable[[torch.device], object]
linalg = torch.linalg
CPU = torch.device("cpu")


def _on_cpu(compute: Callable[[torch.Tensor], object], value: Remedy) -> Remedy:
    """What f(x.cpu()).to(x.device) gives."""

    def remedy(device: torch.device) -> object:
        result = compute(value(device).cpu())
        tensors = result if isinstance(result, tuple) else (result,)
        return tuple(each.to(device) for each in tensors)

    return remedy


def _uniform(*shape: int) -> Remedy:
    return lambda device: uniform(*shape, device=device)


def _symmetric(device: torch.device) -> torch.Tensor:
    return symmetric(3, device=device)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _gradient(loss: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Remedy:
    def remedy(device: torch.device) -> object:
        x = uniform(*shape, device=device).requires_grad_()
        loss(x).sum().backward()
        return x.grad

    return remedy


def _step(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Remedy:
    def remedy(device: torch.device) -> object:
        weight = uniform(4, device=device).requires_grad_()
        optimizer = make([weight])
        weight.sum().backward()
        optimizer.step()
        return weight.detach()

    return remedy


def _vendor_sgd(weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    if weights[0].device.type == "cpu":
        return torch.optim.SGD(weights, lr=0.1)
    from habana_frameworks.torch.hpex.optimizers import FusedSGD  # noqa: TID251

    return FusedSGD(weights, lr=0.1)


def _bfloat16_step(device: torch.device) -> object:
    layer = torch.nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with torch.autocast(device.type, torch.bfloat16):
        layer(uniform(2, 2, device=device)).sum().backward()
    optimizer.step()
    return None


def _bag_of_embeddings(device: torch.device) -> object:
    return functional.embedding(on(device, [[0, 1]]), uniform(4, 2, device=device)).mean(1)


def _bag_with_gradients(device: torch.device) -> object:
    weight = uniform(4, 2, device=device).requires_grad_()
    return functional.embedding_bag(on(device, [[0, 1]]), weight).detach()


def _weighted_bag(device: torch.device) -> object:
    weight = uniform(4, 2, device=device).requires_grad_()
    each = uniform(1, 2, device=device).requires_grad_()
    (functional.embedding(on(device, [[0, 1]]), weight) * each[..., None]).sum(1).sum().backward()
    return weight.grad, each.grad


def _dense_bag(device: torch.device) -> object:
    weight = uniform(4, 2, device=device).requires_grad_()
    functional.embedding_bag(
        on(device, [[0, 1]]), weight, mode="sum", sparse=False
    ).sum().backward()
    return weight.grad


def _deterministic_embeddings(device: torch.device) -> object:
    weight = uniform(4, 2, device=device).requires_grad_()
    with _deterministic():
        functional.embedding(on(device, [[0, 1]]), weight).sum(1).sum().backward()
    return weight.grad


def _kept_batch_norm(device: torch.device) -> object:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).to(device).bfloat16()
    model[0].float()
    return model(uniform(4, 2, device=device).bfloat16())


def _autocast_batch_norm(device: torch.device) -> object:
    norm = torch.nn.BatchNorm1d(2).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        return norm(uniform(4, 2, device=device).bfloat16())


def _weight_norm(dtype: torch.dtype) -> Remedy:
    def remedy(device: torch.device) -> object:
        torch.manual_seed(0)
        layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
        return layer.to(device, dtype)(uniform(2, 2, device=device).to(dtype)).detach()

    return remedy


def _written(dtype: torch.dtype) -> Remedy:
    """What `_write` of the provocations writes, in a type that has it."""

    def remedy(device: torch.device) -> object:
        x = positive(4, device=device).to(dtype)
        x[on(device, [0, 2])] = positive(2, device=device).to(dtype)
        return x

    return remedy


def _where_instead_of_write(device: torch.device) -> object:
    x = positive(4, device=device).half()
    chosen = on(device, [True, False, True, False])
    return torch.where(chosen, positive(4, device=device).half(), x)


def _write_flat(device: torch.device) -> object:
    x = uniform(2, 1, 1, 1, 1, 2, device=device)
    x.flatten(1)[on(device, [1])] = 0.0
    return x


def _select_flat(device: torch.device) -> object:
    x = uniform(2, 1, 1, 1, 1, 2, device=device)
    return x.flatten(1).index_select(0, on(device, [1])).unflatten(1, x.shape[1:])


def _masked_select_flat(device: torch.device) -> object:
    x, mask = uniform(2, 1, 1, 1, 1, 2, device=device), on(device, [True, False])
    return x.flatten(1).masked_select(mask)


def _conv_unfold(device: torch.device) -> object:
    kernel = torch.eye(4).view(4, 1, 2, 2).to(device)
    return functional.conv2d(uniform(1, 1, 4, 4, device=device), kernel).flatten(2)


def _tensor_unfold(device: torch.device) -> object:
    windows = uniform(1, 1, 4, 4, device=device).unfold(2, 2, 1).unfold(3, 2, 1)
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(1, 4, 9)


def _patches(device: torch.device) -> object:
    """Of stride 2, which do not overlap."""
    x = uniform(1, 1, 4, 4, device=device).reshape(1, 1, 2, 2, 2, 2)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(1, 4, 4)


def _folded_by_convolution(device: torch.device) -> object:
    kernel = torch.eye(4).view(4, 1, 2, 2).to(device)
    columns = uniform(1, 4, 4, device=device).unflatten(2, (2, 2))
    return functional.conv_transpose2d(columns, kernel, stride=2)


def _folded_by_reshape(device: torch.device) -> object:
    x = uniform(1, 4, 4, device=device).reshape(1, 1, 2, 2, 2, 2)
    return x.permute(0, 1, 4, 2, 5, 3).reshape(1, 1, 4, 4)


def _fake_quantized(device: torch.device) -> object:
    x = uniform(4, device=device)
    rounded = (x / 0.1).round().clamp(0, 255) * 0.1
    return x + (rounded - x).detach()


def _masked_write(device: torch.device) -> object:
    x, columns = uniform(4, 4, device=device), on(device, [True, False, True, False])
    mask = columns.expand(4, 4)
    return torch.where(mask, torch.zeros_like(x), x)


def _write_by_where(device: torch.device) -> object:
    x = uniform(4, device=device)
    return torch.where(x > 0.5, on(device, 1.0), x)


def _write_by_fill(device: torch.device) -> object:
    x = uniform(4, device=device)
    return x.masked_fill_(x > 0.5, 1.0)


def _kept_shape(device: torch.device) -> object:
    x, mask = positive(8, device=device), uniform(8, device=device) > 0.5
    return torch.where(mask, x, 0.0).sum(), (x * mask).sum()


def _experts(device: torch.device) -> object:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        **{"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2},
        experts_implementation="batched_mm",
    )
    model = MixtralForCausalLM(config).eval().to(device)
    with torch.no_grad():
        return model(on(device, [[1, 2, 3]])).logits


def _multiplied_by_own_expert(device: torch.device) -> object:
    tokens, experts = uniform(6, 8, device=device), uniform(2, 8, 16, device=device)
    own = experts.index_select(0, on(device, [0, 0, 1, 1, 1, 1]))
    return torch.bmm(tokens[:, None], own).squeeze(1)


def _not_blocking(device: torch.device) -> object:
    return torch.empty(4).copy_(uniform(4, device=device), non_blocking=True)


def _narrow_to_host(dtype: torch.dtype) -> Remedy:
    return lambda device: torch.empty(4, dtype=dtype).copy_(
        positive(4, device=device).to(dtype), non_blocking=True
    )


def _uint8_write(device: torch.device) -> object:
    x, mask = uniform(4, device=device), on(device, [1, 0, 1, 0]).to(torch.uint8)
    return x.index_put_((mask.bool(),), uniform(2, device=device))


def _clone_first(device: torch.device) -> object:
    x = positive(4, device=device)
    return torch.ops.aten.scatter(x, 0, on(device, [1, 0, 3, 2]), x.clone())


def _attend(dtype: torch.dtype) -> Remedy:
    def remedy(device: torch.device) -> object:
        tensors = uniform(3, 1, 2, 8, 4, device=device).to(dtype)
        return functional.scaled_dot_product_attention(*tensors)

    return remedy


def _fused_bfloat16(device: torch.device) -> object:
    tensors = uniform(3, 1, 2, 8, 4, device=device).bfloat16()
    return torch.ops.hpu.sdpa_recomp_fwd(
        *tensors, None, 0.0, 0.5, False, False, "none", None, "left"
    )


def _whole_weights(device: torch.device) -> object:
    return uniform(2, 4, device=device).bfloat16() @ positive(4, 2, device=device).bfloat16()


def _nf4_in_bfloat16(device: torch.device) -> object:
    packed, scales = on(device, [7, 120]).byte(), torch.ones(1, device=device).bfloat16()
    return torch.ops.hpu.dequantize_nf4(packed, scales, 64, (4,), torch.bfloat16)


def _safe_worker(device: torch.device) -> object:
    torch.ones(1, device=device)
    data = torch.utils.data.TensorDataset(torch.arange(4))
    loader = torch.utils.data.DataLoader(
        data, 2, num_workers=1, multiprocessing_context=worker_context()
    )
    return torch.cat([rows for (rows,) in loader])


def _segments(device: torch.device) -> object:
    rows = on(device, [0, 1, 1, 1])
    return torch.zeros(2, device=device).index_add(0, rows, uniform(4, device=device))


def _scattered_segments(device: torch.device) -> object:
    rows = on(device, [0, 1, 1, 1])
    zeros = torch.zeros(2, device=device)
    return zeros.scatter_reduce(0, rows, uniform(4, device=device), "sum")


def _counted(device: torch.device) -> object:
    return functional.one_hot(on(device, [3, 1, 3]), 4).sum(0)


def _counted_by_scatter(device: torch.device) -> object:
    x = on(device, [3, 1, 3])
    return torch.zeros(4, device=device).scatter_add_(0, x, torch.ones(3, device=device)).long()


def _repeated(device: torch.device) -> object:
    repeats = on(device, [1, 0, 2])
    return torch.repeat_interleave(uniform(3, device=device), repeats, output_size=3)


def _scaled(device: torch.device) -> object:
    value = torch.tensor([1e300], dtype=torch.float64)
    return (value / 1e290).float().to(device).clone()


def _quantized_decomposed(device: torch.device) -> object:
    import torch.ao.quantization.fx._decomposed

    return torch.ops.quantized_decomposed.quantize_per_tensor(
        uniform(4, device=device), 0.1, 0, -128, 127, torch.int8
    )


def _dense_embedding(device: torch.device) -> object:
    layer = torch.nn.Embedding(4, 2, sparse=False).to(device)
    layer(on(device, [0, 1])).sum().backward()
    return layer.weight.grad


def _cholesky_solved(device: torch.device) -> object:
    matrix = symmetric(3, device=device)
    return torch.cholesky_inverse(linalg.cholesky(matrix)) @ uniform(3, 1, device=device)


def _neighbours(device: torch.device) -> object:
    x = on(device, [1, 1, 2])
    return x[1:] != x[:-1]


def _scatter_added(dtype: torch.dtype) -> Remedy:
    return lambda device: (
        on(device, [0, 0]).to(dtype).scatter_add_(0, on(device, [1]), on(device, [5]).to(dtype))
    )


def _layer_normalized(dtype: torch.dtype) -> Remedy:
    return lambda device: functional.layer_norm(uniform(2, 4, device=device).to(dtype), (4,))


def _softmax(dtype: torch.dtype) -> Remedy:
    return lambda device: functional.softmax(uniform(2, 4, device=device).to(dtype), dim=1)


def _prelu(dtype: torch.dtype) -> Remedy:
    return lambda device: (
        torch.nn.PReLU().to(device, dtype)(uniform(4, device=device).to(dtype)).detach()
    )


OF_OPERATORS: dict[str, tuple[Remedy, ...]] = {
    "complex-views-refused": (lambda device: uniform(4, 2, device=device),),
    "float64-demoted": (
        lambda device: uniform(4, device=device) + 1,
        lambda device: (uniform(4, device=device).cpu().double() + 1).float().to(device),
    ),
    "float64-overflows": (_scaled,),
    "float64-beyond-float32-refused": (_scaled,),
    "int64-as-int32": (
        lambda device: on(device, [2**31 - 2]) + 1,
        lambda device: ((torch.tensor([2**31 - 1]) + 1) % 2**31).to(device),
    ),
    "int64-as-int32-on-gaudi1": (
        lambda device: on(device, [2**31 - 2]) + 1,
        lambda device: ((torch.tensor([2**31 - 1]) + 1) % 2**31).to(device),
    ),
    "int64-beyond-int32-refused": (
        lambda device: (torch.tensor([2**40 + 7]) % 2**31).to(device).clone(),
    ),
    "complex-refused": (
        lambda device: torch.view_as_real(torch.ones(4, dtype=torch.complex64)).to(device),
        lambda device: torch.ones(4, dtype=torch.complex64).abs().to(device),
    ),
    "fft-refused": (
        lambda device: torch.view_as_real(torch.fft.rfft(uniform(8, device=device).cpu())).to(
            device
        ),
    ),
    "eigenvalues-refused": (
        lambda device: torch.view_as_real(linalg.eigvals(uniform(3, 3, device=device).cpu())).to(
            device
        ),
    ),
    "unsigned-refused": (lambda device: torch.ones(4, dtype=torch.int32).to(device) + 1,),
    "float8-variants-refused": (
        lambda device: torch.ones(4).to(torch.float8_e4m3fn).to(device).view(torch.uint8),
        lambda device: torch.ones(4).to(torch.float8_e5m2).to(device).view(torch.uint8),
    ),
    "float16-refused-on-gaudi1": (lambda device: uniform(4, device=device).to(torch.bfloat16) + 1,),
    "float8-refused-on-gaudi1": (lambda device: uniform(4, device=device).to(torch.bfloat16) + 1,),
    "quantized-refused": (
        _quantized_decomposed,
        lambda device: uniform(4, device=device).to(torch.float8_e4m3fn),
    ),
    "sparse-refused": (_dense_embedding,),
    "copy-over-8-dims-refused": (
        lambda device: torch.empty(1, device=device).copy_(torch.zeros(9 * [1]).reshape(1)),
    ),
    "triangular-solve-on-cpu": (
        _cholesky_solved,
        _on_cpu(
            lambda matrix: linalg.solve_triangular(matrix, torch.ones(3, 1), upper=True),
            _symmetric,
        ),
    ),
    "householder-on-cpu": (lambda device: tuple(linalg.qr(uniform(3, 3, device=device))),),
    "unique-consecutive-on-cpu": (_neighbours,),
    "adaptive-max-pool-backward-on-cpu": (
        _gradient(lambda x: functional.max_pool2d(x, 2), 1, 1, 4, 4),
        _gradient(lambda x: functional.adaptive_avg_pool2d(x, 2), 1, 1, 4, 4),
    ),
    "fractional-max-pool-on-cpu": (
        lambda device: functional.max_pool2d(uniform(1, 1, 4, 4, device=device), 2),
        lambda device: functional.avg_pool2d(uniform(1, 1, 4, 4, device=device), 2),
    ),
    "gamma-samples-on-cpu": (
        lambda device: torch.distributions.Gamma(*positive(2, 4, device=CPU)).sample().to(device),
        lambda device: torch.randn(4, device=device).square(),
        lambda device: torch.tan(3.14 * (torch.rand(4, device=device) - 0.5)),
    ),
    "fused-sgd-on-cpu": (
        _step(lambda weights: torch.optim.SGD(weights, lr=0.1, fused=False)),
        _step(lambda weights: torch.optim.Adagrad(weights, lr=0.1, fused=False)),
        _step(_vendor_sgd),
    ),
    "fused-adamw-tensor-lr-on-cpu": (
        _step(lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True)),
        _step(lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=False)),
    ),
    "grad-scaler-update-on-cpu": (_bfloat16_step,),
    "grad-scaler-unscale-on-cpu": (_bfloat16_step,),
    "embedding-bag-weights-on-cpu": (_weighted_bag,),
    "nonzero-static-on-cpu": (
        lambda device: torch.where(on(device, [1, 0, 2]) != 0, on(device, [5, 6, 7]), 0),
        lambda device: (on(device, [1, 0, 2]) != 0).int().topk(2).indices,
    ),
    "assert-async-message-on-cpu": (lambda device: torch._assert_async(on(device, [1])),),
    "no-kernel": (_on_cpu(lambda x: torch.max(x, 0), _uniform(4)),),
    "index-put-float16-on-cpu": (_written(torch.bfloat16), _where_instead_of_write),
    "index-put-lazy-types-on-cpu": (_written(torch.int32), _written(torch.float32)),
    "scatter-add-lazy-types-on-cpu": tuple(
        map(_scatter_added, (torch.int64, torch.float32, torch.bfloat16))
    ),
    "layer-norm-float64-on-cpu": tuple(map(_layer_normalized, (torch.float32, torch.bfloat16))),
    "softmax-float64-on-cpu": tuple(map(_softmax, (torch.float32, torch.bfloat16))),
    "batch-norm-parameters-on-cpu": (_kept_batch_norm, _autocast_batch_norm),
    "weight-norm-float64-on-cpu": tuple(map(_weight_norm, (torch.float32, torch.bfloat16))),
    "prelu-float64-on-cpu": tuple(map(_prelu, (torch.float32, torch.bfloat16))),
    "embedding-bag-backward-on-cpu": (_dense_bag, _deterministic_embeddings),
    "index-put-over-5-dims-on-cpu": (_write_flat,),
    "sync-batch-norm-refused": (
        lambda device: torch.nn.BatchNorm1d(2).to(device)(uniform(4, 2, device=device)).detach(),
        lambda device: torch.nn.GroupNorm(1, 2).to(device)(uniform(4, 2, device=device)).detach(),
    ),
    "nonzero-dynamic": (_kept_shape,),
    "masked-select-dynamic": (_kept_shape,),
    "mask-index-dynamic": (_kept_shape,),
    "dynamic-shape": (_kept_shape,),
    "mask-beside-indices-dynamic": (_masked_write,),
    "mask-write-waits": (_write_by_where, _write_by_fill),
    "grouped-mm-dynamic": (_experts, _multiplied_by_own_expert),
    "value-on-host": (
        lambda device: uniform(4, device=device).isclose(positive(4, device=device)).all(),
    ),
    "item-waits": (lambda device: uniform(4, device=device).sum(),),
    "equal-waits": (
        lambda device: (uniform(4, device=device) == positive(4, device=device)).all(),
    ),
    "copy-to-host-waits": (_not_blocking,),
    "float64-copy-always-waits": (_narrow_to_host(torch.float32),),
    "int64-copy-always-waits": (_narrow_to_host(torch.int32),),
    "int64-copy-always-waits-on-gaudi1": (_narrow_to_host(torch.int32),),
    "uint8-mask-as-indices": (_uint8_write,),
    "fused-attention-refused-on-gaudi1": (_attend(torch.float32),),
    "fused-attention-in-float16": (_fused_bfloat16, _attend(torch.float16)),
    "nf4-refused-on-gaudi1": (_whole_weights,),
    "nf4-in-float16": (_nf4_in_bfloat16,),
    "fork-beside-card": (_safe_worker,),
    "svd-on-cpu": (_on_cpu(linalg.svd, _uniform(3, 3)),),
    "eigh-on-cpu": (_on_cpu(linalg.eigh, _symmetric),),
    "solve-on-cpu": (
        _on_cpu(linalg.inv, _symmetric),
        lambda device: torch.cholesky_inverse(linalg.cholesky(_symmetric(device))),
    ),
    "lu-on-cpu": (_on_cpu(linalg.lu, _symmetric),),
    "lstsq-on-cpu": (_on_cpu(lambda both: tuple(linalg.lstsq(*both)), _uniform(2, 3, 3)),),
    "ldl-on-cpu": (_on_cpu(linalg.ldl_factor, _symmetric),),
    "matrix-exp-on-cpu": (_on_cpu(linalg.matrix_exp, _symmetric),),
    "polygamma-on-cpu": (
        _on_cpu(lambda x: torch.polygamma(1, x), lambda device: positive(4, device=device)),
    ),
    "mode-on-cpu": (_on_cpu(torch.mode, lambda device: on(device, [1, 1, 2])),),
    "cummax-on-cpu": (_on_cpu(lambda x: torch.cummax(x, 0), _uniform(4)),),
    "special-functions-on-cpu": (_on_cpu(torch.special.i0e, _uniform(4)),),
    "fold-on-cpu": (_folded_by_convolution, _folded_by_reshape),
    "unfold-on-cpu": (_conv_unfold, _tensor_unfold),
    "unfold-on-cpu-but-vit-patches": (_conv_unfold,),
    "tensor-unfold-on-cpu": (
        lambda device: torch.stack([uniform(4, device=device)[i : i + 2] for i in range(3)]),
    ),
    "gcd-on-cpu": (_on_cpu(lambda both: torch.gcd(*both), lambda device: on(device, [[4], [6]])),),
    "fake-quantize-on-cpu": (_fake_quantized,),
    "segment-reduce-on-cpu": (_segments, _scattered_segments),
    "embedding-bag-inference-on-cpu": (_bag_of_embeddings, _bag_with_gradients),
    "histogramdd-on-cpu": (_on_cpu(lambda x: torch.histogramdd(x, [2, 2]).hist, _uniform(4, 2)),),
    "nonzero-types-on-cpu": (
        lambda device: torch.nonzero(on(device, [0, 1]).to(torch.uint8) != 0),
    ),
    "nonzero-float16-on-cpu": (
        lambda device: torch.nonzero(uniform(4, device=device).half() != 0),
    ),
    "masked-select-types-on-cpu": (
        lambda device: (
            on(device, [1, 2]).to(torch.uint8).int().masked_select(on(device, [True, False]))
        ),
    ),
    "masked-select-lazy-types-on-cpu": (
        lambda device: (
            uniform(2, device=device).half().float().masked_select(on(device, [True, False]))
        ),
    ),
    "unique-types-on-cpu": (lambda device: torch.unique(uniform(4, device=device).half().float()),),
    "where-condition-on-cpu": (
        lambda device: torch.where(
            on(device, [1, 0]).to(torch.uint8).bool(), *uniform(2, 2, device=device)
        ),
    ),
    "sort-lazy-types-on-cpu": (lambda device: tuple(torch.sort(on(device, [2, 1]).int())),),
    "masked-select-over-5-dims-on-cpu": (_masked_select_flat,),
    "index-select-over-5-dims-on-cpu": (_select_flat,),
    "unique-over-4-dims-on-cpu": (
        lambda device: torch.unique(uniform(2, 1, 1, 1, 2, device=device).flatten()),
    ),
    "lazy-over-5-dims-on-cpu": (
        lambda device: tuple(torch.sort(uniform(2, 1, 1, 1, 1, 2, device=device).flatten(1, 4))),
    ),
    "bincount-dynamic": (_counted, _counted_by_scatter),
    "repeat-interleave-dynamic": (_repeated,),
    "unique-dynamic": (lambda device: torch.unique(torch.tensor([3, 1, 3])).to(device),),
    "gather-of-int64-wrong": (
        lambda device: torch.gather(on(device, [5, 6, 7]).int(), 0, on(device, [2, 0])),
        lambda device: on(device, [5, 6, 7]).index_select(0, on(device, [2, 0])),
    ),
    "scatter-from-itself-wrong": (_clone_first,),
    "masked-fill-of-int64-refused": (
        lambda device: on(device, [5, 6]).int().masked_fill_(on(device, [5, 6]) == 5, 0),
        lambda device: torch.where(on(device, [5, 6]) == 5, 0, on(device, [5, 6])),
    ),
    "nonzero-out-untouched": (lambda device: torch.nonzero(uniform(4, device=device) > 0.5),),
    "bincount-in-32-bits": (
        lambda device: (
            torch.bincount(torch.tensor([1, 1]), weights=uniform(2, device=device).cpu().double())
            .float()
            .to(device)
        ),
    ),
}


def _reduced(dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM) -> Remedy:
    def remedy(device: torch.device) -> object:
        tensor = _ones(device, dtype)
        dist.all_reduce(tensor, op)
        return tensor

    return remedy


def _on_gloo(tensor: torch.Tensor) -> Remedy:
    def remedy(device: torch.device) -> object:
        reduced = tensor.clone()
        dist.all_reduce(reduced, group=dist.new_group(backend="gloo"))
        return reduced.float().to(device)

    return remedy


def _in_two(device: torch.device) -> object:
    value = on(device, [2**24 + 1])
    high, low = value // 2**12, value % 2**12
    dist.all_reduce(high)
    dist.all_reduce(low)
    return high * 2**12 + low


def _scattered(dtype: torch.dtype) -> Remedy:
    def remedy(device: torch.device) -> object:
        output, source = _shares(device, dtype)
        dist.reduce_scatter_tensor(output, source)
        return output

    return remedy


def _scattered_list(device: torch.device) -> object:
    output = _ones(device, torch.float32)
    dist.reduce_scatter(output, [_ones(device, torch.float32) for _ in range(_size())])
    return output


def _coalesced(dtype: torch.dtype) -> Remedy:
    def remedy(device: torch.device) -> object:
        output, source = _shares(device, dtype)
        with dist._coalescing_manager(device=device):
            dist.reduce_scatter_tensor(output, source)
        return output

    return remedy


def _size() -> int:
    return dist.get_world_size()


def _gathered_product(device: torch.device) -> object:
    parts = torch.empty(_size(), 2).to(device)
    dist.all_gather_into_tensor(parts, 2 * _ones(device, torch.float32))
    return parts.prod(0)


def _product_of_logarithms(device: torch.device) -> object:
    logarithms = (2 * _ones(device, torch.float32)).log()
    dist.all_reduce(logarithms)
    return logarithms.exp()


def _gathered_xor(device: torch.device) -> object:
    parts = torch.empty(_size(), 2, dtype=torch.int32).to(device)
    dist.all_gather_into_tensor(parts, _ones(device, torch.int32))
    return parts[0].bitwise_xor(parts[-1])


def _multiplied_first(device: torch.device) -> object:
    tensor = _ones(device, torch.float32) * 2.0
    dist.all_reduce(tensor)
    return tensor


def _sum_divided(device: torch.device) -> object:
    tensor = _ones(device, torch.float32)
    dist.all_reduce(tensor)
    return tensor / _size()


def _averaged_float32(device: torch.device) -> object:
    output, source = _shares(device, torch.int32)
    output = output.float()
    dist.reduce_scatter_tensor(output, source.float(), ReduceOp.AVG)
    return output


def _exchanged(dtype: torch.dtype, length: int) -> Remedy:
    def remedy(device: torch.device) -> object:
        each = [torch.ones(length).to(dtype).to(device) for _ in range(_size())]
        received = [torch.empty_like(part) for part in each]
        dist.all_to_all(received, each)
        return received[0]

    return remedy


def _exchanged_single(length: int, splits: bool, dtype: torch.dtype) -> Remedy:
    def remedy(device: torch.device) -> object:
        source = torch.ones(length * _size()).to(torch.float8_e5m2).to(device).view(dtype)
        received = torch.empty_like(source)
        sizes = [length] * _size() if splits else None
        dist.all_to_all_single(received, source, sizes, sizes)
        return received.view(torch.uint8)

    return remedy


def _gathered(device: torch.device) -> object:
    output = torch.empty(_size(), 2).to(device)
    dist.all_gather_into_tensor(output, _ones(device, torch.float32))
    return output


def _ordered_without_barrier(device: torch.device) -> object:
    tensor = _ones(device, torch.float32)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    return tensor


OF_COLLECTIVES: dict[str, tuple[Remedy, ...]] = {
    "integers-reduced-in-float32": (_on_gloo(torch.tensor([2**24 + 1])), _in_two),
    "float64-reduced-in-float32": (_on_gloo(torch.ones(2, dtype=torch.float64)),),
    "collective-int16-refused": (_reduced(torch.int32),),
    "reduce-scatter-list-types-refused": (_scattered(torch.uint8), _scattered_list),
    "reduce-scatter-int64-refused": (_scattered(torch.int32), _scattered(torch.float32)),
    "coalesced-reduce-scatter-lost": (
        *map(_coalesced, (torch.float32, torch.bfloat16, torch.float16)),
        _scattered(torch.uint8),
    ),
    "reduce-product-refused": (_gathered_product, _product_of_logarithms),
    "reduce-bitwise-refused": (
        _reduced(torch.bool, ReduceOp.MIN),
        _reduced(torch.bool, ReduceOp.MAX),
        _gathered_xor,
    ),
    "reduce-premul-sum-refused": (_multiplied_first,),
    "reduce-average-lazy-refused": (_sum_divided,),
    "average-of-integers-refused": (_averaged_float32,),
    "odd-bytes-all-to-all-refused": (_exchanged(torch.uint8, 2),),
    "split-float8-all-to-all-refused": (
        _exchanged_single(2, True, torch.uint8),
        _exchanged_single(2, False, torch.float8_e5m2),
    ),
    "odd-float8-all-to-all-single-refused": (_exchanged_single(2, False, torch.float8_e5m2),),
    "all-gather-coalesced-refused": (_gathered,),
    "barrier-waits": (_ordered_without_barrier,),
}
"""By a rule about collectives, what a group of any size does instead.

`recv-from-any-refused` names the rank to receive from, which takes two: the tests of collectives
do so. Types that no card can hold are refused where a tensor is made.
"""

EQUAL = frozenset(
    {
        *("solve-on-cpu", "svd-on-cpu", "fold-on-cpu", "unfold-on-cpu", "gcd-on-cpu"),
        *("unfold-on-cpu-but-vit-patches", "tensor-unfold-on-cpu", "fake-quantize-on-cpu"),
        *("segment-reduce-on-cpu", "embedding-bag-inference-on-cpu", "nonzero-types-on-cpu"),
        *("nonzero-float16-on-cpu", "masked-select-types-on-cpu", "where-condition-on-cpu"),
        *("masked-select-lazy-types-on-cpu", "sort-lazy-types-on-cpu", "unique-types-on-cpu"),
        *("masked-select-over-5-dims-on-cpu", "index-select-over-5-dims-on-cpu"),
        *("unique-over-4-dims-on-cpu", "bincount-dynamic"),
        *("repeat-interleave-dynamic", "unique-dynamic", "gather-of-int64-wrong"),
        *("scatter-from-itself-wrong", "masked-fill-of-int64-refused"),
        *("nonzero-out-untouched", "bincount-in-32-bits"),
        *("scatter-add-lazy-types-on-cpu", "item-waits", "equal-waits"),
    }
)
"""Rules whose remedies give the values that their provocation gives on the CPU."""

STILL: dict[str, str] = {
    **dict.fromkeys(("nonzero-types-on-cpu", "nonzero-float16-on-cpu"), "nonzero-dynamic"),
    "nonzero-out-untouched": "nonzero-dynamic",
    **dict.fromkeys(
        ("masked-select-types-on-cpu", "masked-select-over-5-dims-on-cpu"), "masked-select-dynamic"
    ),
    "masked-select-lazy-types-on-cpu": "masked-select-dynamic",
    **dict.fromkeys(("unique-types-on-cpu", "unique-over-4-dims-on-cpu"), "unique-dynamic"),
}
"""By a rule about an operator's arguments the rule about the operator itself, which stays."""

RANDOM = frozenset({"gamma-samples-on-cpu", "fused-attention-in-float16", "nf4-in-float16"})
"""Whose remedies give other numbers on the CPU, or are of the card's alone."""

ELSEWHERE = frozenset(
    {
        "recv-from-any-refused",
        *("collective-complex-refused", "collective-float8-variants-refused"),
        "collective-unsigned-refused",
    }
)
