"""Changes a model for a dry run: leaves its weights without values, and lets it checkpoint.

So a model of many gigabytes is made in a moment, and takes no memory: memory that torch allocates
on the host is only taken when it is first written. A rehearsal needs none of the values, so that
functions which would fill large tensors do nothing.
"""

from __future__ import annotations

import copy
import importlib
import mmap
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode
from typing_extensions import override

_LARGE_BYTES = 2**20

_FILLS = frozenset(
    f"{name}_"
    for name in (
        *("add", "clamp", "copy", "div", "erfinv", "exponential", "fill", "mul", "normal"),
        *("random", "sub", "trunc_normal", "uniform", "zero"),
    )
)
"""The methods that write into a tensor to initialize a model or load its weights."""


class EmptyWeights(TorchFunctionMode):
    """Lets nothing be written to large tensors of floating point numbers on the host.

    `torch.empty` takes their memory without reserving it, so that a process may fork whose weights
    are larger than the host's memory.

    Args:
        is_on: Whether it starts at once.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        super().__init__()
        self._is_on = is_on

    def begin(self) -> None:
        """Starts to leave tensors empty."""
        self._is_on = True

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if self._is_on and func is torch.empty:
            return _unreserved(args, given)
        # torch 2.13 passes the arguments of torch.nn.init by name.
        target = args[0] if args else given.get("tensor")
        is_fill = getattr(func, "__module__", None) == init.__name__ or _name(func) in _FILLS
        if self._is_on and is_fill and _name(func).endswith("_") and _is_large(target):
            return target
        return func(*args, **given)


_empty: EmptyWeights | None = None


def prepare_to_leave_empty() -> None:
    """Installs the mode without starting it; called before another mode may be installed."""
    global _empty
    _empty = EmptyWeights(is_on=False)
    _empty.__enter__()  # type: ignore[no-untyped-call]


def leave_weights_empty() -> None:
    """Lets models that the program makes from now on take no memory, until `fill_weights`."""
    if _empty is not None:
        _empty.begin()


def fill_weights() -> None:
    """Lets tensors be filled as usual from now on; a second call is harmless."""
    global _empty
    if _empty is not None:
        _empty.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _empty = None


_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""The value on Linux on x86 and Arm, which Python 3.10 does not name."""


def _unreserved(arguments: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
    """Returns what `torch.empty` returns, but a large tensor in memory that is not reserved.

    Otherwise a kernel that limits reservations refuses to fork a process whose weights are larger
    than the host's memory, although they are never written.
    """
    like: Tensor = torch.empty(*arguments, **{**given, "device": "meta", "pin_memory": False})
    device = torch.device(given.get("device") or "cpu")
    num_bytes = like.numel() * like.element_size()
    is_plain = device.type == "cpu" and not {"out", "memory_format", "layout"} & {
        name for name, value in given.items() if value is not None
    }
    if not (is_plain and like.is_floating_point() and num_bytes > _LARGE_BYTES):
        return torch.empty(*arguments, **given)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, num_bytes, flags=flags)
    found = torch.frombuffer(memory, dtype=like.dtype).view(like.shape)
    return found.requires_grad_(like.requires_grad)


def _is_large(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.numel() * value.element_size() > _LARGE_BYTES
    )


def _name(func: Any) -> str:
    return getattr(func, "__name__", "")


_OF_LOADING = frozenset(
    (
        *("adapter_kwargs", "adapter_name", "config", "disable_mmap", "dtype", "from_flax"),
        *("from_tf", "fusion_config", "generation_config", "gguf_file", "ignore_mismatched_sizes"),
        *("key_mapping", "low_cpu_mem_usage", "max_memory", "mirror", "offload_buffers"),
        *("offload_folder", "offload_state_dict", "output_loading_info", "state_dict"),
        *("torch_dtype", "tp_plan", "tp_size", "use_safetensors", "variant", "weights_only"),
    )
)
"""The arguments of `from_pretrained` that say how weights are read, which does not happen."""

_OF_HUB = frozenset(
    (
        *("cache_dir", "force_download", "local_files_only", "proxies", "resume_download"),
        *("revision", "subfolder", "token", "use_auth_token", "trust_remote_code"),
        *("code_revision", "_from_auto", "_commit_hash", "_from_pipeline"),
    )
)
"""The arguments that say where a file is found, which a configuration at hand does not need."""


