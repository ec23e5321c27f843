#include "runtime/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "runtime/device.h"
#include "runtime/dry.h"
#include "runtime/memory_accounting.h"

namespace hpu_sim {
namespace {

std::atomic<int64_t> g_num_blocks{0};
std::atomic<bool> g_is_logging{false};
std::mutex g_log_mutex;

struct MemoryEvent {
  int64_t number;         // of the allocation
  int64_t num_bytes;      // of the tensor; below zero where it was freed
  int64_t counted_bytes;  // what it adds to the bytes in use
};
std::vector<MemoryEvent> g_log;

void log_event(int64_t number, int64_t num_bytes, int64_t counted_bytes) {
  if (!g_is_logging.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(g_log_mutex);
  g_log.push_back({number, num_bytes, counted_bytes});
}

/// Most bytes in use between two places of the log, and how many events lead there.
std::pair<int64_t, size_t> fullest(size_t start, size_t end) {
  int64_t in_use = 0;
  for (size_t index = 0; index < start; ++index) in_use += g_log[index].counted_bytes;
  std::pair<int64_t, size_t> most{in_use, start};
  for (size_t index = start; index < end; ++index) {
    in_use += g_log[index].counted_bytes;
    if (in_use > most.first) most = {in_use, index + 1};
  }
  return most;
}

void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  log_event(block->number, -block->num_bytes, -block->counted_bytes);
  release_reserved(block->num_bytes, block->counted_bytes);
}

c10::DataPtr to_data_ptr(void* pointer, std::unique_ptr<Block> block, Reservation& reservation) {
  reservation.keep();
  log_event(block->number, block->num_bytes, block->counted_bytes);
  return {pointer, block.release(), &free_block, hpu_device()};
}

c10::DataPtr allocate_on_host(size_t num_bytes) {
  if (is_dry()) return reserve_addresses(num_bytes);
  try {
    return c10::GetCPUAllocator()->allocate(num_bytes);
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(OutOfMemoryError,
                    "HPU out of memory: the simulated card has room for " +
                        format_bytes(static_cast<int64_t>(num_bytes)) +
                        " more, but the host that simulates it does not. Use a smaller model or "
                        "batch, or a host with more memory. The host said: " +
                        error.what_without_backtrace());
  }
}

class HPUAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    touch_device();
    Reservation reservation(static_cast<int64_t>(num_bytes));
    c10::DataPtr memory = allocate_on_host(num_bytes);
    void* pointer = memory.get();
    auto block = std::make_unique<Block>(static_cast<int64_t>(num_bytes),
                                         reservation.counted_bytes(), std::move(memory),
                                         c10::Storage());
    return to_data_ptr(pointer, std::move(block), reservation);
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    if (!is_dry() || count <= kComputedBytes) default_copy_data(dest, src, count);
  }
};

std::mutex g_pinned_mutex;
std::unordered_set<const void*> g_pinned;

void free_pinned(void* context) {
  std::unique_ptr<c10::DataPtr> memory(static_cast<c10::DataPtr*>(context));
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  g_pinned.erase(memory->get());
}

/// Host memory that the card's DMA may read; here ordinary memory that is remembered.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    auto memory = std::make_unique<c10::DataPtr>(c10::GetCPUAllocator()->allocate(num_bytes));
    void* pointer = memory->get();
    std::lock_guard<std::mutex> lock(g_pinned_mutex);
    if (pointer != nullptr) g_pinned.insert(pointer);
    return {pointer, memory.release(), &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

HPUAllocator g_hpu_allocator;
PinnedAllocator g_pinned_allocator;

}  // namespace

REGISTER_ALLOCATOR(c10::DeviceType::HPU, &g_hpu_allocator);

Block::Block(int64_t num_bytes, int64_t counted_bytes, c10::DataPtr memory, c10::Storage adopted)
    : num_bytes(num_bytes),
      counted_bytes(counted_bytes),
      memory(std::move(memory)),
      adopted(std::move(adopted)),
      number(++g_num_blocks) {}

Block::~Block() {
  if (c10::StorageImpl* twin = cpu_twin.load()) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin);  // and released at once
  }
}

c10::Allocator* hpu_allocator() { return &g_hpu_allocator; }
c10::Allocator* pinned_allocator() { return &g_pinned_allocator; }

Block* block_of(const c10::StorageImpl* storage) {
  const auto& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

c10::DataPtr adopt_storage(const c10::Storage& cpu) {
  if (cpu.device_type() == c10::DeviceType::Meta) return g_hpu_allocator.allocate(cpu.nbytes());
  const auto num_bytes = static_cast<int64_t>(cpu.nbytes());
  Reservation reservation(num_bytes);
  void* pointer = cpu.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  auto block =
      std::make_unique<Block>(num_bytes, reservation.counted_bytes(), c10::DataPtr(), cpu);
  return to_data_ptr(pointer, std::move(block), reservation);
}

void log_memory(bool is_on) {
  std::lock_guard<std::mutex> lock(g_log_mutex);
  g_log.clear();
  if (is_on && bytes_at_start() > 0) g_log.push_back({kAllocatorsOwn, 0, bytes_at_start()});
  g_is_logging.store(is_on);
}

void note_card_taken() {
  occupy_at_start();
  log_event(kAllocatorsOwn, 0, bytes_at_start());
}

size_t memory_log_size() {
  std::lock_guard<std::mutex> lock(g_log_mutex);
  return g_log.size();
}

int64_t most_logged(size_t start) {
  std::lock_guard<std::mutex> lock(g_log_mutex);
  return fullest(std::min(start, g_log.size()), g_log.size()).first;
}

std::pair<int64_t, std::unordered_map<int64_t, int64_t>> logged_peak(size_t start, size_t end) {
  std::lock_guard<std::mutex> lock(g_log_mutex);
  end = std::min(end, g_log.size());
  const auto [most, num_events] = fullest(std::min(start, end), end);
  std::unordered_map<int64_t, int64_t> live;
  for (size_t index = 0; index < num_events; ++index) {
    const MemoryEvent& event = g_log[index];
    if (event.num_bytes >= 0) {
      live[event.number] = event.num_bytes;
    } else {
      live.erase(event.number);
    }
  }
  return {most, std::move(live)};
}

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  return g_pinned.count(pointer) > 0;
}

}  // namespace hpu_sim
