#include "runtime/dry.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "runtime/allocator.h"

namespace hpu_sim {
namespace {

struct Mapping {
  void* pointer;
  size_t num_bytes;
};

void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  ::munmap(mapping->pointer, mapping->num_bytes);
}

}  // namespace

std::atomic<bool> g_is_dry{false};

void set_dry() { g_is_dry.store(true); }

namespace {

Block* block_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu() || !tensor.has_storage()) return nullptr;
  return block_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

bool is_of_integers(at::ScalarType type) {
  return type == at::kLong || type == at::kInt || type == at::kBool;
}

}  // namespace

bool has_values(const at::Tensor& tensor) {
  const Block* block = block_of_tensor(tensor);
  return block == nullptr || block->has_values.load(std::memory_order_relaxed);
}

void lose_values(const at::Tensor& tensor) {
  if (Block* block = block_of_tensor(tensor)) {
    block->has_values.store(false, std::memory_order_relaxed);
  }
}

void Amount::add(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;  // those of the host may be sparse
  (is_of_integers(tensor.scalar_type()) ? num_integer_bytes_ : num_float_bytes_) += tensor.nbytes();
  is_known_ = is_known_ && has_values(tensor);
}

bool Amount::is_small() const {
  return num_float_bytes_ <= kComputedBytes &&
         num_bytes() <= (is_known_ ? kKnownBytes : kComputedBytes);
}

c10::DataPtr reserve_addresses(size_t num_bytes) {
  if (num_bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
  void* pointer = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(pointer != MAP_FAILED, "The host has no addresses left for a tensor of ", num_bytes,
              " bytes on the dry card (", std::strerror(errno),
              "). Raise `ulimit -v` or /proc/sys/vm/max_map_count.");
  return {pointer, new Mapping{pointer, num_bytes}, &unmap, c10::Device(c10::DeviceType::CPU)};
}

}  // namespace hpu_sim
