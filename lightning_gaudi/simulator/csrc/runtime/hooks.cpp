#include "runtime/hooks.h"

#include <ATen/detail/HPUHooksInterface.h>

#include <new>
#include <typeinfo>

#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/generator.h"

namespace hpu_sim {

// torch finds the class in its registry by this name.
class HPUHooks final : public at::HPUHooksInterface {
 public:
  HPUHooks() = default;
  explicit HPUHooks(at::HPUHooksArgs) {}

  void init() const override {}
  bool hasHPU() const override { return true; }
  // Virtual only in newer versions of torch, so without `override`.
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  // The autograd engine skips device guards for an uninitialised device; ours always is.
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return kDeviceIndex; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_device_index(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_device_index(index);
    return kDeviceIndex;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  at::Device getDeviceFromPtr(void*) const override { return hpu_device(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index = -1) const override {
    check_device_index(index);
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index = -1) const override {
    check_device_index(index);
    return make_generator();
  }
};

std::string install_hooks() {
  static_assert(sizeof(HPUHooks) == sizeof(at::HPUHooksInterface),
                "the hooks must not have state: they replace torch's in place");
  auto& current = const_cast<at::HPUHooksInterface&>(at::detail::getHPUHooks());
  if (typeid(current) == typeid(HPUHooks)) return "registered";
  TORCH_CHECK(typeid(current) == typeid(at::HPUHooksInterface),
              "Cannot simulate HPU: another package has registered HPU hooks (",
              typeid(current).name(),
              "). Uninstall it, or start without LIGHTNING_GAUDI_SIMULATE.");
  // torch keeps the object it made first and asks it for ever, so only its class can change.
  current.~HPUHooksInterface();
  ::new (static_cast<void*>(&current)) HPUHooks();
  return "installed-late";
}

}  // namespace hpu_sim

namespace at {
using hpu_sim::HPUHooks;
REGISTER_HPU_HOOKS(HPUHooks);
}  // namespace at
