#include "aten/meta_results.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/bit_cast.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hpu_sim {
namespace {

/// More calls than these are no longer the same few again and again.
constexpr size_t kMaxCalls = 1 << 14;

/// What takes one place of the stack.
struct Returned {
  int argument = -1;  ///< the mutated one that it is, or
  c10::IValue made;   ///< the new tensor, or the list of them
};

using Table = std::unordered_map<MetaKey, std::vector<Returned>, MetaKey::Hash>;

/// Of this thread: backward has threads of its own, and none waits for another.
Table& table() {
  thread_local Table calls;
  return calls;
}

/// What of a tensor's keys a kernel can see.
int64_t bits_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_conj()) | static_cast<int64_t>(tensor.is_neg()) << 1 |
         static_cast<int64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 2;
}

/// What a call has returned, as it can be given again: it has no memory, and the card's tensors get
/// theirs when they are made of it.
class Reader {
 public:
  explicit Reader(const MetaKey& key) : key_(key) {}

  /// None if another call would not return the like.
  c10::IValue read(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      return is_new(tensor) ? c10::IValue(without_object(tensor)) : c10::IValue();
    }
    if (!value.isTensorList()) return {};
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      if (!is_new(each)) return {};
      list.push_back(without_object(each));
    }
    return list;
  }

 private:
  /// Whether it has memory of its own, beside the arguments' and what else was returned.
  bool is_new(const at::Tensor& tensor) {
    if (!tensor.defined()) return true;
    if (!tensor.is_meta() || !tensor.has_storage() || bits_of(tensor) != 0) return false;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const bool is_seen = std::find(seen_.begin(), seen_.end(), storage) != seen_.end();
    seen_.push_back(storage);
    return !is_seen && !key_.has_memory_of(tensor);
  }

  /// A kernel in Python returns a tensor that belongs to an object, which must not outlive Python.
  static at::Tensor without_object(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.tensor_data() : tensor;
  }

  const MetaKey& key_;
  std::vector<const c10::StorageImpl*> seen_;
};

}  // namespace

MetaKey::MetaKey(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments)
    : is_complete_(!info.is_foreign) {
  if (!is_complete_) return;
  add_all({reinterpret_cast<intptr_t>(&info),
           static_cast<int64_t>(c10::get_default_dtype_as_scalartype())});
  for (const c10::IValue& each : arguments) add_value(each);
}

bool MetaKey::has_memory_of(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  return std::find(storages_.begin(), storages_.end(), storage) != storages_.end();
}

size_t MetaKey::Hash::operator()(const MetaKey& key) const {
  uint64_t hash = key.words_.size();
  for (int64_t word : key.words_) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

void MetaKey::add_sizes(c10::IntArrayRef sizes) {
  add(static_cast<int64_t>(sizes.size()));
  words_.append(sizes.begin(), sizes.end());
}

void MetaKey::add_value(const c10::IValue& value) {
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isInt()) {
    add_all({kInt, value.toInt()});
  } else if (value.isBool()) {
    add_all({kBool, value.toBool()});
  } else if (value.isDouble()) {
    add_all({kDouble, c10::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isNone()) {
    add(kNone);
  } else if (value.isDevice()) {
    add_all({kDevice, static_cast<int64_t>(value.toDevice().type())});
  } else if (value.isGenerator()) {
    add(kGenerator);  // no size depends on what it gives
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    add_all({kText, static_cast<int64_t>(text.size())});
    words_.append(text.begin(), text.end());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    add_all({kList, static_cast<int64_t>(list.size())});
    for (const c10::IValue& each : list) add_value(each);
  } else {
    is_complete_ = false;
  }
}

void MetaKey::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    add(kUndefined);
    return;
  }
  const bool is_number_of_host = tensor.is_cpu() && tensor.dim() == 0;
  if (!tensor.is_meta() && !is_number_of_host) {
    is_complete_ = false;
    return;
  }
  add_all({is_number_of_host ? kNumberOfHost : kTensor,
           static_cast<int64_t>(tensor.scalar_type()), bits_of(tensor)});
  is_number_of_host ? add_number_of_host(tensor) : add_layout(tensor);
}

void MetaKey::add_number_of_host(const at::Tensor& tensor) {
  int64_t words[2] = {0, 0};
  std::memcpy(words, tensor.const_data_ptr(), tensor.itemsize());
  add_all({words[0], words[1]});
}

void MetaKey::add_layout(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto known = std::find(storages_.begin(), storages_.end(), storage);
  // Some kernels refuse two arguments in one memory, or take them for one. Where in its memory an
  // argument lies alone does not matter: each gradient has another place in a bucket.
  const auto index = known - storages_.begin();
  add(index);
  if (known == storages_.end()) {
    storages_.push_back(storage);
    offsets_.push_back(tensor.storage_offset());
  } else {
    add(tensor.storage_offset() - offsets_[index]);
  }
  add_sizes(tensor.sizes());
  add_sizes(tensor.strides());
}

bool recall_meta_results(const MetaKey& key, const OpInfo& info, torch::jit::Stack& stack) {
  const auto known = table().find(key);
  if (known == table().end()) return false;
  const size_t num_arguments = info.is_scalar.size();
  const size_t first = stack.size() - num_arguments;
  c10::SmallVector<c10::IValue, 4> results;
  for (const Returned& each : known->second) {
    results.push_back(each.argument < 0 ? each.made : stack[first + each.argument]);
  }
  torch::jit::drop(stack, num_arguments);
  for (c10::IValue& each : results) stack.push_back(std::move(each));
  return true;
}

void remember_meta_results(MetaKey key, const OpInfo& info, const torch::jit::Stack& stack) {
  const size_t num_results = info.returned_arguments.size();
  std::vector<Returned> found(num_results);
  Reader reader(key);
  for (size_t r = 0; r < num_results; ++r) {
    found[r].argument = info.returned_arguments[r];
    if (found[r].argument >= 0) continue;
    found[r].made = reader.read(stack[stack.size() - num_results + r]);
    if (found[r].made.isNone()) return;
  }
  if (table().size() >= kMaxCalls) table().clear();
  table().emplace(std::move(key), std::move(found));
}

}  // namespace hpu_sim
