"""Clips gradients by their global norm, and normalizes by the root mean square."""

from __future__ import annotations

import torch

from ._library import check_tensors, operator

_CLIP_EPS = 1e-6


def global_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all elements together, of shape (1,), without a host sync."""
    norms = torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])
    return torch.linalg.vector_norm(norms).reshape(1)


@operator(
    "fused_clip_norm(Tensor(a!)[] grad, Tensor max_norm, float norm_type) -> Tensor",
    fake=lambda grad, max_norm, norm_type: torch.empty_like(grad[-1]),
)
def fused_clip_norm(
    grad: list[torch.Tensor], max_norm: torch.Tensor, norm_type: float
) -> torch.Tensor:
    """Multiplies gradients by min(1, max_norm / (norm + 1e-6)), in place.

    Args:
        grad: The gradients, and as last element a tensor of shape (1,) that receives the norm.
        max_norm: The largest norm, of shape (1,).
        norm_type: 2.

    Returns:
        The norm before clipping, of shape (1,).

    Raises:
        RuntimeError: The norm is another one, there are no gradients, or they are of several
            dtypes: a card computes all in that of the first (bridge 1.19 and 2026,
            `hpu_ops/backend/fused_clip_norm_gen.cpp`).
    """
    if norm_type != 2:
        raise RuntimeError(f"hpu::fused_clip_norm computes the 2-norm, got norm_type={norm_type}.")
    *gradients, result = grad
    check_tensors("fused_clip_norm", grad=gradients)
    if len(dtypes := {tensor.dtype for tensor in (*grad, max_norm)}) > 1:
        raise RuntimeError(
            f"hpu::fused_clip_norm computes in the dtype of the first gradient, got {dtypes}. "
            "Clip gradients of several dtypes with torch.nn.utils.clip_grad_norm_."
        )
    norm = global_norm(gradients)
    factor = (max_norm / (norm + _CLIP_EPS)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype).reshape(()))
    result.copy_(norm)
    return result.clone()


def _wider(data_in: torch.Tensor, gamma: torch.Tensor) -> torch.dtype:
    return data_in.dtype if data_in.dtype == gamma.dtype else torch.float32


def _rms_norm_fake(
    data_in: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = _wider(data_in, gamma)
    inverse_rms = data_in.new_empty((*data_in.shape[:-1], 1), dtype=dtype)
    return data_in.new_empty(data_in.shape, dtype=dtype), inverse_rms


@operator("rms_norm_fast(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)",
          fake=_rms_norm_fake)  # fmt: skip
@operator("rms_norm(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)",
          fake=_rms_norm_fake)  # fmt: skip
def rms_norm(
    data_in: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divides by the root of the mean square of the last dim, and multiplies by a scale.

    Args:
        data_in: Shape (..., D).
        gamma: The scale, of shape (D,).
        epsilon: Added to the mean square.

    Returns:
        data_in * gamma * r of shape (..., D), and r = 1 / sqrt(mean(data_in^2) + epsilon) of
        shape (..., 1); fp32 if the inputs' dtypes differ, else theirs.
    """
    dtype = _wider(data_in, gamma)
    data = data_in.float()
    inverse_rms = torch.rsqrt(data.square().mean(-1, keepdim=True) + epsilon)
    return (data * inverse_rms * gamma.float()).to(dtype), inverse_rms.to(dtype)


_BACKWARD = (
    "(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, "
    "int bwd_mode) -> (Tensor, Tensor)"
)


def _rms_norm_backward_fake(
    grad_in: torch.Tensor, data_in: torch.Tensor, gamma: torch.Tensor, *args: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return data_in.new_empty(data_in.shape), gamma.new_empty(gamma.shape)


@operator("rms_norm_fast_backward" + _BACKWARD, fake=_rms_norm_backward_fake)
@operator("rms_norm_backward" + _BACKWARD, fake=_rms_norm_backward_fake)
def rms_norm_backward(
    grad_in: torch.Tensor,
    data_in: torch.Tensor,
    gamma: torch.Tensor,
    inverse_rms: torch.Tensor,
    use_stages: bool,
    bwd_mode: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of `rms_norm` for its data and its scale.

    Args:
        grad_in: The output's gradient, of shape (..., D).
        data_in: Shape (..., D).
        gamma: Shape (D,).
        inverse_rms: What the forward pass returned, of shape (..., 1).
        use_stages: Which kernel a card takes; no effect here.
        bwd_mode: How a card splits the work; no effect here.

    Returns:
        Gradients of shapes (..., D) and (D,), in the dtypes of `data_in` and `gamma`.
    """
    data, rms = data_in.float(), inverse_rms.float()
    normalized = data * rms
    scaled = grad_in.float() * gamma.float()
    along = (scaled * normalized).mean(-1, keepdim=True)
    grad_data = rms * (scaled - normalized * along)
    grad_gamma = (grad_in.float() * normalized).reshape(-1, data.shape[-1]).sum(0)
    return grad_data.to(data_in.dtype), grad_gamma.to(gamma.dtype)
