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

/// What kind of tensor it is, and what to do instead.
std::pair<const char*, const char*> describe(const at::Tensor& tensor) {
  if (tensor.is_quantized()) {
    return {"Quantized",
            "Quantize on the CPU, and use what is quantized there; the vendor's way to 8 bits is "
            "fp8, which is not simulated."};
  }
  if (tensor.is_nested()) {
    return {"Nested", "Pad to one length, or pack sequences into rows (lightning_gaudi.data)."};
  }
  if (tensor.is_mkldnn()) {
    return {"oneDNN's", "Leave the format to the card: do not call to_mkldnn()."};
  }
  return {"Sparse", "Compute it on the CPU, or keep it dense."};
}

}  // namespace

void refuse_layout(const at::Tensor& cpu) {
  const auto [kind, instead] = describe(cpu);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, kind, " tensors are not supported on HPU, and the result is one (dtype ", cpu.dtype(),
      ", layout ", cpu.layout(), "). ", instead);
}

TORCH_LIBRARY_IMPL(_, SparseHPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrHPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

// A composite kernel comes before a fallback, and torch's says neither what the tensor is nor what to
// do. It is what copies of compressed tensors to the card come to.
TORCH_LIBRARY_IMPL(aten, SparseCsrHPU, library) {
  library.impl("_sparse_compressed_tensor_unsafe",
               torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

}  // namespace hpu_sim
