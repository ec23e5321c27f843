// Operators that accelerators have in types for which the CPU has no kernel: computed in a wider
// type and cast back. The table is in op_info.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <utility>

#include "aten/op_info.h"

namespace hpu_sim {

/// What has been widened in one call.
struct Widened {
  std::optional<at::ScalarType> from;
  /// Arguments that the operator writes to, and what it writes to instead.
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 1> written;
};

/// Casts the arguments, which lie on the stack from `first` on, if the operator asks for it.
void widen_arguments(const OpInfo& info, torch::jit::Stack& stack, size_t first, Widened& widened);

/// Writes to the arguments what the operator has written in the wider type.
void narrow_written(const Widened& widened);

/// A result in the type that the caller expects.
at::Tensor narrow_result(const at::Tensor& result, const Widened& widened);

}  // namespace hpu_sim
