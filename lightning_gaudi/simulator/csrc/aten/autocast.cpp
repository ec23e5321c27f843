#include "aten/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <unordered_set>

#include "aten/registration.h"

namespace hpu_sim {
namespace {

using Names = std::unordered_set<std::string>;

// Source: Gaudi PyTorch bridge 1.19, hpu_ops/autocast_helpers.h (the names of the operators).
const Names kLowerPrecision{"addmm",
                            "addbmm",
                            "batch_norm",
                            "baddbmm",
                            "bmm",
                            "conv1d",
                            "conv2d",
                            "conv3d",
                            "conv_transpose1d",
                            "conv_transpose2d",
                            "conv_transpose3d",
                            "dot",
                            "dropout",
                            "feature_dropout",
                            "group_norm",
                            "instance_norm",
                            "layer_norm",
                            "leaky_relu",
                            "linear",
                            "matmul",
                            "mean",
                            "mm",
                            "mul",
                            "mv",
                            "softmax",
                            "log_softmax",
                            "scaled_dot_product_attention"};
const Names kFp32{"acos",
                  "addcdiv",
                  "asin",
                  "atan2",
                  "bilinear",
                  "binary_cross_entropy",
                  "binary_cross_entropy_with_logits",
                  "cdist",
                  "cosh",
                  "cosine_embedding_loss",
                  "cosine_similarity",
                  "cross_entropy_loss",
                  "dist",
                  "div",
                  "divide",
                  "embedding",
                  "embedding_bag",
                  "erfinv",
                  "exp",
                  "expm1",
                  "hinge_embedding_loss",
                  "huber_loss",
                  "kl_div",
                  "l1_loss",
                  "log",
                  "log10",
                  "log1p",
                  "log2",
                  "logsumexp",
                  "margin_ranking_loss",
                  "mse_loss",
                  "multi_margin_loss",
                  "multilabel_margin_loss",
                  "nll_loss",
                  "pdist",
                  "poisson_nll_loss",
                  "pow",
                  "reciprocal",
                  "renorm",
                  "rsqrt",
                  "sinh",
                  "smooth_l1_loss",
                  "soft_margin_loss",
                  "softplus",
                  "tan",
                  "topk",
                  "triplet_margin_loss",
                  "truediv",
                  "true_divide"};
const Names kPromote{"add", "addcmul", "addcdiv", "cat",  "div",     "exp",
                     "mul", "pow",     "sub",     "iadd", "truediv", "stack"};
// Of these only the input is cast; weights and statistics stay in fp32.
const Names kFirstArgumentOnly{"batch_norm", "group_norm", "instance_norm", "layer_norm"};

enum class Policy { kLower, kLowerFirst, kFp32, kPromote };

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_hpu() && tensor.is_floating_point() &&
         tensor.scalar_type() != at::kDouble;
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType type) {
  return is_eligible(tensor) && tensor.scalar_type() != type ? tensor.to(type) : tensor;
}

void cast_value(c10::IValue& value, at::ScalarType type) {
  if (value.isTensor()) {
    value = cast(value.toTensor(), type);
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = cast(tensor, type);
    value = c10::List<at::Tensor>(std::move(tensors));
  }
}

bool has_fp32(const c10::IValue& value) {
  const auto is_fp32 = [](const at::Tensor& tensor) {
    return is_eligible(tensor) && tensor.scalar_type() == at::kFloat;
  };
  if (value.isTensor()) return is_fp32(value.toTensor());
  if (!value.isTensorList()) return false;
  const auto tensors = value.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), is_fp32);
}

template <Policy policy>
at::ScalarType target_type(c10::ArrayRef<c10::IValue> arguments) {
  const bool is_fp32 =
      policy == Policy::kFp32 ||
      (policy == Policy::kPromote && std::any_of(arguments.begin(), arguments.end(), has_fp32));
  return is_fp32 ? at::kFloat : at::autocast::get_autocast_dtype(at::kHPU);
}

// No cast is cached, as on the device.
template <Policy policy>
void autocast_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastHPU);
  const size_t num_arguments = op.schema().arguments().size();
  const size_t first = stack->size() - num_arguments;
  const size_t end = policy == Policy::kLowerFirst ? first + 1 : stack->size();
  const at::ScalarType type = target_type<policy>(torch::jit::last(*stack, num_arguments));
  for (size_t i = first; i < end; ++i) cast_value((*stack)[i], type);
  op.callBoxed(stack);
}

template <Policy policy>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&autocast_kernel<policy>>();
}

/// A list from the file that `variable` names, or else the default. As on the device: the file
/// replaces the default, a line is a name to the letter, and a file that cannot be read is ignored.
Names list_or_default(const char* variable, const Names& names) {
  const char* path = std::getenv(variable);
  std::ifstream file(path == nullptr ? "" : path);
  if (path == nullptr || !file.is_open()) return names;
  Names result;
  for (std::string line; std::getline(file, line);) result.insert(line);
  return result;
}

bool is_functional(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::none_of(arguments.begin(), arguments.end(),
                      [](const c10::Argument& argument) { return argument.alias_info(); });
}

}  // namespace

void install_autocast() {
  const Names lower = list_or_default("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", kLowerPrecision);
  const Names fp32 = list_or_default("PT_HPU_AUTOCAST_FP32_OPS_LIST", kFp32);
  permanent_library("_", c10::DispatchKey::AutocastHPU)
      .fallback(torch::CppFunction::makeFallthrough());
  torch::Library& library = permanent_library("aten", c10::DispatchKey::AutocastHPU);
  for_each_aten_op([&](const c10::OperatorHandle& op, const std::string& name) {
    if (!is_functional(op.schema())) return;
    const std::string base = name.substr(0, name.find('.'));
    if (lower.count(base) > 0 && kFirstArgumentOnly.count(base) > 0) {
      library.impl(name.c_str(), kernel<Policy::kLowerFirst>());
    } else if (lower.count(base) > 0) {
      library.impl(name.c_str(), kernel<Policy::kLower>());
    } else if (fp32.count(base) > 0) {
      library.impl(name.c_str(), kernel<Policy::kFp32>());
    } else if (kPromote.count(base) > 0) {
      library.impl(name.c_str(), kernel<Policy::kPromote>());
    }
  });
}

}  // namespace hpu_sim
