// A small two-way table of owned pairs: a linear scan for a few, a hash index for many.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <memory>
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
    if (pairs_.size() <= kScanLimit) return;
    if (index_ == nullptr) index_ = std::make_unique<Index>();
    while (num_indexed_ < pairs_.size()) {
      const Pair& pair = pairs_[num_indexed_];
      (*index_)[identity(pair.cpu)] = num_indexed_;
      (*index_)[identity(pair.hpu)] = num_indexed_++;
    }
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
  using Index = std::unordered_map<const void*, size_t>;
  static constexpr size_t kScanLimit = 24;

  // The two sides live at different addresses, so one search serves both directions.
  const Pair* find(const void* key) const {
    if (index_ != nullptr) {
      auto found = index_->find(key);
      return found == index_->end() ? nullptr : &pairs_[found->second];
    }
    for (const Pair& pair : pairs_) {
      if (identity(pair.hpu) == key || identity(pair.cpu) == key) return &pair;
    }
    return nullptr;
  }

  c10::SmallVector<Pair, 6> pairs_;
  std::unique_ptr<Index> index_;
  size_t num_indexed_ = 0;
};

}  // namespace hpu_sim
