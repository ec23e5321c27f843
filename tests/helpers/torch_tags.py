"""What torch itself knows of its operators."""

from __future__ import annotations

import torch


def depending_on_data() -> set[str]:
    """Operators of aten whose result, or its shape, depends on data, as "aten::nonzero.out"."""
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, operator = name.partition("::")
        operator, _, overload = operator.partition(".")
        if space != "aten":
            continue
        try:
            tags = getattr(getattr(torch.ops.aten, operator), overload or "default").tags
        except (AttributeError, RuntimeError):
            continue  # of TorchScript alone
        if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
            tagged.add(name)
    return tagged


def waited_for() -> set[str]:
    """What the host of a card waits for, by torch's tags: names without overloads.

    Besides, for an index where a mask is among the indices, for copies to the host, and for the
    products of experts, which torch composes by the sizes of their groups (torch 2.8 and later).
    """
    tagged = {name.partition(".")[0] for name in depending_on_data()}
    masks = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
    copies = {"aten::copy_", "aten::_copy_from"}
    grouped = {"aten::_grouped_mm"} & set(torch._C._dispatch_get_all_op_names())
    return tagged | masks | copies | grouped
