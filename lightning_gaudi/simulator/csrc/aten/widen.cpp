#include "aten/widen.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/dispatch_keys.h"

namespace hpu_sim {
namespace {

at::Tensor convert(const at::Tensor& tensor, at::ScalarType type) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  return tensor.to(type);
}

}  // namespace

void widen_arguments(const OpInfo& info, torch::jit::Stack& stack, size_t first, Widened& widened) {
  if (!info.widens_reduced_floats && !info.widens_int32_index) return;
  for (size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::ScalarType type = stack[i].toTensor().scalar_type();
    if (info.widens_reduced_floats && at::isReducedFloatingType(type)) {
      widened.from = type;
      stack[i] = convert(stack[i].toTensor(), at::kFloat);
    } else if (info.widens_int32_index && type == at::kInt && i > first) {
      stack[i] = convert(stack[i].toTensor(), at::kLong);
    }
  }
}

at::Tensor narrow_result(const at::Tensor& result, const Widened& widened) {
  const bool is_widened =
      widened.from.has_value() && result.defined() && result.scalar_type() == at::kFloat;
  return is_widened ? convert(result, *widened.from) : result;
}

}  // namespace hpu_sim
