// Operators that draw random numbers but take no Generator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/op_info.h"

namespace hpu_sim {

/// Calls the CPU's kernel of an operator that `info` says draws without a generator, so that it
/// draws from the card's default stream. The CPU's default generator stays as it is: other threads
/// may be drawing from it.
///
/// Raises: NotImplementedError for an operator of torch's of which it is not known how it draws.
void call_drawing_kernel(const OpInfo& info, const c10::OperatorHandle& op,
                         torch::jit::Stack& stack);

}  // namespace hpu_sim
