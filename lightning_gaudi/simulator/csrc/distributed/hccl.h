// HCCL, the vendor's collectives, over gloo on the memory of the simulated cards.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hpu_sim {

/// Registers hpu kernels for the c10d operators. Call once, when torch.distributed is imported.
void install_collectives();

/// Adds `ProcessGroupHCCL(gloo, store, rank, size)`, `destroy_process_groups()` and
/// `keep_pending_collectives()` to the module.
void bind_collectives(py::module_& module);

}  // namespace hpu_sim
