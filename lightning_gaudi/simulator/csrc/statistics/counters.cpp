#include "statistics/counters.h"

#include <atomic>
#include <mutex>

#include "statistics/graph.h"
#include "statistics/launches.h"
#include "statistics/observer.h"

namespace hpu_sim {
namespace {

struct TransferCounter {
  const char* name;
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> num_bytes{0};
};

TransferCounter g_transfers[] = {{"host_to_device"}, {"device_to_host"}, {"device_to_device"}};

// Guards the maps.
std::mutex g_mutex;
std::map<std::string, CollectiveStats> g_collectives;
std::map<std::string, int64_t> g_host_syncs;
std::map<std::string, int64_t> g_fallbacks;

}  // namespace

void count_transfer(Transfer direction, int64_t num_bytes) {
  TransferCounter& counter = g_transfers[static_cast<int>(direction)];
  counter.count.fetch_add(1, std::memory_order_relaxed);
  counter.num_bytes.fetch_add(num_bytes, std::memory_order_relaxed);
}

std::map<std::string, int64_t> transfers() {
  std::map<std::string, int64_t> result;
  for (const TransferCounter& counter : g_transfers) {
    result[counter.name] = counter.count.load();
    result[std::string(counter.name) + "_bytes"] = counter.num_bytes.load();
  }
  return result;
}

void count_collective(const std::string& kind, int64_t num_bytes, int64_t num_sent_bytes) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    CollectiveStats& stats = g_collectives[kind];
    ++stats.num_calls;
    stats.num_bytes += num_bytes;
    stats.num_sent_bytes += num_sent_bytes;
  }
  observe("collective", kind, num_bytes);
}

std::map<std::string, CollectiveStats> collectives() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_collectives;
}

void count_host_sync(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    ++g_host_syncs[reason];
  }
  observe("host_sync", reason, 1);
}

void host_sync(const std::string& reason) {
  count_host_sync(reason);
  break_graph(reason);
}

void count_fallback(const std::string& op) {
  std::lock_guard<std::mutex> lock(g_mutex);
  ++g_fallbacks[op];
}

std::map<std::string, int64_t> fallbacks() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_fallbacks;
}

std::map<std::string, int64_t> host_syncs() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_host_syncs;
}

void reset_counters() {
  reset_launches();
  for (TransferCounter& counter : g_transfers) {
    counter.count.store(0);
    counter.num_bytes.store(0);
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  g_collectives.clear();
  g_host_syncs.clear();
  g_fallbacks.clear();
}

}  // namespace hpu_sim
