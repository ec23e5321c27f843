// Reductions of HCCL by those of gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>

#include "distributed/work.h"

namespace hpu_sim {

/// Replaces `op` by what gloo is to do to the CPU tensors `reduced` of `num_ranks` ranks. Returns
/// what remains to be done to its result, or null. Raises for what HCCL does not reduce by.
std::function<void()> translate_reduction(c10d::ReduceOp& op, const Tensors& reduced,
                                          int num_ranks);

}  // namespace hpu_sim
