#include "distributed/pending.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

namespace hpu_sim {
namespace {

using HeldTensors = std::vector<at::Tensor>;

constexpr int kMaxExitWaits = 5000;
constexpr auto kExitWait = std::chrono::milliseconds(1);
constexpr auto kCollectivePoll = std::chrono::microseconds(100);

using Ended = std::shared_ptr<std::atomic<bool>>;

struct Pending {
  std::mutex mutex;
  std::vector<Ended> under_way;
  int64_t next_id = 0;
  std::map<int64_t, std::weak_ptr<const HeldTensors>> held;
  std::map<int64_t, std::shared_ptr<const HeldTensors>> kept;
};

// Never destroyed: threads of gloo may outlive this library's static objects.
Pending& pending() {
  static auto& instance = *new Pending();
  return instance;
}

bool keep_all_pending() {
  Pending& all = pending();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [id, held] : all.held) {
    if (auto owner = held.lock()) all.kept.emplace(id, std::move(owner));
  }
  return all.kept.size() == all.held.size();  // else another thread is freeing one
}

bool has_ended(const Ended& ended) { return ended->load(); }

}  // namespace

Ended note_under_way() {
  Pending& all = pending();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& under_way = all.under_way;
  under_way.erase(std::remove_if(under_way.begin(), under_way.end(), has_ended), under_way.end());
  under_way.push_back(std::make_shared<std::atomic<bool>>(false));
  return under_way.back();
}

void wait_for_collectives() {
  std::vector<Ended> under_way;
  {
    std::lock_guard<std::mutex> lock(pending().mutex);
    under_way = pending().under_way;
  }
  for (const Ended& ended : under_way) {
    while (!has_ended(ended)) std::this_thread::sleep_for(kCollectivePoll);
  }
}

std::shared_ptr<const HeldTensors> hold_pending(HeldTensors tensors) {
  Pending& all = pending();
  std::lock_guard<std::mutex> lock(all.mutex);
  const int64_t id = all.next_id++;
  std::shared_ptr<const HeldTensors> held(
      new HeldTensors(std::move(tensors)), [id](const HeldTensors* freed) {
        delete freed;  // may need the interpreter lock, so not under ours
        std::lock_guard<std::mutex> lock(pending().mutex);
        pending().held.erase(id);
      });
  all.held.emplace(id, held);
  return held;
}

void keep_pending() {
  for (int i = 0; i < kMaxExitWaits && !keep_all_pending(); ++i) {
    std::this_thread::sleep_for(kExitWait);
  }
}

}  // namespace hpu_sim
