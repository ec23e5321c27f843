// What operators returned on the device "meta", for calls that look the same.
//
// Most of torch's kernels for it are written in Python and take half a millisecond. They look at
// sizes, strides and types alone, and a model calls the same operators on the same shapes in each
// layer and step.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>

#include "aten/op_info.h"

namespace hpu_sim {

/// All of its arguments that tells a kernel what to return, in words.
class MetaKey {
 public:
  /// `arguments`: tensors are of the device "meta", or numbers of the CPU.
  MetaKey(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

  /// False where an argument could not be written down, or the kernel is not torch's own, and may
  /// do more than tell sizes.
  bool is_complete() const { return is_complete_; }

  /// Whether a tensor lies in the memory of an argument.
  bool has_memory_of(const at::Tensor& tensor) const;

  struct Hash {
    size_t operator()(const MetaKey& key) const;
  };
  bool operator==(const MetaKey& other) const { return words_ == other.words_; }

 private:
  // One for each kind of thing that is written down, so that [a, [b]] and [[a], b] differ.
  enum Kind : int64_t {
    kNone,
    kTensor,
    kUndefined,
    kNumberOfHost,
    kInt,
    kBool,
    kDouble,
    kDevice,
    kGenerator,
    kText,
    kList
  };

  void add(int64_t word) { words_.push_back(word); }
  void add_all(std::initializer_list<int64_t> words) { words_.append(words.begin(), words.end()); }
  void add_sizes(c10::IntArrayRef sizes);
  void add_value(const c10::IValue& value);
  void add_tensor(const at::Tensor& tensor);
  void add_number_of_host(const at::Tensor& tensor);
  void add_layout(const at::Tensor& tensor);

  c10::SmallVector<int64_t, 64> words_;
  c10::SmallVector<const c10::StorageImpl*, 6> storages_;
  c10::SmallVector<int64_t, 6> offsets_;  // where the first argument in each of them begins
  bool is_complete_;
};

/// Puts what a call like this one returned in place of its arguments, the last `num_arguments` of
/// the stack. False, and nothing done, where there was none.
bool recall_meta_results(const MetaKey& key, const OpInfo& info, torch::jit::Stack& stack);

/// Remembers what this thread's call has returned, the last values of the stack, if another would
/// return the like: new tensors, each with memory of its own.
void remember_meta_results(MetaKey key, const OpInfo& info, const torch::jit::Stack& stack);

}  // namespace hpu_sim
