#include "aten/layouts.h"

#include <torch/library.h>

namespace hpu_sim {
namespace {

[[noreturn]] void refuse_sparse(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), ": sparse tensors are not supported on HPU (",
      c10::toString(keys.highestPriorityTypeId()),
      "). Keep the tensor dense: sparse=False for an Embedding, .to_dense() before .to(\"hpu\").");
}

}  // namespace

void refuse_layout(c10::Layout layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Only dense tensors are supported on HPU, but the result has layout ", layout,
      ". Sparse tensors are not supported on HPU: compute it on the CPU.");
}

TORCH_LIBRARY_IMPL(_, SparseHPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrHPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

}  // namespace hpu_sim
