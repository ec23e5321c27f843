// Collectives under way: who waits for all of them, and what becomes of their tensors when the
// process ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

namespace hpu_sim {

/// Holds the tensors of a work as long as the work does.
std::shared_ptr<const std::vector<at::Tensor>> hold_pending(std::vector<at::Tensor> tensors);

/// Notes a collective, which has ended when the result is true. It holds none of its tensors: a
/// weak reference to a future would, whose destructor waits for the last of those.
std::shared_ptr<std::atomic<bool>> note_under_way();

/// Waits until all collectives so far have ended, with or without an error, as who waits for the
/// card does: HCCL's are work on its streams. May be called with the interpreter lock, which no
/// collective needs in order to end.
void wait_for_collectives();

/// Keeps the tensors of all works under way for ever. Call without the interpreter lock.
///
/// A work that nobody waited for may end after the interpreter. Freeing a tensor that Python has
/// known then needs a lock that is not to be had any more, and the process aborts.
void keep_pending();

}  // namespace hpu_sim
