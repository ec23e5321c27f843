// Where the ranks of an HCCL group meet at the host: over the store of the group, for as long as it
// takes. A rank that never comes is waited for for ever, and so is one that has died.
//
// Source: Intel Gaudi PyTorch bridge 1.19 and 1.24.0, `distributed/hccl/process_group_hccl_base.cpp`
// (`hostBarrier`, `destroyHandshake`), `process_group_eager_hccl.cpp` and `ProcessGroupHCCL.cpp`
// (`barrier`, `destroy` and the destructors); the order at the end is that of 1.24.0.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace hpu_sim {

class HostBarrier {
 public:
  HostBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  /// Returns when all ranks have called it as often. Asks the store once a millisecond.
  void meet();

  /// Returns on rank 0, whose process may hold the store, when all ranks have called it; elsewhere
  /// at once.
  void part();

 private:
  void wait_for_all(const std::string& key);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  int64_t num_meetings_ = 0;
};

}  // namespace hpu_sim
