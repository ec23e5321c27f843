#include "runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "runtime/device.h"

namespace hpu_sim {
namespace {

class HPUGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit HPUGeneratorImpl(at::Generator cpu = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(hpu_device(), c10::DispatchKeySet(c10::DispatchKey::HPU)),
        cpu_(std::move(cpu)) {}

  static c10::DeviceType device_type() { return c10::DeviceType::HPU; }
  const at::Generator& cpu() const { return cpu_; }

  // Callers hold this generator's mutex, kernels hold the inner one's.
  void set_current_seed(uint64_t seed) override {
    std::lock_guard<std::mutex> lock(cpu_.mutex());
    impl().set_current_seed(seed);
  }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override {
    std::lock_guard<std::mutex> lock(cpu_.mutex());
    return impl().seed();
  }
  void set_offset(uint64_t offset) override { impl().set_offset(offset); }
  uint64_t get_offset() const override { return impl().get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    std::lock_guard<std::mutex> lock(cpu_.mutex());
    impl().set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    std::lock_guard<std::mutex> lock(cpu_.mutex());
    return impl().get_state();
  }

 private:
  HPUGeneratorImpl* clone_impl() const override { return new HPUGeneratorImpl(cpu_.clone()); }
  c10::GeneratorImpl& impl() const { return *cpu_.unsafeGetGeneratorImpl(); }

  mutable at::Generator cpu_;
};

}  // namespace

const at::Generator& default_generator() {
  static const at::Generator generator = make_generator();
  return generator;
}

at::Generator make_generator() { return at::make_generator<HPUGeneratorImpl>(); }

const at::Generator& cpu_generator_of(const at::Generator& hpu) {
  return at::check_generator<HPUGeneratorImpl>(hpu)->cpu();
}

}  // namespace hpu_sim
