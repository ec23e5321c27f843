"""Offers graph capture and replay, in lazy mode only, as on a Gaudi.

A graph runs the operators that were captured, and none of their Python.
"""

from ..._missing import missing
from ._capture.cacher import ModuleCacher
from ._capture.callables import make_graphed_callables
from ._capture.context import graph
from ._capture.graph import HPUGraph, is_current_stream_capturing
from ._capture.graph_model import GraphModel
from ._capture.inference import (
    CachedParams,
    get_tensor_info,
    wrap_in_hpu_graph,
    wrap_in_hpu_graph_func,
)
from ._capture.keys import (
    copy_to,
    extract_tensors,
    get_user_input_tensor_list,
    input_hash,
    is_any_cpu_float_bfloat_0d_tensors,
)
from ._capture.packer import TensorPacker

__all__ = [
    "CachedParams",
    "GraphModel",
    "HPUGraph",
    "ModuleCacher",
    "TensorPacker",
    "copy_to",
    "extract_tensors",
    "get_tensor_info",
    "get_user_input_tensor_list",
    "graph",
    "input_hash",
    "is_any_cpu_float_bfloat_0d_tensors",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "wrap_in_hpu_graph",
    "wrap_in_hpu_graph_func",
]
__getattr__ = missing(__name__)
