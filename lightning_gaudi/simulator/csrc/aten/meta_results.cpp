#include "aten/meta_results.h"

#include <ATen/TensorUtils.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aten/dispatch_keys.h"

namespace hpu_sim {
namespace {

/// More calls than these are no longer the same few again and again.
constexpr size_t kMaxCalls = 1 << 14;

/// A new tensor, without memory.
struct Made {
  bool is_defined = false;
  c10::ScalarType type = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  size_t num_bytes = 0;  ///< of its storage
};

/// What takes one place of the stack.
struct Returned {
  int argument = -1;  ///< the mutated one that it is, or
  bool is_list = false;
  std::vector<Made> made;  ///< the new one, or those of the list
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

/// The tensors that a call has returned, as far as they were seen.
class Reader {
 public:
  explicit Reader(const MetaKey& key) : key_(key) {}

  /// False if another call would not return the like.
  bool read(const at::Tensor& tensor, std::vector<Made>& made) {
    Made& found = made.emplace_back();
    found.is_defined = tensor.defined();
    if (!found.is_defined) return true;
    if (!tensor.is_meta() || !tensor.has_storage() || bits_of(tensor) != 0) return false;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (std::find(seen_.begin(), seen_.end(), storage) != seen_.end()) return false;
    seen_.push_back(storage);
    found.type = tensor.scalar_type();
    found.sizes = tensor.sizes().vec();
    found.strides = tensor.strides().vec();
    found.offset = tensor.storage_offset();
    found.num_bytes = storage->nbytes();
    return !key_.has_memory_of(tensor);
  }

 private:
  const MetaKey& key_;
  std::vector<const c10::StorageImpl*> seen_;
};

at::Tensor make(const Made& like) {
  if (!like.is_defined) return {};
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), like.num_bytes,
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kMetaKeys,
                                                         c10::scalarTypeToTypeMeta(like.type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes, like.strides, like.offset);
  return tensor;
}

c10::IValue make(const Returned& like) {
  if (!like.is_list) return make(like.made.front());
  c10::List<at::Tensor> list;
  list.reserve(like.made.size());
  for (const Made& each : like.made) list.push_back(make(each));
  return list;
}

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

void MetaKey::add_bits(Kind kind, double number) {
  int64_t word;
  std::memcpy(&word, &number, sizeof(word));
  add_all({kind, word});
}

void MetaKey::add_value(const c10::IValue& value) {
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isInt()) {
    add_all({kInt, value.toInt()});
  } else if (value.isBool()) {
    add_all({kBool, value.toBool()});
  } else if (value.isDouble()) {
    add_bits(kDouble, value.toDouble());
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
  // Some kernels refuse two arguments in one memory, or take them for one.
  add(known - storages_.begin());
  if (known == storages_.end()) storages_.push_back(storage);
  add_all({static_cast<int64_t>(storage->nbytes()), tensor.storage_offset()});
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
    results.push_back(each.argument < 0 ? make(each) : stack[first + each.argument]);
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
    Returned& each = found[r];
    const c10::IValue& value = stack[stack.size() - num_results + r];
    each.argument = info.returned_arguments[r];
    if (each.argument >= 0) continue;
    each.is_list = value.isTensorList();
    if (value.isTensor()) {
      if (!reader.read(value.toTensor(), each.made)) return;
    } else if (each.is_list) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!reader.read(tensor, each.made)) return;
      }
    } else {
      return;
    }
  }
  if (table().size() >= kMaxCalls) table().clear();
  table().emplace(std::move(key), std::move(found));
}

}  // namespace hpu_sim
