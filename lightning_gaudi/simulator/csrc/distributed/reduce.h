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

/// Raises for an average that the vendor's bridge cannot divide in the type of `output`: it divides
/// what a reduce-scatter gave in place (1.24.0, process_group_hccl_base.cpp; it converts integers of
/// one byte to fp32 before, but not those in lists).
void check_divisible(const char* collective, const c10d::ReduceOp& op, const at::Tensor& output);

}  // namespace hpu_sim
