// A dry card: its tensors have sizes, types and addresses, and nothing is computed. So a model that
// is larger than the host can be set up and stepped through, to see what memory it will take.
//
// Kernels are those of torch's device "meta". Copies of a few bytes are made all the same: what
// libraries say of themselves (sizes, hashes, seeds) goes over the card too, and is read again.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>

namespace hpu_sim {

extern std::atomic<bool> g_is_dry;
inline bool is_dry() { return g_is_dry.load(std::memory_order_relaxed); }

/// Have this process's card be dry, before it is used.
void set_dry();

/// What is copied though the card is dry.
inline constexpr size_t kCopiedBytes = size_t{1} << 16;

/// What is at most zeroed where it comes from a dry card to the host: more would take memory.
inline constexpr size_t kZeroedBytes = size_t{1} << 28;

/// Addresses that nobody else has, and that read as zero; they take no memory until written.
c10::DataPtr reserve_addresses(size_t num_bytes);

}  // namespace hpu_sim
