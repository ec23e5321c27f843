#include "runtime/memory_accounting.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>

#include "runtime/allocator.h"

namespace hpu_sim {
namespace {

using Counter = std::atomic<int64_t>;

constexpr int64_t kHeaderBytes = 128;
constexpr int64_t kSmallPoolBytes = 6 * 1024 * 128;

MemoryTerms g_terms;  // written before any memory is asked for

Counter g_workspace{4 << 20};
Counter g_at_start{0};
Counter g_num_small{0};
Counter g_limit{0};
Counter g_in_use{0};
Counter g_max_in_use{0};
Counter g_max_alloc_size{0};
Counter g_num_allocs{0};  // since the start, as the system's counters
Counter g_num_frees{0};
Counter g_allocs_at_reset{0};  // what the accumulated counters start from
Counter g_frees_at_reset{0};

void add(Counter& counter, int64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

void raise_to(Counter& counter, int64_t value) {
  int64_t seen = counter.load(std::memory_order_relaxed);
  while (value > seen && !counter.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

int64_t round_up(int64_t num_bytes) {
  return (num_bytes + g_terms.alignment - 1) / g_terms.alignment * g_terms.alignment;
}

/// What a request adds to the bytes in use, unless a small chunk serves it.
int64_t counted(int64_t num_bytes) {
  return num_bytes == 0 ? 0 : round_up(num_bytes) + g_terms.header_bytes;
}

/// Whether one of the pool's small chunks was free for a request.
bool take_small_chunk(int64_t num_bytes) {
  if (num_bytes <= 0 || num_bytes > g_terms.small_bytes) return false;
  if (g_num_small.fetch_add(1, std::memory_order_relaxed) < g_terms.num_small) return true;
  add(g_num_small, -1);
  return false;
}

void give_back(int64_t num_bytes, int64_t counted_bytes) {
  if (num_bytes > 0 && counted_bytes == 0) add(g_num_small, -1);
  add(g_in_use, -counted_bytes);
}

/// What the allocator takes for itself, when the process takes its card.
int64_t own_bytes() {
  if (g_terms.at_start_bytes >= 0) return g_terms.at_start_bytes;
  return kHeaderBytes + 2 * kSmallPoolBytes + round_up(g_workspace.load());
}

/// In the card's own words, by which libraries tell such an error from others (accelerate's
/// `should_reduce_batch_size`), and as the card's own type, which is not torch's OutOfMemoryError.
/// Source: bridge 1.24.0, backend/synapse_helpers/device_memory.cpp (get_pointer).
[[noreturn]] void throw_out_of_memory(int64_t num_bytes, int64_t in_use, int64_t limit) {
  C10_THROW_ERROR(
      Error,
      c10::str("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::", num_bytes, " (",
               static_cast<double>(num_bytes) / (1 << 20),
               ")MB. HPU out of memory: tried to allocate ", format_bytes(num_bytes), "; ",
               format_bytes(in_use), " of ", format_bytes(limit), " in use (peak ",
               format_bytes(g_max_in_use.load()),
               "). Try a smaller micro batch, shorter sequences, gradient checkpointing or bf16; "
               "tensors that are still referenced (a loss kept for logging) also hold memory."));
}

}  // namespace

std::string format_bytes(int64_t num_bytes) {
  const struct {
    int shift;
    const char* name;
  } units[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& unit : units) {
    if (num_bytes >= (int64_t{1} << unit.shift)) {
      char text[32];
      double amount = static_cast<double>(num_bytes) / static_cast<double>(1LL << unit.shift);
      std::snprintf(text, sizeof(text), "%.2f %s", amount, unit.name);
      return text;
    }
  }
  return std::to_string(num_bytes) + " bytes";
}

Reservation::Reservation(int64_t num_bytes)
    : num_bytes_(num_bytes), counted_bytes_(take_small_chunk(num_bytes) ? 0 : counted(num_bytes)) {
  const int64_t limit = g_limit.load(std::memory_order_relaxed);
  const int64_t in_use =
      g_in_use.fetch_add(counted_bytes_, std::memory_order_relaxed) + counted_bytes_;
  if (limit > 0 && in_use > limit && counted_bytes_ > 0) {
    add(g_in_use, -counted_bytes_);
    throw_out_of_memory(num_bytes, in_use - counted_bytes_, limit);
  }
}

Reservation::~Reservation() {
  if (!is_kept_) give_back(num_bytes_, counted_bytes_);
}

void Reservation::keep() {
  is_kept_ = true;
  raise_to(g_max_in_use, g_in_use.load(std::memory_order_relaxed));
  raise_to(g_max_alloc_size, counted_bytes_);
  add(g_num_allocs, 1);
}

void release_reserved(int64_t num_bytes, int64_t counted_bytes) {
  give_back(num_bytes, counted_bytes);
  add(g_num_frees, 1);
}

void occupy_at_start() {
  g_at_start.store(own_bytes());
  add(g_in_use, g_at_start.load());
  raise_to(g_max_in_use, g_in_use.load());
}

int64_t bytes_at_start() { return g_at_start.load(); }

void set_workspace_bytes(int64_t num_bytes) { g_workspace.store(num_bytes); }

void set_memory_terms(const MemoryTerms& terms) {
  const bool is_positive = terms.alignment > 0 && terms.header_bytes >= 0 &&
                           terms.small_bytes >= 0 && terms.num_small >= 0;
  TORCH_CHECK_VALUE(is_positive, "The terms of a card's memory are numbers of bytes, the alignment ",
                    "of at least 1.");
  g_terms = terms;
}

void set_memory_limit(int64_t num_bytes) {
  TORCH_CHECK_VALUE(num_bytes >= 0, "The memory limit is a number of bytes, or 0 for none, got ",
                    num_bytes, ".");
  g_limit.store(num_bytes);
}

std::map<std::string, int64_t> memory_stats() {
  const int64_t num_allocs = g_num_allocs.load();
  const int64_t num_frees = g_num_frees.load();
  // Whoever asks a card for its statistics takes it.
  const int64_t at_start = g_at_start.load() == 0 ? own_bytes() : 0;
  return {{"Limit", g_limit.load()},
          {"InUse", g_in_use.load() + at_start},
          {"MaxInUse", g_max_in_use.load() + at_start},
          {"NumAllocs", num_allocs - g_allocs_at_reset.load()},
          {"NumFrees", num_frees - g_frees_at_reset.load()},
          {"ActiveAllocs", num_allocs - num_frees},
          {"MaxAllocSize", g_max_alloc_size.load()},
          {"TotalSystemAllocs", num_allocs},
          {"TotalSystemFrees", num_frees},
          {"TotalActiveAllocs", num_allocs - num_frees}};
}

void reset_peak_memory_stats() { g_max_in_use.store(g_in_use.load()); }

void reset_accumulated_memory_stats() {
  g_allocs_at_reset.store(g_num_allocs.load());
  g_frees_at_reset.store(g_num_frees.load());
  g_max_alloc_size.store(0);
}

}  // namespace hpu_sim
