"""Names modules in lazy mode, as the vendor's package does for what its compiler logs.

In lazy mode every module that becomes part of another one gets a name, `custom_name`, and two
forward hooks; what it puts out gets a hook of its gradient. Nothing here reads the names, but a
program sees that they are there: in `vars(module)`, among a module's hooks, and in a pickle of the
module, which names functions of this package.

Source: Gaudi PyTorch bridge 1.19.0 and 1.24.0, core/torch_overwrites.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

_names: list[str] = []
"""The names of the modules whose forward is running, the innermost last."""
_lock = threading.Lock()


def _pre_fwd_hook(module: nn.Module, input: Any) -> None:
    with _lock:
        name = str(module.custom_name)
        _names.append(f"{_names[-1]}/{name}" if _names else name)


def _post_fwd_hook(module: nn.Module, input: Any, output: Any) -> None:
    with _lock:
        _names.pop()
        tensors: Iterable[Any] = [output] if isinstance(output, Tensor) else output
        # Like the vendor's hook, this passes over outputs that it cannot mark.
        with suppress(Exception):
            for each in tensors:
                if isinstance(each, Tensor) and each.requires_grad and not _has_hook(each):
                    each.register_hook(_same)
                    each.names_hook = True  # type: ignore[attr-defined]


for _hook in (_pre_fwd_hook, _post_fwd_hook):
    # A pickled module refers to its hooks by their module, which must be the vendor's.
    _hook.__module__ = f"{__package__}.torch_overwrites"


def _same(gradient: Tensor) -> Tensor:
    return gradient


def _has_hook(owner: object) -> bool:
    return getattr(owner, "names_hook", False) is True


def overwrite() -> None:
    """Has modules named from now on, when they become part of another one."""
    nn.Module.add_module = _naming_second(nn.Module.add_module)  # type: ignore[method-assign]
    nn.Module.__setattr__ = _naming_second(nn.Module.__setattr__)  # type: ignore[method-assign]


def _naming_second(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def add(self: nn.Module, name: str, module: Any) -> None:
        if isinstance(module, nn.Module) and not _has_hook(module):
            # A scripted module takes no hooks and raises.
            with suppress(RuntimeError):
                _name(module, name)
        original(self, name, module)

    return add


def _name(module: nn.Module, name: str) -> None:
    module.custom_name = name
    module.register_forward_pre_hook(_pre_fwd_hook)
    module.register_forward_hook(_post_fwd_hook, always_call=True)
    module.names_hook = True  # type: ignore[assignment]
