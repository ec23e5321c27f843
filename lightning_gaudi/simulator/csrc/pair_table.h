// A small two-way table of owned pairs: a linear scan for a few, a hash index for many.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <unordered_map>

namespace hpu_sim {

inline const void* identity(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }
inline const void* identity(const c10::Storage& storage) { return storage.unsafeGetStorageImpl(); }

/// Pairs of the CPU and the hpu side of one thing; `Handle` is an owning handle.
template <class Handle>
class PairTable {
 public:
  void add(Handle cpu, Handle hpu) {
    pairs_.push_back({std::move(cpu), std::move(hpu)});
    if (pairs_.size() > kScanLimit) index_from(by_identity_.empty() ? 0 : pairs_.size() - 1);
  }

  /// The other side of the handle with this identity, or null.
  const Handle* cpu_of(const void* hpu) const {
    const Pair* pair = find(hpu);
    return pair ? &pair->cpu : nullptr;
  }
  const Handle* hpu_of(const void* cpu) const {
    const Pair* pair = find(cpu);
    return pair ? &pair->hpu : nullptr;
  }

 private:
  struct Pair {
    Handle cpu;
    Handle hpu;
  };
  static constexpr size_t kScanLimit = 24;

  // The two sides live at different addresses, so one search serves both directions.
  const Pair* find(const void* key) const {
    if (!by_identity_.empty()) {
      auto found = by_identity_.find(key);
      return found == by_identity_.end() ? nullptr : &pairs_[found->second];
    }
    for (const Pair& pair : pairs_) {
      if (identity(pair.hpu) == key || identity(pair.cpu) == key) return &pair;
    }
    return nullptr;
  }

  void index_from(size_t first) {
    for (size_t i = first; i < pairs_.size(); ++i) {
      by_identity_[identity(pairs_[i].cpu)] = i;
      by_identity_[identity(pairs_[i].hpu)] = i;
    }
  }

  c10::SmallVector<Pair, 6> pairs_;
  std::unordered_map<const void*, size_t> by_identity_;
};

}  // namespace hpu_sim
