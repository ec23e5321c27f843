#include "aten/attention.h"

#include <ATen/core/Tensor.h>

namespace hpu_sim {
namespace {

// What torch's composition (_scaled_dot_product_attention_math) launches on contiguous fp32
// tensors without a mask: counted, as tests/simulator/test_launches.py counts it again. Then what
// each of the others adds.
constexpr int64_t kForward = 9;
constexpr int64_t kBackward = 7;
constexpr int64_t kBoolMask = 4;        // as numbers, which are added
constexpr int64_t kFloatMask = 1;       // added
constexpr int64_t kCausal = 6;          // the bool mask is made first
constexpr int64_t kReducedForward = 5;  // bf16 and half are computed in fp32
constexpr int64_t kReducedBackward = 4;
constexpr int64_t kGroupedQueries = 2;  // keys and values are repeated, or their gradients summed
constexpr int64_t kValueCopy = 1;       // batch and heads do not make one dim

bool is_reduced(const at::Tensor& query) { return at::isReducedFloatingType(query.scalar_type()); }

int64_t launches_of_mask(bool is_causal, const c10::IValue& mask) {
  if (is_causal) return kCausal;
  if (!mask.isTensor() || !mask.toTensor().defined()) return 0;
  return mask.toTensor().scalar_type() == at::kBool ? kBoolMask : kFloatMask;
}

/// Of a tensor of (batch, heads, tokens, head dim).
bool is_one_batch(const at::Tensor& value) {
  return value.size(0) == 1 || value.size(1) == 1 ||
         value.stride(0) == value.size(1) * value.stride(1);
}

}  // namespace

int64_t launches_of_attention(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const bool is_backward = info.name.find("backward") != std::string::npos;
  const size_t first = is_backward ? 1 : 0;  // after the gradient
  const at::Tensor& query = arguments[first].toTensor();
  const at::Tensor& value = arguments[first + 2].toTensor();
  const bool is_grouped = query.size(1) != value.size(1);
  int64_t count = is_backward ? kBackward : kForward;
  if (is_reduced(query)) count += is_backward ? kReducedBackward : kReducedForward;
  if (is_grouped) count += kGroupedQueries;
  if (is_backward) return count;
  if (!is_grouped && !is_one_batch(value)) count += kValueCopy;
  return count + launches_of_mask(arguments[4].toBool(), arguments[5]);
}

}  // namespace hpu_sim
