// The clock of DistributedDataParallel for hpu: without one it warns, and times nothing.
#include <c10/util/Registry.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace c10d {  // where the registry expects it
namespace {

/// Times of the host: operations of the simulated card end before they return.
class HPUTimer final : public Timer {
 public:
  explicit HPUTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t elapsed_ns = getTimeRef(end) - getTimeRef(start);
    return elapsed_ns < 0 ? std::nullopt : std::make_optional(elapsed_ns);
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::HPU, HPUTimer);

}  // namespace
}  // namespace c10d
