#include "aten/alias.h"

#include <ATen/TensorUtils.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/dispatch_keys.h"
#include "aten/layouts.h"
#include "runtime/allocator.h"
#include "runtime/device.h"

namespace hpu_sim {
namespace {

/// A tensor on `storage` with the metadata of `like`.
at::Tensor make_view(c10::Storage storage, c10::DispatchKeySet keys, const c10::TensorImpl* like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like->dtype());
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

c10::Storage borrowing_cpu_storage(const c10::Storage& hpu) {
  c10::DataPtr data(memory_of(hpu), c10::Device(c10::DeviceType::CPU));
  return make_storage(hpu.sym_nbytes(), std::move(data), c10::GetCPUAllocator());
}

c10::Storage meta_storage(const c10::Storage& hpu) {
  return make_storage(hpu.sym_nbytes(), {nullptr, c10::Device(c10::DeviceType::Meta)},
                      c10::GetAllocator(c10::DeviceType::Meta));
}

/// The first of two threads wins; the twin then belongs to the block.
c10::Storage publish_twin(Block& block, c10::Storage twin) {
  c10::StorageImpl* expected = nullptr;
  c10::StorageImpl* desired = twin.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(desired);
  if (!block.cpu_twin.compare_exchange_strong(expected, desired)) {
    c10::raw::intrusive_ptr::decref(desired);
  }
  return twin;
}

/// A CPU storage for one call. It does not own the memory, but the table that holds it does.
///
/// The block keeps it for the next call, unless a kernel that failed has resized it.
c10::Storage cpu_storage_for_call(const c10::Storage& hpu) {
  Block* block = block_of(hpu.unsafeGetStorageImpl());
  if (block == nullptr) return borrowing_cpu_storage(hpu);
  c10::StorageImpl* twin = block->cpu_twin.load(std::memory_order_acquire);
  if (twin == nullptr) return publish_twin(*block, borrowing_cpu_storage(hpu));
  const auto& memory = twin->_mutable_data_ptr_no_checks();
  if (memory.get() != memory_of(hpu) || twin->nbytes() != hpu.nbytes()) {
    return borrowing_cpu_storage(hpu);
  }
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(twin));
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

at::Tensor unowning_cpu_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu()) return tensor;
  return make_view(borrowing_cpu_storage(tensor.storage()), kCpuKeys, tensor.unsafeGetTensorImpl());
}

at::Tensor borrowing_cpu_alias(const at::Tensor& tensor) {
  if (!tensor.device().is_hpu()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return make_view(cpu_storage_for_call(impl->unsafe_storage()), kCpuKeys, impl);
}

at::Tensor adopt_result(at::Tensor cpu, bool contiguous) {
  if (contiguous && !cpu.is_contiguous()) cpu = contiguous_on_cpu(cpu);
  const c10::TensorImpl* impl = cpu.unsafeGetTensorImpl();
  const c10::Storage& storage = impl->unsafe_storage();
  return make_view(make_storage(storage.sym_nbytes(), adopt_storage(storage), hpu_allocator()),
                   kHpuKeys, impl);
}

at::Tensor AliasTable::to_cpu(at::Tensor tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const at::Tensor* known = tensors_.cpu_of(impl)) return *known;
  at::Tensor alias =
      make_view(cpu_storage(impl->unsafe_storage()), on_meta_ ? kMetaKeys : kCpuKeys, impl);
  tensors_.add(alias, std::move(tensor));
  return alias;
}

c10::Storage AliasTable::cpu_storage(const c10::Storage& hpu) {
  if (const c10::Storage* known = storages_.cpu_of(hpu.unsafeGetStorageImpl())) return *known;
  c10::Storage cpu = on_meta_            ? meta_storage(hpu)
                     : may_outlive_call_ ? owning_cpu_storage(hpu)
                                         : cpu_storage_for_call(hpu);
  storages_.add(cpu, hpu);
  return cpu;
}

at::Tensor AliasTable::to_hpu(const at::Tensor& tensor, bool contiguous) {
  if (!tensor.defined() || !(on_meta_ ? tensor.is_meta() : tensor.is_cpu())) return tensor;
  if (!is_dense(tensor)) refuse_layout(tensor);
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

bool sync_metadata(const at::Tensor& hpu, const at::Tensor& cpu) {
  c10::TensorImpl* to = hpu.unsafeGetTensorImpl();
  const c10::TensorImpl* from = cpu.unsafeGetTensorImpl();
  const c10::Storage& cpu_storage = from->unsafe_storage();
  c10::StorageImpl* storage = to->unsafe_storage().unsafeGetStorageImpl();
  const bool is_other = cpu_storage.device_type() != c10::DeviceType::Meta &&
                        memory_of(to->unsafe_storage()) != memory_of(cpu_storage);
  const bool has_other_bytes = is_other || storage->nbytes() != cpu_storage.nbytes();
  if (has_other_bytes) {
    storage->set_data_ptr_noswap(adopt_storage(cpu_storage));
    storage->set_nbytes(cpu_storage.nbytes());
  }
  const bool is_other_view = to->sizes() != from->sizes() || to->strides() != from->strides() ||
                             to->storage_offset() != from->storage_offset();
  if (is_other_view) {
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }
  return has_other_bytes || is_other_view;
}

}  // namespace hpu_sim
