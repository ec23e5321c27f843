"""Programs that meet the rules about what a card sends to the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from lightning_gaudi.tools.verify.programs.values import on, positive, symmetric, uniform

Program = Callable[[torch.device], object]
linalg = torch.linalg


def _triangular(device: torch.device) -> object:
    matrix = symmetric(3, device=device)
    return linalg.solve_triangular(matrix, uniform(3, 1, device=device), upper=True)


def _adaptive_max_pool(device: torch.device) -> None:
    x = uniform(1, 1, 4, 4, device=device).requires_grad_()
    functional.adaptive_max_pool2d(x, 2).sum().backward()  # type: ignore[no-untyped-call]


def _fused_sgd(device: torch.device) -> None:
    weight = uniform(4, device=device).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _fused_adamw(device: torch.device) -> None:
    weight = uniform(4, device=device).requires_grad_()
    lr = torch.tensor(0.1).to(device)
    optimizer = torch.optim.AdamW([weight], lr=lr, fused=True)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _scaled_step(device: torch.device) -> None:
    weight = uniform(4, device=device).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()


def _bag_weights(device: torch.device) -> None:
    weight = uniform(4, 2, device=device).requires_grad_()
    each = uniform(1, 2, device=device).requires_grad_()
    bags = functional.embedding_bag(
        on(device, [[0, 1]]), weight, mode="sum", per_sample_weights=each
    )
    bags.sum().backward()  # type: ignore[no-untyped-call]


def _deterministic_bag(device: torch.device) -> None:
    weight = uniform(4, 2, device=device).requires_grad_()
    bags = functional.embedding_bag(on(device, [[0, 1]]), weight, mode="sum")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        bags.sum().backward()  # type: ignore[no-untyped-call]
    finally:
        torch.use_deterministic_algorithms(False)


def _write(dtype: torch.dtype) -> Program:
    def write(device: torch.device) -> None:
        x = positive(4, device=device).to(dtype)
        x[on(device, [0, 2])] = positive(2, device=device).to(dtype)

    return write


def _write_6_dims(device: torch.device) -> None:
    x = uniform(2, 1, 1, 1, 1, 2, device=device)
    x[on(device, [1])] = 0.0


def _weight_norm(device: torch.device) -> object:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    return layer.to(device, torch.float64)(uniform(2, 2, device=device).double())


def _sync_batch_norm(device: torch.device) -> object:
    return torch.batch_norm_stats(uniform(4, 2, device=device), 1e-5)


NO_KERNEL: dict[str, Program] = {
    "svd-on-cpu": lambda device: linalg.svd(uniform(3, 3, device=device)),
    "eigh-on-cpu": lambda device: linalg.eigh(symmetric(3, device=device)),
    "solve-on-cpu": lambda device: linalg.inv(symmetric(3, device=device)),
    "lu-on-cpu": lambda device: linalg.lu(symmetric(3, device=device)),
    "triangular-solve-on-cpu": _triangular,
    "lstsq-on-cpu": lambda device: linalg.lstsq(*uniform(2, 3, 3, device=device)),
    "householder-on-cpu": lambda device: linalg.householder_product(
        uniform(3, 3, device=device), uniform(3, device=device)
    ),
    "ldl-on-cpu": lambda device: linalg.ldl_factor(symmetric(3, device=device)),
    "matrix-exp-on-cpu": lambda device: linalg.matrix_exp(symmetric(3, device=device)),
    "unique-consecutive-on-cpu": lambda device: torch.unique_consecutive(on(device, [1, 1, 2])),
    "mode-on-cpu": lambda device: torch.mode(on(device, [1, 1, 2])),
    "cummax-on-cpu": lambda device: torch.cummax(uniform(4, device=device), 0),
    "special-functions-on-cpu": lambda device: torch.special.i0e(uniform(4, device=device)),
    "polygamma-on-cpu": lambda device: torch.polygamma(1, positive(4, device=device)),
    "gamma-samples-on-cpu": lambda device: torch.distributions.Gamma(
        *positive(2, 4, device=device)
    ).sample(),
    "fold-on-cpu": lambda device: functional.fold(
        uniform(1, 4, 4, device=device), output_size=4, kernel_size=2, stride=2
    ),
    "unfold-on-cpu": lambda device: functional.unfold(uniform(1, 1, 4, 4, device=device), 2),
    "unfold-on-cpu-but-vit-patches": lambda device: functional.unfold(
        uniform(1, 1, 4, 4, device=device), 2
    ),
    "tensor-unfold-on-cpu": lambda device: uniform(4, device=device).unfold(0, 2, 1),
    "adaptive-max-pool-backward-on-cpu": _adaptive_max_pool,
    "fractional-max-pool-on-cpu": lambda device: functional.fractional_max_pool2d(
        uniform(1, 1, 4, 4, device=device), 2, output_size=2
    ),
    "gcd-on-cpu": lambda device: torch.gcd(on(device, [4]), on(device, [6])),
    "fake-quantize-on-cpu": lambda device: torch.fake_quantize_per_tensor_affine(
        uniform(4, device=device), 0.1, 0, 0, 255
    ),
    "segment-reduce-on-cpu": lambda device: torch.segment_reduce(
        uniform(4, device=device), "sum", lengths=on(device, [1, 3])
    ),
    "fused-sgd-on-cpu": _fused_sgd,
    "fused-adamw-tensor-lr-on-cpu": _fused_adamw,
    "grad-scaler-update-on-cpu": _scaled_step,
    "grad-scaler-unscale-on-cpu": _scaled_step,
    "embedding-bag-inference-on-cpu": lambda device: functional.embedding_bag(
        on(device, [[0, 1]]), uniform(4, 2, device=device)
    ),
    "embedding-bag-weights-on-cpu": _bag_weights,
    "histogramdd-on-cpu": lambda device: torch.histogramdd(uniform(4, 2, device=device), [2, 2]),
    "nonzero-static-on-cpu": lambda device: torch.nonzero_static(on(device, [1, 0, 2]), size=2),
    "assert-async-message-on-cpu": lambda device: torch._assert_async(on(device, [1]), "message"),
    "no-kernel": lambda device: torch.range(0, 3, device=device),
}

BY_ARGUMENT: dict[str, Program] = {
    "nonzero-types-on-cpu": lambda device: torch.nonzero(on(device, [0, 1]).to(torch.uint8)),
    "nonzero-float16-on-cpu": lambda device: torch.nonzero(uniform(4, device=device).half()),
    "masked-select-types-on-cpu": lambda device: (
        on(device, [1, 2]).to(torch.uint8).masked_select(on(device, [True, False]))
    ),
    "masked-select-lazy-types-on-cpu": lambda device: (
        uniform(2, device=device).half().masked_select(on(device, [True, False]))
    ),
    "index-put-float16-on-cpu": _write(torch.float16),
    "index-put-lazy-types-on-cpu": _write(torch.int16),
    "unique-types-on-cpu": lambda device: torch.unique(uniform(4, device=device).half()),
    "where-condition-on-cpu": lambda device: torch.where(
        on(device, [1, 0]).to(torch.uint8), *uniform(2, 2, device=device)
    ),
    "sort-lazy-types-on-cpu": lambda device: torch.sort(on(device, [2, 1]).to(torch.int8)),
    "scatter-add-lazy-types-on-cpu": lambda device: (
        on(device, [0, 0]).int().scatter_add_(0, on(device, [1]), on(device, [5]).int())
    ),
    "layer-norm-float64-on-cpu": lambda device: functional.layer_norm(
        uniform(2, 4, device=device).double(), (4,)
    ),
    "softmax-float64-on-cpu": lambda device: functional.softmax(
        uniform(2, 4, device=device).double(), dim=1
    ),
    "batch-norm-parameters-on-cpu": lambda device: torch.nn.BatchNorm1d(2).to(
        device, torch.bfloat16
    )(uniform(4, 2, device=device).bfloat16()),
    "weight-norm-float64-on-cpu": _weight_norm,
    "prelu-float64-on-cpu": lambda device: torch.nn.PReLU().to(device, torch.float64)(
        uniform(4, device=device).double()
    ),
    "embedding-options-on-cpu": lambda device: functional.embedding(
        on(device, [0, 1]), uniform(4, 2, device=device), scale_grad_by_freq=True
    ),
    "embedding-bag-backward-on-cpu": _deterministic_bag,
    "masked-select-over-5-dims-on-cpu": lambda device: uniform(
        2, 1, 1, 1, 1, 2, device=device
    ).masked_select(on(device, [True, False])),
    "index-put-over-5-dims-on-cpu": _write_6_dims,
    "index-select-over-5-dims-on-cpu": lambda device: uniform(
        2, 1, 1, 1, 1, 2, device=device
    ).index_select(0, on(device, [1])),
    "unique-over-4-dims-on-cpu": lambda device: torch.unique(uniform(2, 1, 1, 1, 2, device=device)),
    "lazy-over-5-dims-on-cpu": lambda device: torch.sort(uniform(2, 1, 1, 1, 1, 2, device=device)),
    "sync-batch-norm-refused": _sync_batch_norm,
}
