// What tensors a collective of HCCL takes.
#pragma once

#include <optional>

#include "distributed/work.h"

namespace hpu_sim {

/// What else a call asks for that rules are about.
struct Asked {
  std::optional<int> reduction;  ///< c10d::ReduceOp::RedOpType
  bool has_split_sizes = false;
};

/// Looks up the rules of the collective, and raises a TypeError if types differ.
void check_types(const char* collective, const Tensors& tensors, const Asked& asked = {});

/// Raises: TypeError if types differ.
void check_same_types(const char* collective, const Tensors& tensors);

/// Raises: RuntimeError unless all tensors have the size of the first.
void check_same_sizes(const char* collective, const Tensors& tensors);

}  // namespace hpu_sim
