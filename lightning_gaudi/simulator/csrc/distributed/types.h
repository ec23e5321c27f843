// The types of tensors that each collective of HCCL takes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "distributed/work.h"

namespace hpu_sim {

/// Raises: TypeError if `collective` does not take a type of `tensors`, or if types differ.
void check_types(const char* collective, const Tensors& tensors);

/// The types that each collective takes, by torch's names without "torch.".
std::map<std::string, std::vector<std::string>> hccl_types();

/// Raises: RuntimeError unless the bytes of all tensors fill whole bf16 numbers, which HCCL moves.
void check_even_bytes(const char* collective, const Tensors& tensors);

/// Raises: RuntimeError unless all tensors have the size of the first.
void check_same_sizes(const char* collective, const Tensors& tensors);

}  // namespace hpu_sim
