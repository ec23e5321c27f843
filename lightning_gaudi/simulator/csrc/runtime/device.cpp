#include "runtime/device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <mutex>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/cards.h"

namespace hpu_sim {

std::atomic<ProcessState> g_process_state{ProcessState::kUntouched};

namespace {

std::atomic<int64_t> g_server_device_count{1};

void after_fork_in_child() {
  if (g_process_state.load() == ProcessState::kInUse) {
    g_process_state.store(ProcessState::kForkedFromUser);
  }
}

// Never destroyed, as the observer.
std::function<void()>& before_first_touch() {
  static auto& instance = *new std::function<void()>();
  return instance;
}

}  // namespace

void call_before_first_touch(std::function<void()> function) {
  before_first_touch() = std::move(function);
}

int64_t server_device_count() { return g_server_device_count.load(); }

void set_server_device_count(int64_t count) {
  TORCH_CHECK_VALUE(count >= 1, "A simulated server has at least 1 card, got ", count, ".");
  g_server_device_count.store(count);
}

void check_device_index(int64_t index) {
  TORCH_CHECK(index == -1 || index == kDeviceIndex, "hpu:", index,
              " does not exist in this process: a process drives one card, which is hpu:0. "
              "Start one process a card (the server has ",
              server_device_count(), ") and use device \"hpu\".");
}

void check_device(const std::optional<c10::Device>& device) {
  if (device.has_value() && device->is_hpu()) check_device_index(device->index());
}

void first_touch_or_refuse() {
  TORCH_CHECK(g_process_state.load() != ProcessState::kForkedFromUser,
              "Cannot use the HPU in a forked process: the parent already uses the card. Use the "
              "'spawn' start method, or keep hpu tensors out of the forked process.");
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (g_process_state.load() == ProcessState::kInUse) return;  // another thread was first
  if (before_first_touch()) before_first_touch()();
  acquire_card();
  note_card_taken();
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, &after_fork_in_child); });
  g_process_state.store(ProcessState::kInUse);
}

}  // namespace hpu_sim
