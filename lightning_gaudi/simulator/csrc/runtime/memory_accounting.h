// The card's book-keeping of bytes: every allocation reserves first.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpu_sim {

/// Counts `num_bytes` as in use. Raises torch.OutOfMemoryError past the limit, counting nothing.
class Reservation {
 public:
  explicit Reservation(int64_t num_bytes);
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  /// Gives the bytes back unless `keep` was called: the memory itself could not be had.
  ~Reservation();

  /// The allocation exists now; `release_reserved` must follow when it is freed.
  void keep();

 private:
  int64_t num_bytes_;
  bool is_kept_ = false;
};

void release_reserved(int64_t num_bytes);

/// "1.50 GiB", "3.00 MiB", "12 bytes"
std::string format_bytes(int64_t num_bytes);

}  // namespace hpu_sim