def from_configuration(
    load: Callable[..., Any], kind: Any, name: Any, *arguments: Any, **given: Any
) -> Any:
    """Makes a model of transformers as `from_pretrained` does, without reading weights.

    Args:
        load: The `from_pretrained` of its class. It is called where the weights matter: if they are
            quantized, or placed by a `device_map`.
        kind: The class.
        name: A folder, or a name of the hub, of which the configuration is enough.
        arguments: Positional arguments of the class.
        given: All other arguments of `from_pretrained`.
    """
    quantization = given.get("quantization_config")
    is_four_bit = getattr(quantization, "load_in_4bit", False)
    is_on_host = given.get("device_map") in (None, {"": "cpu"})
    if name is None or not is_on_host or (quantization is not None and not is_four_bit):
        return load(name, *arguments, **given)
    asked = given
    given = {k: v for k, v in asked.items() if k not in ("quantization_config", "device_map")}
    config, others = given.get("config"), {k: v for k, v in given.items() if k not in _OF_LOADING}
    if hasattr(config, "to_dict"):
        config = copy.deepcopy(config)
        of_model = {k: v for k, v in others.items() if k not in _OF_HUB}
    else:
        config, of_model = kind.config_class.from_pretrained(
            config or name, return_unused_kwargs=True, **others
        )
    if getattr(config, "quantization_config", None) is not None:
        return load(name, *arguments, **asked)
    setting = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # before transformers 4.56
    is_auto_by_default = int(version("transformers").partition(".")[0]) >= 5
    dtype = given.get("dtype", given.get("torch_dtype", "auto" if is_auto_by_default else None))
    if dtype == "auto":
        dtype = getattr(config, setting)
    model = kind._from_config(config, *arguments, **{setting: dtype or torch.float32}, **of_model)
    with suppress(OSError, ValueError, AttributeError):  # some models have no such configuration
        model.generation_config = type(model.generation_config).from_pretrained(name)
    if is_four_bit:
        _put_into_four_bits(model, quantization)
    model.eval()
    found = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    return (model, {each: [] for each in found}) if given.get("output_loading_info") else model


def _put_into_four_bits(model: Any, quantization: Any) -> None:
    """Replaces linear layers by layers of bitsandbytes of the size that they will have."""
    from transformers.quantizers.auto import AutoHfQuantizer

    bnb: Any = importlib.import_module("bitsandbytes")
    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    quantizer.preprocess_model(model=model, device_map={"": "cpu"})
    quantizer.postprocess_model(model)
    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            layer.weight = _empty_in_four_bits(layer)


def _empty_in_four_bits(layer: Any) -> Any:
    """Returns a weight of bitsandbytes with its scales, all of them without values."""
    bnb: Any = importlib.import_module("bitsandbytes")
    weight, kind = layer.weight, bnb.functional.QuantState
    num, block = weight.numel(), weight.blocksize
    num_blocks = -(-num // block)
    scales, of_scales = torch.empty(num_blocks), dict[str, Any]()
    if weight.compress_statistics:
        levels = bnb.functional.create_dynamic_map()
        second = kind(torch.empty(-(-num_blocks // 256)), code=levels, blocksize=256)
        second.dtype = torch.float32
        scales = _empty_bytes(num_blocks)
        of_scales = {"state2": second, "offset": torch.zeros(())}
    state = kind(
        scales,
        shape=weight.shape,
        code=bnb.functional.get_4bit_type(weight.quant_type, device="cpu"),
        blocksize=block,
        quant_type=weight.quant_type,
        dtype=layer.compute_dtype or torch.float32,
        **of_scales,
    )
    layer.quant_state = state
    return bnb.nn.Params4bit(
        _empty_bytes(-(-num // 2)).unsqueeze(1),
        quant_state=state,
        blocksize=block,
        compress_statistics=weight.compress_statistics,
        quant_type=weight.quant_type,
        quant_storage=weight.quant_storage,
        module=layer,
        bnb_quantized=True,
    )


def _empty_bytes(num: int) -> Tensor:
    """Returns bytes of memory that is not reserved; see `EmptyWeights`."""
    return torch.empty(-(-num // 4), dtype=torch.float32).view(torch.uint8)[:num]


def from_diffusers_configuration(
    load: Callable[..., Any], kind: Any, name: Any, **given: Any
) -> Any:
    """Makes a model of diffusers as `from_pretrained` does, without reading weights.

    Args:
        load: The `from_pretrained` of its class, as in `from_configuration`.
        kind: The class.
        name: A folder, or a name of the hub, of which the configuration is enough.
        given: All other arguments of `from_pretrained`.
    """
    if any(given.get(each) for each in ("quantization_config", "device_map", "parallel_config")):
        return load(name, **given)
    config, of_model = kind.load_config(
        name,
        return_unused_kwargs=True,
        **{k: v for k, v in given.items() if k not in _OF_LOADING},
    )
    dtype = given.get("dtype", given.get("torch_dtype"))
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype if isinstance(dtype, torch.dtype) else default)
        model = kind.from_config(config, **of_model)
    finally:
        torch.set_default_dtype(default)
    model.eval()
    return (model, {}) if given.get("output_loading_info") else model


_ENABLE = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
_DISABLE = ("activation_checkpointing_disable", "gradient_checkpointing_disable")


def set_checkpointing(model: Any, *, is_on: bool) -> None:
    """Makes modules of transformers compute activations again in backward, or not."""
    for module in model.modules():
        for name in _ENABLE if is_on else _DISABLE:
            # Asked of the class, since a module's `__getattr__` may raise, or ask a wrapped module.
            if hasattr(type(module), name):
                with suppress(ValueError):  # raised by a model that cannot
                    getattr(module, name)()
                break


def can_checkpoint(model: Any) -> bool:
    """Returns whether a module of a model can compute activations again in backward."""
    return any(
        any(hasattr(kind, name) for name in _ENABLE)
        and getattr(kind, "supports_gradient_checkpointing", True)  # of transformers
        for kind in map(type, model.modules())
    )
