#include "alias.h"

#include <ATen/TensorUtils.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "allocator.h"
#include "device.h"
#include "dispatch_keys.h"

namespace hpu_sim {
namespace {

/// A tensor on `storage` with the metadata of `like`.
at::Tensor make_view(c10::Storage storage, c10::DispatchKeySet keys, const c10::TensorImpl* like) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like->dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
  if (like->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like->key_set().has(c10::DispatchKey::Conjugate)) impl->_set_conj(true);
  if (like->key_set().has(c10::DispatchKey::Negative)) impl->_set_neg(true);
  return tensor;
}

c10::Storage make_storage(const c10::SymInt& num_bytes, c10::DataPtr data, c10::Allocator* from) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), num_bytes, std::move(data), from, /*resizable=*/true));
}

void* memory_of(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

void release_storage(void* context) { delete static_cast<c10::Storage*>(context); }

c10::Storage owning_cpu_storage(const c10::Storage& hpu) {
  c10::DataPtr data(memory_of(hpu), new c10::Storage(hpu), &release_storage,
                    c10::Device(c10::DeviceType::CPU));
  return make_storage(hpu.sym_nbytes(), std::move(data), c10::GetCPUAllocator());
}

// Cheaper: does not own. The table that holds it also holds the hpu storage.
c10::Storage borrowing_cpu_storage(const c10::Storage& hpu) {
  c10::DataPtr data(memory_of(hpu), c10::Device(c10::DeviceType::CPU));
  return make_storage(hpu.sym_nbytes(), std::move(data), c10::GetCPUAllocator());
}

at::Tensor contiguous_on_cpu(const at::Tensor& cpu) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  return cpu.contiguous();
}

}  // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu()) return tensor;
  return make_view(owning_cpu_storage(tensor.storage()), kCpuKeys, tensor.unsafeGetTensorImpl());
}

at::Tensor AliasTable::to_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const at::Tensor* known = tensors_.cpu_of(impl)) return *known;
  const c10::Storage& hpu = impl->unsafe_storage();
  c10::Storage cpu;
  if (const c10::Storage* known = storages_.cpu_of(hpu.unsafeGetStorageImpl())) {
    cpu = *known;
  } else {
    cpu = borrowing_cpu_storage(hpu);
    storages_.add(cpu, hpu);
  }
  at::Tensor alias = make_view(std::move(cpu), kCpuKeys, impl);
  tensors_.add(alias, tensor);
  return alias;
}

at::Tensor AliasTable::to_hpu(const at::Tensor& tensor, bool contiguous) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const at::Tensor* known = tensors_.hpu_of(impl)) return *known;
  const c10::Storage& cpu = impl->unsafe_storage();
  if (const c10::Storage* known = storages_.hpu_of(cpu.unsafeGetStorageImpl())) {
    return make_view(*known, kHpuKeys, impl);
  }
  if (contiguous && !tensor.is_contiguous()) return to_hpu(contiguous_on_cpu(tensor));
  c10::Storage hpu = make_storage(cpu.sym_nbytes(), adopt_storage(cpu), hpu_allocator());
  storages_.add(cpu, hpu);
  return make_view(std::move(hpu), kHpuKeys, impl);
}

void sync_metadata(const at::Tensor& hpu, const at::Tensor& cpu) {
  c10::TensorImpl* to = hpu.unsafeGetTensorImpl();
  const c10::TensorImpl* from = cpu.unsafeGetTensorImpl();
  const c10::Storage& cpu_storage = from->unsafe_storage();
  c10::StorageImpl* storage = to->unsafe_storage().unsafeGetStorageImpl();
  if (memory_of(to->unsafe_storage()) != memory_of(cpu_storage) ||
      storage->nbytes() != cpu_storage.nbytes()) {
    storage->set_data_ptr_noswap(adopt_storage(cpu_storage));
    storage->set_nbytes(cpu_storage.nbytes());
  }
  if (to->sizes() != from->sizes() || to->strides() != from->strides() ||
      to->storage_offset() != from->storage_offset()) {
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }
}

}  // namespace hpu_sim
