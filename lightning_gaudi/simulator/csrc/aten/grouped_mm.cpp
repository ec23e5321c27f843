// The products of a mixture of experts, which torch composes of one for each expert. Its own kernel
// is asked here by name, so that the rules hear of the operator and not of its parts alone.
//
// Versions of torch before 2.9 have no such kernel for anything but CUDA.
#if __has_include(<ATen/ops/_grouped_mm_compositeexplicitautograd_dispatch.h>)
#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm_compositeexplicitautograd_dispatch.h>
#include <torch/library.h>

#include "rules/rules.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using std::optional;

Tensor grouped_mm(const Tensor& self, const Tensor& mat2, const optional<Tensor>& offs,
                  const optional<Tensor>& bias, optional<at::ScalarType> out_dtype) {
  if (offs && offs->defined()) check_own_kernel("aten::_grouped_mm");
  return at::compositeexplicitautograd::_grouped_mm(self, mat2, offs, bias, out_dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, HPU, library) { library.impl("_grouped_mm", grouped_mm); }

}  // namespace hpu_sim
#endif
