// The card's book-keeping of bytes: every allocation reserves first.
//
// It counts as the vendor's pool does. A request is rounded up to 128 bytes. One of at most 128 bytes
// comes out of a pool of small chunks, which has 6144 of them and is in use from the start. In use
// from the start are also a header, and the workspace that all graphs share. What a graph takes of
// the workspace beyond its first 4 MiB nobody publishes, and it is not counted.
// Source: Gaudi PyTorch bridge 1.19.0, backend/synapse_helpers/pool_allocator/
// CoalescedStringentPoolAllocator.cpp, which adds the pool of small chunks to its statistics twice;
// device_memory.cpp (block_align); device.cpp (the workspace). That it is 128 bytes follows from the
// pool's smallest bin, 256 bytes, which is twice the alignment.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpu_sim {

/// How the pool counts, as the vendor's sources have it; what was measured of a card replaces it.
struct MemoryTerms {
  int64_t alignment = 128;       ///< a request is rounded up to a multiple of it
  int64_t header_bytes = 0;      ///< that each request takes besides, if no small chunk serves it
  int64_t small_bytes = 128;     ///< the largest request that a small chunk serves
  int64_t num_small = 6 * 1024;  ///< small chunks
  int64_t at_start_bytes = -1;   ///< in use before the first request; -1: as above
};

/// Replaces the terms, before any memory is asked for.
void set_memory_terms(const MemoryTerms& terms);

/// Counts a request of `num_bytes`. Raises torch.OutOfMemoryError past the limit, counting nothing.
class Reservation {
 public:
  explicit Reservation(int64_t num_bytes);
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  /// Gives the bytes back unless `keep` was called: the memory itself could not be had.
  ~Reservation();

  /// The allocation exists now; `release_reserved` must follow when it is freed.
  void keep();

  /// What it adds to the bytes in use; 0 if it is one of the pool's small chunks.
  int64_t counted_bytes() const { return counted_bytes_; }

 private:
  int64_t num_bytes_;
  int64_t counted_bytes_;
  bool is_kept_ = false;
};

/// Gives back what a reservation of `num_bytes` has counted.
void release_reserved(int64_t num_bytes, int64_t counted_bytes);

/// The process has taken its card: counts what the card's allocator takes for itself.
void occupy_at_start();

/// What `occupy_at_start` has counted; 0 before.
int64_t bytes_at_start();

/// "1.50 GiB", "3.00 MiB", "12 bytes"
std::string format_bytes(int64_t num_bytes);

}  // namespace hpu_sim
