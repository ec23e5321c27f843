// Hides the accelerator that torch was built for, so that hpu can be the one of this process.
//
// torch creates the hooks objects inside `import torch` and asks them on every call of
// at::getAccelerator(), caching nothing. They have no state but their class, so a hidden one is
// put in the place of the real one. That is formally undefined behaviour; the size and the name
// of the class are checked, and anything unknown is refused.
// Delete once torch lets a backend choose the accelerator of a process.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <map>
#include <new>
#include <string>
#include <typeinfo>

#include "runtime/hooks.h"

namespace hpu_sim {
namespace {

[[noreturn]] void refuse_hidden(const char* name) {
  TORCH_CHECK(false, name,
              " is hidden in this process, which simulates an HPU: torch allows one accelerator a "
              "process. Compute on device \"hpu\", or start a process without "
              "LIGHTNING_GAUDI_SIMULATE to use ", name, ".");
}

const at::CUDAHooksInterface* g_real_cuda = nullptr;

// Harmless questions about the build keep their real answer (torch.backends.cudnn.version()); one
// that a version of torch does not know drops out, and so does its `override`.
#define HPU_SIM_FORWARD(Result, name, fallback)                                   \
  template <class Hooks>                                                          \
  static auto forward_##name(const Hooks& hooks, int) -> decltype(hooks.name()) { \
    return hooks.name();                                                          \
  }                                                                               \
  template <class Hooks>                                                          \
  static Result forward_##name(const Hooks&, long) {                              \
    return fallback;                                                              \
  }                                                                               \
  Result name() const { return forward_##name(*g_real_cuda, 0); }

// What is not listed answers as in a CPU-only build: not built, not available, no devices.
struct HiddenCUDA final : at::CUDAHooksInterface {
  void init() const override { refuse_hidden("CUDA"); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { refuse_hidden("CUDA"); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex = -1) const override {
    refuse_hidden("CUDA");
  }
  at::Generator getNewGenerator(c10::DeviceIndex = -1) const override { refuse_hidden("CUDA"); }
  HPU_SIM_FORWARD(bool, hasCUDART, false)
  HPU_SIM_FORWARD(bool, hasMAGMA, false)
  HPU_SIM_FORWARD(bool, hasCuDNN, false)
  HPU_SIM_FORWARD(bool, hasCuSOLVER, false)
  HPU_SIM_FORWARD(bool, hasCuBLASLt, false)
  HPU_SIM_FORWARD(bool, hasROCM, false)
  HPU_SIM_FORWARD(bool, hasCKSDPA, false)
  HPU_SIM_FORWARD(bool, hasCKGEMM, false)
  HPU_SIM_FORWARD(bool, compiledWithCuDNN, false)
  HPU_SIM_FORWARD(bool, compiledWithMIOpen, false)
  HPU_SIM_FORWARD(long, versionCUDART, 0)
  HPU_SIM_FORWARD(long, versionCuDNN, 0)
  HPU_SIM_FORWARD(long, versionRuntimeCuDNN, 0)
  HPU_SIM_FORWARD(long, versionCuDNNFrontend, 0)
  HPU_SIM_FORWARD(long, versionMIOpen, 0)
  HPU_SIM_FORWARD(long, versionHipBLASLt, 0)
  HPU_SIM_FORWARD(std::string, showConfig, "")
  HPU_SIM_FORWARD(double, batchnormMinEpsilonCuDNN, 0.)
};
#undef HPU_SIM_FORWARD

struct HiddenXPU final : at::XPUHooksInterface {
  void init() const override { refuse_hidden("XPU"); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

struct HiddenMPS final : at::MPSHooksInterface {
  void init() const override { refuse_hidden("MPS"); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

// torch 2.6 has no isBuilt and asks these instead.
bool has_device(const at::CUDAHooksInterface& hooks) { return hooks.hasCUDA(); }
bool has_device(const at::XPUHooksInterface& hooks) { return hooks.hasXPU(); }
bool has_device(const at::MPSHooksInterface& hooks) { return hooks.hasMPS(); }

template <class Hooks>
auto is_built(const Hooks& hooks, int) -> decltype(hooks.isBuilt()) {
  return hooks.isBuilt();
}
template <class Hooks>
bool is_built(const Hooks& hooks, long) {
  return has_device(hooks);
}

/// Replaces `hooks` by `Hidden`; `class_name` is the mangled name of the class of torch's own.
template <class Hidden, class Interface>
std::string hide(const Interface& hooks, const char* name, const char* class_name) {
  static_assert(sizeof(Hidden) == sizeof(Interface) && sizeof(Interface) == sizeof(void*),
                "the hooks of this torch have state and cannot be replaced in place");
  auto& current = const_cast<Interface&>(hooks);
  if (typeid(current) == typeid(Hidden)) return "already-hidden";
  if (!is_built(current, 0)) return "not-built";
  TORCH_CHECK(std::strstr(typeid(current).name(), class_name) != nullptr,
              "Cannot simulate HPU: unknown hooks (", typeid(current).name(), ") for ", name,
              ", which this torch was built for, so it cannot be hidden. Install the CPU build of "
              "torch.");
  current.~Interface();
  ::new (static_cast<void*>(&current)) Hidden();
  TORCH_CHECK(!is_built(*std::launder(&current), 0), "Cannot simulate HPU: hiding ", name,
              " had no effect. Install the CPU build of torch.");
  return "hidden";
}

std::string hide_cuda() {
  auto& hooks = at::detail::getCUDAHooks();
  if (typeid(hooks) == typeid(HiddenCUDA)) return "already-hidden";
  if (!is_built(hooks, 0)) return "not-built";
  // Asked of the guard: it answers alike in every version of torch, and never throws.
  const int num_gpus = c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)
                           ? c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount()
                           : 0;
  // Without a GPU there is no context, and asking for it throws.
  TORCH_CHECK(num_gpus == 0 || !hooks.hasPrimaryContext(0),
              "Cannot simulate HPU: CUDA is already initialised in this process, and torch allows "
              "one accelerator a process. Start with CUDA_VISIBLE_DEVICES=\"\".");
  TORCH_CHECK(num_gpus == 0, "Cannot simulate HPU: ", num_gpus,
              " CUDA GPU(s) are visible, and torch allows one accelerator a process. Start with "
              "CUDA_VISIBLE_DEVICES=\"\".");
  // A second instance, as stateless as the first, keeps answering questions about the build.
  static auto real = at::CUDAHooksRegistry()->Create("CUDAHooks", at::CUDAHooksArgs{});
  TORCH_CHECK(real != nullptr,
              "Cannot simulate HPU: unknown hooks for CUDA. Install the CPU build of torch.");
  g_real_cuda = real.get();
  return hide<HiddenCUDA>(hooks, "CUDA", "9CUDAHooksE");
}

}  // namespace

std::map<std::string, std::string> hide_accelerators() {
  return {{"cuda", hide_cuda()},
          {"xpu", hide<HiddenXPU>(at::detail::getXPUHooks(), "XPU", "8XPUHooksE")},
          {"mps", hide<HiddenMPS>(at::detail::getMPSHooks(), "MPS", "8MPSHooksE")}};
}

}  // namespace hpu_sim
