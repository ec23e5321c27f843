#include "runtime/dry.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

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
