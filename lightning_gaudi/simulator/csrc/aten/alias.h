// Two names for one memory: an hpu tensor and the CPU tensor that a CPU kernel works on.
//
// Identity decides: the same TensorImpl comes back as the same tensor, a tensor over the same
// StorageImpl comes back as a view, any other CPU storage is adopted (the hpu storage owns it).
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/pair_table.h"

namespace hpu_sim {

/// A CPU tensor over the memory of `tensor`, which it keeps alive: safe to hold for as long as
/// wanted. Tensors of other devices and undefined ones come back as they are.
at::Tensor cpu_alias(const at::Tensor& tensor);

/// The same, but the memory lives no longer than without it: the caller holds `tensor`.
at::Tensor unowning_cpu_alias(const at::Tensor& tensor);

/// A CPU tensor over the memory of `tensor`, for one call during which the caller holds `tensor`.
at::Tensor borrowing_cpu_alias(const at::Tensor& tensor);

/// The hpu tensor that owns a new result of the CPU, which is made contiguous first if asked.
///
/// Raises: torch.OutOfMemoryError if it would exceed the card's memory.
at::Tensor adopt_result(at::Tensor cpu, bool contiguous);

/// The aliases made during one call of a CPU kernel.
///
/// The table owns both sides. With raw pointers a kernel that frees an argument could see its
/// address used again for a result, and the result would be taken for the argument.
class AliasTable {
 public:
  /// `may_outlive_call`: the kernel is not torch's own and may keep an alias, which then owns its
  /// memory. That costs an allocation an argument.
  /// `on_meta`: aliases are tensors of the device "meta", without memory, as a dry card needs them.
  explicit AliasTable(bool may_outlive_call = false, bool on_meta = false)
      : may_outlive_call_(may_outlive_call), on_meta_(on_meta) {}

  /// The CPU side of an hpu tensor; any other tensor is returned as it is.
  at::Tensor to_cpu(at::Tensor tensor);

  /// The hpu side of what a CPU kernel returned.
  ///
  /// A new result is made contiguous first if `contiguous`; a result over the memory of an
  /// argument never is.
  ///
  /// Raises: NotImplementedError for a sparse or otherwise strange result;
  /// torch.OutOfMemoryError if adopting a new result would exceed the card's memory.
  at::Tensor to_hpu(const at::Tensor& tensor, bool contiguous = false);

 private:
  c10::Storage cpu_storage(const c10::Storage& hpu);

  const bool may_outlive_call_;
  const bool on_meta_;
  PairTable<at::Tensor> tensors_;
  PairTable<c10::Storage> storages_;
};

/// Carries sizes, strides, bytes and memory from a mutated CPU alias to its hpu tensor: a CPU
/// kernel may have resized an `out=` tensor. Whether anything had changed.
bool sync_metadata(const at::Tensor& hpu, const at::Tensor& cpu);

}  // namespace hpu_sim
