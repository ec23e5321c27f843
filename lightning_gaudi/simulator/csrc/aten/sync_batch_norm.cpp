// What torch.nn.SyncBatchNorm needs and the CPU has no kernels for, composed of other operators as
// the vendor does. Between these calls torch gathers the statistics of all ranks.
//
// Shapes: B batch, C channels, ... further dims, R ranks. Statistics of bf16 and half are in fp32.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include "rules/rules.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using std::optional;

/// All dims but C.
std::vector<int64_t> reduced_dims(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// [C] as [1, C, 1, ...], to go with `input`.
Tensor per_channel(const Tensor& statistic, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = statistic.numel();
  return statistic.reshape(shape);
}

Tensor widen(const Tensor& tensor) { return tensor.to(at::toOpMathType(tensor.scalar_type())); }

bool is_given(const optional<Tensor>& tensor) { return tensor && tensor->defined(); }

void update_running(const optional<Tensor>& running, const Tensor& now, double momentum) {
  if (!is_given(running)) return;
  running->mul_(1 - momentum).add_(now.to(running->scalar_type()), momentum);
}

/// Of `input` [B, C, ...], on this rank alone: mean and 1 / std, [C] each.
std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  check_own_kernel("aten::batch_norm_stats");
  auto [variance, mean] =
      at::var_mean(widen(input), reduced_dims(input), /*correction=*/at::Scalar(0));
  return {mean, (variance + eps).rsqrt()};
}

/// Of all ranks: mean and 1 / std, [C], from `means` and `invstds` [R, C] and `counts` [R].
std::tuple<Tensor, Tensor> gather_stats(const Tensor&, const Tensor& means, const Tensor& invstds,
                                        const optional<Tensor>& running_mean,
                                        const optional<Tensor>& running_var, double momentum,
                                        double eps, const Tensor& counts) {
  const Tensor weights = counts.to(means.scalar_type()).reshape({-1, 1});
  const Tensor total = weights.sum();
  const Tensor mean = (means * weights).sum(0) / total;
  // Within ranks and between them.
  const Tensor variances = invstds.square().reciprocal() - eps + (means - mean).square();
  const Tensor squares = (variances * weights).sum(0);
  update_running(running_mean, mean, momentum);
  update_running(running_var, squares / (total - 1), momentum);
  return {mean, (squares / total + eps).rsqrt()};
}

Tensor elemt(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias,
             const Tensor& mean, const Tensor& invstd, double) {
  const Tensor scale = is_given(weight) ? invstd * *weight : invstd;
  Tensor output = (widen(input) - per_channel(mean, input)) * per_channel(scale, input);
  if (is_given(bias)) output = output + per_channel(*bias, input);
  return output.to(input.scalar_type());
}

/// Of this rank: the sums over all dims but C of dy and dy * (x - mean), and the gradients of
/// weight and bias; undefined is what was not asked for.
std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(
    const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
    const optional<Tensor>& weight, bool needs_input, bool needs_weight, bool needs_bias) {
  const auto dims = reduced_dims(input);
  const auto weight_dtype = is_given(weight) ? weight->scalar_type() : mean.scalar_type();
  const Tensor dy = widen(grad_out);
  const Tensor sum_dy = dy.sum(dims);
  const Tensor sum_dy_xmu = (dy * (widen(input) - per_channel(mean, input))).sum(dims);
  return {needs_input ? sum_dy : Tensor(), needs_input ? sum_dy_xmu : Tensor(),
          needs_weight ? (sum_dy_xmu * invstd).to(weight_dtype) : Tensor(),
          needs_bias ? sum_dy.to(weight_dtype) : Tensor()};
}

/// The gradient of `input`; the sums are those of all ranks, `counts` [R] is theirs.
Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const optional<Tensor>& weight, const Tensor& sum_dy,
                      const Tensor& sum_dy_xmu, const Tensor& counts) {
  const Tensor total = counts.sum();
  const Tensor slope = sum_dy_xmu / total * invstd.square();
  const Tensor scale = is_given(weight) ? invstd * *weight : invstd;
  const Tensor centered = widen(input) - per_channel(mean, input);
  const Tensor gradient = (widen(grad_out) - per_channel(sum_dy / total, input) -
                           centered * per_channel(slope, input)) *
                          per_channel(scale, input);
  return gradient.to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("batch_norm_stats", stats);
  library.impl("batch_norm_gather_stats_with_counts", gather_stats);
  library.impl("batch_norm_elemt", elemt);
  library.impl("batch_norm_backward_reduce", backward_reduce);
  library.impl("batch_norm_backward_elemt", backward_elemt);
}

}  // namespace hpu_sim
