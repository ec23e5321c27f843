// The driver's view of the card: how many the server has, which one is ours, who may touch it.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

namespace hpu_sim {

/// The vendor's driver shows one card to a process, and that card has index 0.
inline constexpr c10::DeviceIndex kDeviceIndex = 0;

inline c10::Device hpu_device() { return c10::Device(c10::DeviceType::HPU, kDeviceIndex); }

/// Number of cards of the simulated server; one of them is this process's device.
int64_t server_device_count();
void set_server_device_count(int64_t count);

/// Raises for an index other than 0 (or -1, which means "the current device").
void check_device_index(int64_t index);

/// Raises for an hpu device of another index; a missing device means the current one.
void check_device(const std::optional<c10::Device>& device);

enum class ProcessState : int { kUntouched, kInUse, kForkedFromUser };
extern std::atomic<ProcessState> g_process_state;
void first_touch_or_refuse();

/// Has a function called right before this process takes its card.
void call_before_first_touch(std::function<void()> function);

/// Called wherever device memory is touched: the first time it takes a card. A process forked from one that uses the card cannot
/// use it: the driver's state does not survive a fork.
inline void touch_device() {
  if (g_process_state.load(std::memory_order_relaxed) != ProcessState::kInUse) {
    first_touch_or_refuse();
  }
}

}  // namespace hpu_sim
