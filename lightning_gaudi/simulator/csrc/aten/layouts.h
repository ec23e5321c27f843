// What is no dense tensor has no place on the card.
#pragma once

#include <ATen/core/Tensor.h>

namespace hpu_sim {

/// Whether the tensor of the CPU, or of the device "meta", is a plain array, which an hpu tensor can
/// stand for: not sparse, quantized, nested or in a library's own format.
inline bool is_dense(const at::Tensor& cpu) {
  return cpu.key_set().has(c10::DispatchKey::CPU) || cpu.key_set().has(c10::DispatchKey::Meta);
}

/// Raises NotImplementedError for a result that is not dense, and says what it is.
[[noreturn]] void refuse_layout(const at::Tensor& cpu);

}  // namespace hpu_sim
