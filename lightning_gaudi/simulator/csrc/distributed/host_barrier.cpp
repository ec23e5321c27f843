#include "distributed/host_barrier.h"

#include <chrono>
#include <string>
#include <thread>

namespace hpu_sim {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(1);
constexpr int64_t kNumKeys = 3;  // fewer would let a fast rank into the next meeting's

}  // namespace

void HostBarrier::wait_for_all(const std::string& key) {
  while (store_->add(key, 0) != size_) std::this_thread::sleep_for(kPoll);
}

void HostBarrier::meet() {
  const auto key = [this](int64_t number) {
    return std::to_string(number % kNumKeys) + "HOST_BARRIER:" + std::to_string(size_);
  };
  const int64_t number = num_meetings_++;
  store_->add(key(number), 1);
  wait_for_all(key(number));
  if (rank_ == 0) store_->deleteKey(key(number + kNumKeys - 1));  // that of the meeting before
}

void HostBarrier::part() {
  const std::string key = "ProcessGroup::destroy";
  store_->add(key, 1);
  if (rank_ == 0) wait_for_all(key);
}

}  // namespace hpu_sim
