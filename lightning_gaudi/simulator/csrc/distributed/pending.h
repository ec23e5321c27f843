// Tensors of collectives under way, and what becomes of them when the process ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace hpu_sim {

/// Holds the tensors of a work as long as the work does.
std::shared_ptr<const std::vector<at::Tensor>> hold_pending(std::vector<at::Tensor> tensors);

/// Keeps the tensors of all works under way for ever. Call without the interpreter lock.
///
/// A work that nobody waited for may end after the interpreter. Freeing a tensor that Python has
/// known then needs a lock that is not to be had any more, and the process aborts.
void keep_pending();

}  // namespace hpu_sim
