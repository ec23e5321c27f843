// What an eye on the bus would see: copies between host and device, collectives between the cards,
// and waits of the host.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpu_sim {

enum class Transfer : int { kHostToDevice, kDeviceToHost, kDeviceToDevice };

void count_transfer(Transfer direction, int64_t num_bytes);

/// Number of copies and bytes: host_to_device, host_to_device_bytes, device_to_host, ...
std::map<std::string, int64_t> transfers();

/// Counts a collective of the kind that torch.distributed calls `kind`, what it carries, and what
/// this rank sends over its links for it.
void count_collective(const std::string& kind, int64_t num_bytes, int64_t num_sent_bytes);

struct CollectiveStats {
  int64_t num_calls = 0;
  int64_t num_bytes = 0;
  int64_t num_sent_bytes = 0;
};

/// Collectives by kind.
std::map<std::string, CollectiveStats> collectives();

/// The host waits, though not for the operations of a lazy graph: counted under `reason`.
void count_host_sync(const std::string& reason);

/// The host waits for the device: counted under `reason`; in lazy mode this also ends the graph.
void host_sync(const std::string& reason);

/// Counts an operator that a card would send to the CPU.
void count_fallback(const std::string& op);

/// Operators that a card would send to the CPU, and how often.
std::map<std::string, int64_t> fallbacks();

/// How often the host waited, by reason.
std::map<std::string, int64_t> host_syncs();

/// Forgets launches, transfers, collectives, host syncs and fallbacks.
void reset_counters();

}  // namespace hpu_sim
