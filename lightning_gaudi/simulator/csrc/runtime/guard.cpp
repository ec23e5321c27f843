// Devices, streams and events as torch asks for them. The simulated card finishes every operation
// before it returns, so streams are only names and events only times.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "runtime/device.h"
#include "statistics/counters.h"

namespace hpu_sim {
namespace {

using Clock = std::chrono::steady_clock;

thread_local c10::StreamId t_current_stream = 0;
std::atomic<c10::StreamId> g_next_stream{1};

c10::Stream make_stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, hpu_device(), id);
}

class HPUGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::HPU; }
  c10::Device getDevice() const override { return hpu_device(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    check_device(device);
    return hpu_device();
  }
  void setDevice(c10::Device device) const override { check_device(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  // The devices of this process. More would cost an engine thread each, which at exit still wait
  // for the interpreter lock and sometimes abort the process.
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  // noexcept: torch 2.6 to 2.8 declare these two so; later versions allow it.
  c10::Stream getStream(c10::Device) const noexcept override {
    return make_stream(t_current_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return make_stream(std::exchange(t_current_stream, stream.id()));
  }
  c10::Stream getDefaultStream(c10::Device) const override { return make_stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return make_stream(g_next_stream++); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return make_stream(g_next_stream++);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { host_sync("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { host_sync("synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { host_sync("synchronize"); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "elapsed_time needs two recorded events, but ",
                start == nullptr ? "the first" : "the second",
                " was not recorded. Call record() on both.");
    const auto elapsed =
        *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }
};

}  // namespace

C10_REGISTER_GUARD_IMPL(HPU, HPUGuardImpl)

}  // namespace hpu_sim
