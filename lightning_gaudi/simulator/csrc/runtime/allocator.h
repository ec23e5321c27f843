// Memory of the card: taken from the host, counted against the card's capacity.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace hpu_sim {

/// What stands behind the DataPtr of an hpu storage.
struct Block {
  Block(int64_t num_bytes, int64_t counted_bytes, c10::DataPtr memory, c10::Storage adopted);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  const int64_t num_bytes;
  const int64_t counted_bytes;  ///< what it adds to the card's bytes in use
  const c10::DataPtr memory;   ///< set if the allocator took the memory
  const c10::Storage adopted;  ///< set if a CPU kernel had made it

  /// Which allocation of this process it is, from 1 on.
  const int64_t number;

  // The graph tracker's name for the value in this memory. It lives here so that an address that
  // is used again does not look like the old value.
  int64_t graph_epoch = -1;
  int64_t graph_value = -1;

  /// Whether a dry card has what is in it: zeros at first. See runtime/dry.h.
  std::atomic<bool> has_values{true};

  // A CPU storage over this memory that does not own it, made at the first use (aten/alias.cpp).
  std::atomic<c10::StorageImpl*> cpu_twin{nullptr};
};

c10::Allocator* hpu_allocator();
c10::Allocator* pinned_allocator();

/// The block of an hpu storage; null if the memory is not ours.
Block* block_of(const c10::StorageImpl* storage);

/// A DataPtr on the device that owns `cpu`; counted like an allocation of its size. Of a storage of
/// the device "meta" it has the size alone.
c10::DataPtr adopt_storage(const c10::Storage& cpu);

bool is_pinned(const void* pointer);

/// From now on keep a log of what is allocated and freed, or no longer; the log begins anew.
void log_memory(bool is_on);

/// The number of what the card's allocator takes for itself, in the log.
inline constexpr int64_t kAllocatorsOwn = -1;

/// How many events the log has.
size_t memory_log_size();

/// Most bytes in use since a place in the log, `memory_log_size` at that time.
int64_t most_logged(size_t start);

/// Most bytes in use between two such places, and then the bytes of each allocation by its number.
std::pair<int64_t, std::unordered_map<int64_t, int64_t>> logged_peak(size_t start, size_t end);

/// The process has taken its card: what its allocator takes for itself is in use, and logged.
void note_card_taken();

/// Capacity in bytes; 0 means without a limit.
void set_memory_limit(int64_t num_bytes);

/// What the workspace that all graphs share has when a process takes its card.
void set_workspace_bytes(int64_t num_bytes);

/// The vendor's keys: Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs, MaxAllocSize,
/// TotalSystemAllocs, TotalSystemFrees, TotalActiveAllocs.
std::map<std::string, int64_t> memory_stats();
void reset_peak_memory_stats();
void reset_accumulated_memory_stats();

}  // namespace hpu_sim
