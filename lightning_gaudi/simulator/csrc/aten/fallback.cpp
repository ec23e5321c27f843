#include "aten/fallback.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
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
#include "runtime/memory_accounting.h"
#include "statistics/counters.h"
#include "statistics/graph.h"
#include "statistics/launches.h"
#include "statistics/observer.h"

namespace hpu_sim {
namespace {

/// Whether an index selects what is true, and not positions.
bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

/// One call of an operator: arguments to the CPU, the kernel, results back to the device.
class FallbackCall {
 public:
  /// `on_meta`: the kernel is that of the device "meta", which computes nothing.
  FallbackCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool on_meta)
      : op_(op),
        info_(op_info(op)),
        stack_(*stack),
        num_arguments_(op.schema().arguments().size()),
        first_(stack->size() - num_arguments_),
        is_dry_(on_meta),
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
    if (is_dry() && !info_.is_view && (is_dry_ || !are_arguments_known_)) lose_results();
    check_entering(info_.name.c_str(), result_types_ & ~types_);
    if (consulted_.waits) host_sync(op_.operator_name().name);
    if (consulted_.is_on_cpu && !consulted_.waits) host_sync("cpu_fallback");
  }

  /// How much it will return that is new, by a call on "meta" that is then over; none if no kernel
  /// there can tell, as where it depends on values.
  std::optional<Amount> predict() {
    for (size_t i = 0; i < num_arguments_; ++i) argument_to_cpu(i);
    check_devices();
    fill_in_generator();
    keep_mutated(aliases_);
    try {
      call_meta_kernel();
    } catch (const std::exception&) {  // of a kernel in Python it is Python's; the CPU's has its own
      return std::nullopt;
    }
    Amount amount = amount_of(aliases_);  // as `out=` now is
    const size_t num_results = info_.returned_arguments.size();
    for (size_t r = 0; r < num_results; ++r) {
      if (info_.returned_arguments[r] < 0) add(stack_[stack_.size() - num_results + r], amount);
    }
    return amount;
  }

  /// What a call is given, of the card and of the host.
  static Amount amount_of(c10::ArrayRef<c10::IValue> arguments) {
    Amount amount;
    for (const c10::IValue& each : arguments) add(each, amount);
    return amount;
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
      if (is_dry_ && tensor.has_value() && is_mask(*tensor)) {
        add_positions(*tensor, result);
        continue;
      }
      result.push_back(tensor.has_value() ? std::make_optional(aliases_of_call_.to_cpu(*tensor))
                                          : std::nullopt);
    }
    return result;
  }

  /// In place of a mask, the positions of what it selects: on "meta" nobody can count them.
  static void add_positions(const at::Tensor& mask, c10::List<std::optional<at::Tensor>>& result) {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    const int64_t num_selected = unowning_cpu_alias(mask).count_nonzero().item<int64_t>();
    for (int64_t dim = 0; dim < mask.dim(); ++dim) {
      result.push_back(at::empty({num_selected}, at::device(at::kMeta).dtype(at::kLong)));
    }
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

  static void add(const c10::IValue& value, Amount& amount) {
    if (value.isTensor()) {
      amount.add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector()) amount.add(each);
    } else if (value.isOptionalTensorList()) {
      for (const auto& each : value.toOptionalTensorVector()) {
        if (each.has_value()) amount.add(*each);
      }
    }
  }

  void lose_results() {
    for (const c10::IValue& original : originals_) lose(original);
    const size_t num_results = info_.returned_arguments.size();
    for (size_t r = 0; r < num_results; ++r) lose(stack_[stack_.size() - num_results + r]);
  }

  static void lose(const c10::IValue& value) {
    if (value.isTensor()) {
      lose_values(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector()) lose_values(each);
    }
  }

  void see(const at::Tensor& tensor, size_t i) {
    if (!tensor.defined()) return;
    are_arguments_known_ = are_arguments_known_ && has_values(tensor);
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
    const std::vector<int64_t> sizes = sizes_of_mutated();
    call_unknown_meta_kernel();
    // One that has resized an argument may find it resized already, and does another thing.
    if (!sync_mutated() && sizes == sizes_of_mutated() && key.is_complete()) {
      remember_meta_results(std::move(key), info_, stack_);
    }
  }

  std::vector<int64_t> sizes_of_mutated() const {
    std::vector<int64_t> sizes;
    for (const c10::IValue& alias : aliases_) {
      if (!alias.isTensor() || !alias.toTensor().defined()) continue;
      const auto of_tensor = alias.toTensor().sizes();
      sizes.insert(sizes.end(), of_tensor.begin(), of_tensor.end());
    }
    return sizes;
  }

  void call_unknown_meta_kernel() {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    try {
      op_.redispatchBoxed(kMetaKeys, &stack_);
    } catch (const c10::NotImplementedError&) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, info_.name,
          " has a result whose size depends on values, of more than ", format_bytes(kSizedBytes),
          ", or no kernel for the device \"meta\", so a dry card cannot tell what it takes. Give the "
          "size (static shapes), or plan a smaller batch.");
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
  bool are_arguments_known_ = true;  // on a dry card: all have their values
};

/// Whether the size of the result depends on values that a dry card does not have.
bool is_size_guessed(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  Amount amount;
  for (const c10::IValue& each : arguments) {
    if (!each.isOptionalTensorList()) continue;
    for (const auto& index : each.toOptionalTensorVector()) {
      if (index.has_value() && is_mask(*index)) amount.add(*index);
    }
    return !amount.is_known();
  }
  if (op.operator_name().name == "aten::masked_select") {
    amount.add(arguments[1].toTensor());
    return !amount.is_known();
  }
  return !FallbackCall::amount_of(arguments).is_known();
}

/// Whether no kernel of the device "meta" may be able to tell its sizes.
bool may_depend_on_values(const c10::OperatorHandle& op, const OpInfo& info) {
  return op.hasTag(at::Tag::dynamic_output_shape) || !info.is_told_on_meta.load();
}

bool returns_no_tensor(const c10::OperatorHandle& op) {
  const auto& results = op.schema().returns();
  return std::none_of(results.begin(), results.end(), [](const c10::Argument& each) {
    return each.type()->str().find("Tensor") != std::string::npos;
  });
}

/// Whether a dry card calls the kernel of the CPU, of small things and where sizes depend on values.
bool is_computed_dry(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const OpInfo& info = op_info(op);
  if (info.is_read) return true;
  if (info.is_view) return false;
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  const Amount amount = FallbackCall::amount_of(arguments);
  if (!amount.is_small() && !may_depend_on_values(op, info)) return false;
  torch::jit::Stack copy(arguments.begin(), arguments.end());
  const auto results = FallbackCall(op, &copy, /*on_meta=*/true).predict();
  if (results.has_value()) info.is_told_on_meta.store(true);
  if (is_size_guessed(op, arguments)) {
    observe("guessed_size", info.name, static_cast<int64_t>(amount.num_bytes()));
  }
  if (results.has_value()) return amount.is_small() && results->is_small();
  return amount.num_bytes() <= kSizedBytes || returns_no_tensor(op);
}

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const bool on_meta = is_dry() && !is_computed_dry(op, *stack);
  FallbackCall(op, stack, on_meta).run();
}

}  // namespace hpu_sim
