// What gloo works on in place of hpu tensors: contiguous CPU tensors of types that it knows.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "distributed/work.h"

namespace hpu_sim {

/// The tensors of one collective. gloo ignores strides, as HCCL does: a contiguous tensor is worked
/// on where it lies, any other is copied first and, if it is written, copied back in the end. The
/// vendor's bridge does the same (1.24.0, process_group_eager_hccl.cpp, CollectiveContext).
class Staging {
 public:
  enum class Purpose {
    kMove,   ///< bytes only: types that gloo lacks are seen as another of their size
    kReduce  ///< fp8 is reduced in fp32, as the vendor's bridge does
  };
  explicit Staging(Purpose purpose) : purpose_(purpose) {}

  /// What gloo reads, writes, or both, for an hpu tensor or lists of them.
  ///
  /// Raises: RuntimeError if elements of what is written share memory.
  at::Tensor read(const at::Tensor& tensor) { return stage(tensor, true, false); }
  at::Tensor written(const at::Tensor& tensor) { return stage(tensor, false, true); }
  at::Tensor updated(const at::Tensor& tensor) { return stage(tensor, true, true); }
  Tensors read(const Tensors& tensors) { return stage(tensors, true, false); }
  Tensors written(const Tensors& tensors) { return stage(tensors, false, true); }
  Tensors updated(const Tensors& tensors) { return stage(tensors, true, true); }
  TensorLists read(const TensorLists& lists) { return stage(lists, true, false); }
  TensorLists written(const TensorLists& lists) { return stage(lists, false, true); }

  /// What has been staged, whose memory gloo works on without owning it: hold it until gloo has ended.
  Tensors held() const { return held_; }

  /// What remains to be done once gloo has ended: `finish`, if any, then copying back. May be null.
  std::function<void()> after(std::function<void()> finish = nullptr);

 private:
  at::Tensor stage(const at::Tensor& tensor, bool is_read, bool is_written);
  Tensors stage(const Tensors& tensors, bool is_read, bool is_written);
  TensorLists stage(const TensorLists& lists, bool is_read, bool is_written);

  const Purpose purpose_;
  Tensors held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // where to, from where
};

/// Raises: RuntimeError if elements of `tensor` share memory.
void check_writable(const at::Tensor& tensor);

/// `read`, or a copy of it if gloo would write over it while others still need it.
at::Tensor apart_from(const at::Tensor& read, const Tensors& written);

inline Tensors first(const TensorLists& lists) { return lists.empty() ? Tensors{} : lists[0]; }

/// All tensors end to end in a new one of one dimension.
at::Tensor flattened(const Tensors& tensors);

}  // namespace hpu_sim
