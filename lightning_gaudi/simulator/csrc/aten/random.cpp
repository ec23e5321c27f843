#include "aten/random.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "aten/dispatch_keys.h"
#include "runtime/generator.h"

namespace hpu_sim {
namespace {

using at::Tensor;

// Tagged as random for its dropout, which it refuses.
constexpr const char* kFlashAttention = "aten::_scaled_dot_product_flash_attention_for_cpu";

/// Dropout by the arithmetic of the CPU's kernel, which can only draw from the CPU's generator.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p) {
  const double kept = 1. - p;
  const double scale = kept == 0 ? 0. : 1. / kept;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(kept, cpu_generator_of(default_generator()));
  return {input.mul(mask).mul_(scale), mask};
}

/// Whether the arguments of native_dropout (input, p, train) ask for random numbers.
bool draws(c10::ArrayRef<c10::IValue> arguments) {
  const bool is_training = arguments[2].isNone() || arguments[2].toBool();
  return is_training && arguments[0].toTensor().numel() > 0;
}

}  // namespace

void call_drawing_kernel(const OpInfo& info, const c10::OperatorHandle& op,
                         torch::jit::Stack& stack) {
  const bool is_dropout = info.name == "aten::native_dropout";
  if (is_dropout && draws(torch::jit::last(stack, 3))) {
    auto [output, mask] = dropout(torch::jit::peek(stack, 0, 3).toTensor(),
                                  torch::jit::peek(stack, 1, 3).toDouble());
    torch::jit::drop(stack, 3);
    torch::jit::push(stack, std::move(output), std::move(mask));
    return;
  }
  // The kernel of somebody else's operator names the generator that it draws from.
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_dropout || info.is_foreign || info.name == kFlashAttention, info.name,
      " draws random numbers without taking a generator, and the simulated HPU does not know how: "
      "its numbers would come from the CPU's stream. Compute it on the CPU, or add a kernel in "
      "aten/random.cpp.");
  op.redispatchBoxed(kCpuKeys, &stack);
}

}  // namespace hpu_sim
