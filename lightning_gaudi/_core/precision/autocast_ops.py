"""The vendor's lists of autocast operations, and checks of files that replace them.

Two environment variables name files that replace a default list, with one operation in each line.
The vendor's package reads them once when it is imported. It says nothing if a file cannot be read
(the default stays) or a line matches no operation (trailing space, CRLF, a typo). Training then
silently runs in another precision than was asked for.
1.24 warns on stderr of both, and takes no file below /root, /etc, /usr, /var and their like.
Source: Intel Gaudi PyTorch bridge, release 1.19, `hpu_ops/autocast_helpers.h`, whose lists of 1.24
could not be read; release 1.24.0, `hpu_ops/backend/autocast_helpers.cpp`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lightning_gaudi.untrusted import printable

VARIABLES = ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "PT_HPU_AUTOCAST_FP32_OPS_LIST")
"""Environment variables that name a file of operations."""

LOWER_PRECISION_OPS = """
addmm addbmm batch_norm baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d dot dropout feature_dropout group_norm instance_norm layer_norm leaky_relu linear
matmul mean mm mul mv softmax log_softmax scaled_dot_product_attention
"""
FP32_OPS = """
acos addcdiv asin atan2 bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist cosh
cosine_embedding_loss cosine_similarity cross_entropy_loss dist div divide embedding embedding_bag
erfinv exp expm1 hinge_embedding_loss huber_loss kl_div l1_loss log log10 log1p log2 logsumexp
margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss pdist
poisson_nll_loss pow reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softplus tan topk
triplet_margin_loss truediv true_divide
"""
PROMOTED_OPS = "add addcmul addcdiv cat div exp mul pow sub iadd truediv stack"
KNOWN_OPS = frozenset(f"{LOWER_PRECISION_OPS} {FP32_OPS} {PROMOTED_OPS}".split())
"""The operations that autocast knows and a file may name."""


_UNREAD_BELOW = frozenset(
    (
        *("bin", "boot", "dev", "etc", "lib", "lost+found", "proc", "root", "run", "sbin", "srv"),
        *("sys", "usr", "var"),
    )
)


def is_read_from(path: Path) -> bool:
    """Returns whether the vendor's package reads a file of operations at such a place.

    Source: 1.24.0, `autocast_helpers.cpp`, which looks at the first folder of the real path.
    """
    _, *parts = path.resolve().parts
    return not parts or parts[0] not in _UNREAD_BELOW


def check_op_lists(environment: Mapping[str, str] = os.environ) -> None:
    """Checks the files that the environment names.

    Args:
        environment: Where the variables are looked up.

    Raises:
        ValueError: A file cannot be read, or has a line that autocast would silently pass over.
    """
    for variable in VARIABLES:
        if path := environment.get(variable):
            _check_file(variable, Path(path))


def lowers(op: str) -> bool:
    """Returns whether autocast computes an operation in its lower precision."""
    path = os.environ.get(VARIABLES[0])
    if not path:
        return op in LOWER_PRECISION_OPS.split()
    try:
        return op in Path(path).read_text("utf-8", errors="replace").split()
    except (OSError, ValueError):  # also of a name with a NUL
        return op in LOWER_PRECISION_OPS.split()  # the vendor's package keeps its own list, too


def _check_file(variable: str, path: Path) -> None:
    try:
        # Bytes, since reading text turns CRLF into LF.
        lines = path.read_bytes().decode().split("\n")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{variable}={path} cannot be read ({error}), and autocast would silently keep its "
            "default list. Correct the path, or unset the variable."
        ) from error
    for number, line in enumerate(lines, start=1):
        if line and line not in KNOWN_OPS:
            shown = printable(repr(line), max_chars=100)
            raise ValueError(
                f"{variable}={path}, line {number}: {shown} {_what_is_wrong(line)}, and autocast "
                "would silently pass over it. Write one operation a line."
            )


def _what_is_wrong(line: str) -> str:
    name = line.strip()
    if line == f"{name}\r":
        return "ends in a carriage return (convert the file to Unix line ends)"
    if line != name:
        return "has spaces around it"
    from ..wording import nearest  # needed by messages of errors alone

    near = nearest(name[:100], sorted(KNOWN_OPS))
    hint = f"; did you mean {near!r}?" if near else ""
    return f"is no operation of autocast's lists{hint}"
