// What an eye on the bus would see: copies between host and device, and waits of the host.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpu_sim {

enum class Transfer : int { kHostToDevice, kDeviceToHost, kDeviceToDevice };

void count_transfer(Transfer direction, int64_t num_bytes);

/// Number of copies and bytes: host_to_device, host_to_device_bytes, device_to_host, ...
std::map<std::string, int64_t> transfers();

/// The host waits for the device: counted under `reason`; in lazy mode this also ends the graph.
void host_sync(const std::string& reason);

/// How often the host waited, by reason.
std::map<std::string, int64_t> host_syncs();

/// Forgets transfers and host syncs.
void reset_counters();

}  // namespace hpu_sim
