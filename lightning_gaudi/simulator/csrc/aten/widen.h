// Operators that Gaudi has in bf16, half or with int32 indices and the CPU has not: computed in
// fp32 (or with int64 indices) and cast back. The table is in op_info.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "aten/op_info.h"

namespace hpu_sim {

/// What has been widened in one call.
struct Widened {
  std::optional<at::ScalarType> from;
};

/// Casts the arguments, which lie on the stack from `first` on, if the operator asks for it.
void widen_arguments(const OpInfo& info, torch::jit::Stack& stack, size_t first, Widened& widened);

/// A result in the type that the caller expects.
at::Tensor narrow_result(const at::Tensor& result, const Widened& widened);

}  // namespace hpu_sim
