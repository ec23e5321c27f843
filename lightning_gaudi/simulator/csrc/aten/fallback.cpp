#include "aten/fallback.h"

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "aten/alias.h"
#include "aten/attention.h"
#include "aten/dispatch_keys.h"
#include "aten/meta_results.h"
#include "aten/op_info.h"
#include "aten/random.h"
#include "aten/widen.h"
#include "rules/rules.h"
#include "runtime/device.h"
#include "runtime/dry.h"
#include "runtime/generator.h"
#include "statistics/counters.h"
#include "statistics/graph.h"
#include "statistics/launches.h"

namespace hpu_sim {
namespace {

/// One call of an operator: arguments to the CPU, the kernel, results back to the device.
class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        info_(op_info(op)),
        stack_(*stack),
        num_arguments_(op.schema().arguments().size()),
        first_(stack->size() - num_arguments_),
        is_dry_(is_dry() && !info_.is_read),
        aliases_of_call_(info_.is_foreign, is_dry_) {}

  void run() {
    touch_device();
    const bool is_recorded = is_lazy() && !info_.is_read;
    if (is_recorded) record_operation(info_, torch::jit::last(stack_, num_arguments_));
    keep_mutated(originals_);
    for (size_t i = 0; i < num_arguments_; ++i) argument_to_cpu(i);
    check_devices();
    if (info_.rules.watched & types_) {
      consulted_ = consult(info_.rules, info_.name, types_,
                           {&op_.schema(), torch::jit::last(stack_, num_arguments_)});
    }
    fill_in_generator();
    keep_mutated(aliases_);
    if (!is_dry_) widen_arguments(info_, stack_, first_, widened_);
    if (!is_lazy()) count_launches(num_launches());
    if (is_dry_) {
      call_meta_kernel();
    } else {
      call_cpu_kernel();
      narrow_written(widened_);
      sync_mutated();
      check_written();
    }
    results_to_hpu();
    if (is_recorded) define_results();
    check_entering(info_.name.c_str(), result_types_ & ~types_);
    if (consulted_.waits) host_sync(op_.operator_name().name);
    if (consulted_.is_on_cpu && !consulted_.waits) host_sync("cpu_fallback");
  }

 private:
  using Kept = c10::SmallVector<c10::IValue, 4>;

  int64_t num_launches() const {
    if (!info_.is_attention) return info_.launches ? 1 : 0;
    return launches_of_attention(info_, torch::jit::last(stack_, num_arguments_));
  }

  c10::IValue& argument(size_t i) { return stack_[first_ + i]; }

  void keep_mutated(Kept& kept) {
    for (int i : info_.mutated_arguments) kept.push_back(argument(i));
  }

