// Fused scaled dot product attention: where the CPU takes its flash kernel, so do we, forward and
// backward; elsewhere the same composition of operators as on the CPU. The math composition alone
// would cost 1.5 times as much.
//
// torch's SDPA asks the device which way to go. Flash means, for a device that is not a GPU,
// _scaled_dot_product_flash_attention_for_cpu, which reaches the CPU through the fallback and
// differentiates by the CPU's formula: results and gradients are the CPU's to the bit.
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

// torch 2.6 does not ask an HPU, and composes attention of operators.
#ifdef REGISTER_HPU_DISPATCH
namespace at::native {
// The choice reads only shapes, strides, types and torch.backends.cuda.enable_*_sdp, so hpu
// tensors (and torch.compile's fake ones) may be asked about as they are.
REGISTER_HPU_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp);
}  // namespace at::native
#endif

namespace hpu_sim {

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("_fused_sdp_choice", TORCH_FN(at::native::_fused_sdp_choice_cpp));
}

}  // namespace hpu_sim
