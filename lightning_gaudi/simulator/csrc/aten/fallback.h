// Every operator without a kernel of its own: the CPU's kernel, on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace hpu_sim {

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

/// Registers the fallback directly for the operators that have both a CPU kernel and a composite
/// one. Otherwise the composite kernel would win over the fallback: structured operators would
/// dispatch twice, and layer_norm, group_norm or stack take another algorithm than on the CPU.
void install_direct_kernels();

}  // namespace hpu_sim