  void argument_to_cpu(size_t i) {
    c10::IValue& value = argument(i);
    if (value.isTensor()) {
      at::Tensor tensor = std::move(value).toTensor();
      see(tensor, i);
      value = aliases_of_call_.to_cpu(std::move(tensor));
    } else if (value.isTensorList()) {
      value = list_to_cpu(value.toTensorVector(), i);
    } else if (value.isOptionalTensorList()) {
      value = optional_list_to_cpu(value, i);
    } else if (value.isDevice()) {
      device_to_cpu(value);
    } else if (value.isGenerator()) {
      value = cpu_generator(value.toGenerator());
    } else if (value.isStorage()) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, info_.name,
          " takes a storage and has no kernel on the simulated HPU. Add one in aten/kernels.cpp.");
    }
  }

  c10::List<at::Tensor> list_to_cpu(std::vector<at::Tensor> tensors, size_t i) {
    for (at::Tensor& tensor : tensors) {
      see(tensor, i);
      tensor = aliases_of_call_.to_cpu(std::move(tensor));
    }
    return c10::List<at::Tensor>(std::move(tensors));
  }

  c10::List<std::optional<at::Tensor>> optional_list_to_cpu(const c10::IValue& value, size_t i) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value()) see(*tensor, i);
      result.push_back(tensor.has_value() ? std::make_optional(aliases_of_call_.to_cpu(*tensor))
                                          : std::nullopt);
    }
    return result;
  }

  void device_to_cpu(c10::IValue& value) {
    const c10::Device device = value.toDevice();
    if (device.is_hpu()) {
      check_device(device);
      value = c10::Device(is_dry_ ? c10::DeviceType::Meta : c10::DeviceType::CPU);
    } else {
      results_stay_on_host_ = true;
    }
  }

  /// The card takes the CPU's generators, too, as seeds of its own numbers; ours are the CPU's.
  /// Source: bridge 1.19.0, tests/pytest_working/lazy/test_hpu_random_gen.py.
  static at::Generator cpu_generator(const at::Generator& generator) {
    if (generator.device().is_cpu()) return generator;
    TORCH_CHECK(generator.device().is_hpu(),
                "Expected a 'hpu' device type for generator but found '",
                c10::DeviceTypeName(generator.device().type(), /*lower_case=*/true),
                "'. Make it with torch.Generator(\"hpu\").");
    return cpu_generator_of(generator);
  }

  void see(const at::Tensor& tensor, size_t i) {
    if (!tensor.defined()) return;
    if (tensor.device().is_hpu()) {
      types_ |= type_bit(tensor.scalar_type());
      return;
    }
    const auto& mutated = info_.mutated_arguments;
    const bool is_written = std::count(mutated.begin(), mutated.end(), static_cast<int>(i)) > 0;
    if (is_written || (tensor.dim() > 0 && !info_.may_be_on_host[i])) {
      stranger_ = {i, tensor.device(), is_written};
    }
  }

  // A CPU tensor of no dimensions counts as a number: any argument that is only read may be one.
  void check_devices() {
    if (!stranger_.has_value()) return;
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "hpu:0 and ",
                stranger_->device, "! Argument '",
                op_.schema().arguments()[stranger_->argument].name(), "' of ", info_.name,
                " is the other one: ",
                stranger_->is_written
                    ? "it is written, which an operator of the card can only do on the card. Make "
                      "it there (device=\"hpu\"), or take the value off the card with .item() or "
                      ".cpu() first."
                    : "move it with .to(\"hpu\").");
  }

  void fill_in_generator() {
    if (info_.generator_argument < 0) return;
    c10::IValue& generator = argument(info_.generator_argument);
    if (generator.isNone()) generator = cpu_generator_of(default_generator());
  }

  void call_cpu_kernel() {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    if (info_.draws_without_generator) {
      call_drawing_kernel(info_, op_, stack_);
    } else {
      op_.redispatchBoxed(kCpuKeys, &stack_);
    }
  }

  void call_meta_kernel() {
    MetaKey key(info_, torch::jit::last(stack_, num_arguments_));
    if (key.is_complete() && recall_meta_results(key, info_, stack_)) return;
    call_unknown_meta_kernel();
    // One that has resized an argument may find it resized already, and does another thing.
    if (!sync_mutated() && key.is_complete()) remember_meta_results(std::move(key), info_, stack_);
  }

  void call_unknown_meta_kernel() {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    try {
      op_.redispatchBoxed(kMetaKeys, &stack_);
    } catch (const c10::NotImplementedError& error) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, info_.name,
          " has a result whose size depends on values, or no kernel for the device \"meta\", so a "
          "dry card cannot tell what it takes. Give the size (static shapes), or leave the "
          "operator out of what is planned. torch said: ",
          error.what_without_backtrace());
    }
  }

  /// Whether the kernel has resized one of them, or put it in other memory.
  bool sync_mutated() {
    bool has_changed = false;
    for (size_t k = 0; k < originals_.size(); ++k) {
      const c10::IValue& original = originals_[k];
      if (original.isTensor()) {
        has_changed |= sync(original.toTensor(), aliases_[k].toTensor());
      } else if (original.isTensorList()) {
        const auto tensors = original.toTensorVector();
        const auto aliases = aliases_[k].toTensorVector();
        for (size_t j = 0; j < tensors.size(); ++j) has_changed |= sync(tensors[j], aliases[j]);
      }
    }
    return has_changed;
  }

  void check_written() const {
    for (const c10::IValue& alias : aliases_) {
      if (alias.isTensor()) {
        if (alias.toTensor().defined()) check_result(info_.name, alias.toTensor());
      } else if (alias.isTensorList()) {
        for (const at::Tensor& tensor : alias.toTensorVector()) check_result(info_.name, tensor);
      }
    }
  }

  static bool sync(const at::Tensor& tensor, const at::Tensor& alias) {
    return tensor.defined() && tensor.device().is_hpu() && sync_metadata(tensor, alias);
  }

  void results_to_hpu() {
    const size_t num_results = info_.returned_arguments.size();
    const size_t first = stack_.size() - num_results;
    for (size_t r = 0; r < num_results; ++r) {
      c10::IValue& value = stack_[first + r];
      if (info_.returned_arguments[r] >= 0) {
        value = original_of(info_.returned_arguments[r]);
      } else if (value.isTensor()) {
        value = result_to_hpu(value.toTensor());
      } else if (value.isTensorList()) {
        auto tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors) tensor = result_to_hpu(tensor);
        value = c10::List<at::Tensor>(std::move(tensors));
      }
    }
  }

  at::Tensor result_to_hpu(const at::Tensor& tensor) {
    if (results_stay_on_host_) return tensor;
    if (tensor.defined()) result_types_ |= type_bit(tensor.scalar_type());
    if (tensor.defined() && !info_.is_view && !is_dry_) check_result(info_.name, tensor);
    const bool contiguous = info_.has_contiguous_results;
    return widened_.from.has_value()
               ? aliases_of_call_.to_hpu(narrow_result(tensor, widened_), contiguous)
               : aliases_of_call_.to_hpu(tensor, contiguous);
  }

  const c10::IValue& original_of(int argument) const {
    size_t k = 0;
    while (info_.mutated_arguments[k] != argument) ++k;
    return originals_[k];
  }

  void define_results() {
    for (const c10::IValue& original : originals_) define_value(original);
    if (info_.is_view) return;
    const size_t num_results = info_.returned_arguments.size();
    for (size_t r = 0; r < num_results; ++r) {
      if (info_.returned_arguments[r] < 0) define_value(stack_[stack_.size() - num_results + r]);
    }
  }

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  torch::jit::Stack& stack_;
  const size_t num_arguments_;
  const size_t first_;

  const bool is_dry_;
  AliasTable aliases_of_call_;
  Kept originals_;  // the mutated arguments: as hpu tensors,
  Kept aliases_;    // and as what the CPU kernel worked on
  Widened widened_;
  TypeSet types_ = 0;         // of the hpu tensors among the arguments
  TypeSet result_types_ = 0;  // of new results
  Consulted consulted_;
  struct Stranger {
    size_t argument;
    c10::Device device;
    bool is_written;
  };
  std::optional<Stranger> stranger_;
  bool results_stay_on_host_ = false;
};

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  FallbackCall(op, stack).run();
}

}  // namespace hpu_sim
