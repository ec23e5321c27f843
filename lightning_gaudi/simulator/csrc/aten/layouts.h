// What is no dense tensor has no place on the card.
#pragma once

#include <ATen/core/Tensor.h>

namespace hpu_sim {

/// Whether the CPU tensor is a plain array in memory, which an hpu tensor can stand for: not
/// sparse, quantized, nested or in a library's own format.
inline bool is_dense(const at::Tensor& cpu) { return cpu.key_set().has(c10::DispatchKey::CPU); }

/// Raises NotImplementedError for a result that is not dense, and says what it is.
[[noreturn]] void refuse_layout(const at::Tensor& cpu);

}  // namespace hpu_sim
