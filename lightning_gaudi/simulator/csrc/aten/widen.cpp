#include "aten/widen.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "aten/dispatch_keys.h"

namespace hpu_sim {
namespace {

at::Tensor convert(const at::Tensor& tensor, at::ScalarType type) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  return tensor.to(type);
}

/// float32 has all of bf16 and half; float64 all of int32, and what an HPU has of int64.
at::ScalarType wider(at::ScalarType type) {
  return at::isReducedFloatingType(type) ? at::kFloat : at::kDouble;
}

bool is_written(const OpInfo& info, size_t i) {
  const auto& mutated = info.mutated_arguments;
  return std::count(mutated.begin(), mutated.end(), static_cast<int>(i)) > 0;
}

}  // namespace

void widen_arguments(const OpInfo& info, torch::jit::Stack& stack, size_t first, Widened& widened) {
  if (info.widened == 0 && !info.widens_int32_index) return;
  for (size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor tensor = stack[i].toTensor();
    const at::ScalarType type = tensor.scalar_type();
    if (info.widened & type_bit(type)) {
      widened.from = type;
      stack[i] = convert(tensor, wider(type));
      if (is_written(info, i - first)) widened.written.emplace_back(tensor, stack[i].toTensor());
    } else if (info.widens_int32_index && type == at::kInt && i > first) {
      stack[i] = convert(tensor, at::kLong);
    }
  }
}

void narrow_written(const Widened& widened) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  for (const auto& [tensor, wide] : widened.written) {
    if (tensor.sizes() != wide.sizes()) tensor.resize_(wide.sizes());
    tensor.copy_(wide);
  }
}

at::Tensor narrow_result(const at::Tensor& result, const Widened& widened) {
  const bool is_widened = widened.from.has_value() && result.defined() &&
                          result.scalar_type() == wider(*widened.from);
  return is_widened ? convert(result, *widened.from) : result;
}

}  // namespace hpu_sim
