"""Holds the options of `torch.compile(backend="hpu_backend", options={...})`.

They tune the vendor's compiler and have no effect here. But a `PT_HPU_...` of a wrong value and an
unknown option raise, as they do on a card.

Source: Intel Gaudi PyTorch bridge, `dynamo/compile_backend/config.py` of 1.19 and of 2025, which
1.24.0 has no other text of.
"""

import sys

from torch.utils._config_module import install_config_module

from ._flags import decomposition, flag, is_new

# Every name that is a value, not a function, becomes an option: torch's install_config_module.
use_compiled_recipes = flag("PT_HPU_COMPILE_USE_RECIPES", True)
decomposition_mode = decomposition()
keep_input_mutations = flag("PT_HPU_KEEP_INPUT_MUTATIONS", True)
use_eager_fallback = flag("PT_HPU_USE_EAGER_FALLBACK", True)
discard_frozen_params = flag("PT_HPU_COMPILE_DISCARD_FROZEN_PARAMS", False)
remove_unnecessary_clones = flag("PT_HPU_COMPILE_REMOVE_UNNECESSARY_CLONES", True)
use_inplace_allreduce = flag("PT_HPU_USE_INPLACE_COLLECTIVE", True)
use_inplace_index_copy = flag("PT_HPU_USE_INPLACE_INDEX_COPY", True)
inference = flag("PT_HPU_USE_INFERENCE_COMPILER", True)
enable_sfg = flag("PT_HPU_ENABLE_SFG", False)
use_cpp_partitioner = flag("PT_HPU_USE_CPP_PARTITIONER", not is_new())
enable_allreduce_graph_split = flag("PT_HPU_ENABLE_ALLREDUCE_GRAPH_SPLIT", True)
force_static_compile = flag("PT_HPU_FORCE_STATIC_COMPILE", False)
reinplace_add = flag("PT_HPU_REINPLACE_ADD", True)
reassign_full_copy = flag("PT_HPU_REASSIGN_FULL_COPY", True)
reassign_copy_ = flag("PT_HPU_REASSIGN_COPY_", True)
use_boxed_input = flag("PT_HPU_USE_BOXED_INPUT", True)
if is_new():
    dump_graph_repro = flag("PT_HPU_DUMP_GRAPH_REPRO", False)
    joint_graph_constant_folding = flag("PT_HPU_COMPILE_JOINT_GRAPH_CONSTANT_FOLDING", True)
    enable_waittensor_graph_split = flag("PT_HPU_ENABLE_WAITTENSOR_GRAPH_SPLIT", True)
    use_generic_reinplacer = flag("PT_HPU_USE_GENERIC_REINPLACER", True)
    enable_synapse_input_reuse = flag("PT_HPU_ENABLE_SYNAPSE_INPUT_REUSE", True)
    enable_flex_attention = flag("PT_HPU_ENABLE_FLEX_ATTENTION", True)
    fallback_dynamic_to_eager = flag("PT_HPU_FALLBACK_DYNAMIC_TO_EAGER", False)
    enable_compile_debug_nan_checks = flag("PT_HPU_COMPILE_DEBUG_NAN_ASSERTS", False)
else:
    use_graph_freezing = flag("PT_HPU_COMPILE_GRAPH_FREEZE", False)

install_config_module(sys.modules[__name__])


class DictLikeClass:
    """The options as a mapping, which older programs use."""

    def __getitem__(self, key: str) -> object:
        return getattr(sys.modules[__name__], key)

    def __setitem__(self, key: str, value: object) -> None:
        setattr(sys.modules[__name__], key, value)


configuration_flags = DictLikeClass()
