// Scaled dot product attention: where the CPU takes its flash kernel, so do we, forward and
// backward; elsewhere the same composition of operators as on the CPU. The math composition alone
// would cost 1.5 times as much.
//
// torch's SDPA asks the device which way to go. Flash means, for a device that is not a GPU,
// _scaled_dot_product_flash_attention_for_cpu, which reaches the CPU through the fallback and
// differentiates by the CPU's formula: results and gradients are the CPU's to the bit. It keeps no
// scores in memory, which a card does that composes attention of operators. A card that cannot do
// otherwise (`compose_attention`) takes the composition, so that its memory is counted.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

#include <atomic>

#include "aten/sdpa.h"

namespace hpu_sim {
namespace {

std::atomic<bool> g_is_composed{false};

/// torch's choice, whose arguments differ from release to release.
template <typename Function>
struct Choice;

template <typename... Arguments>
struct Choice<int64_t (*)(Arguments...)> {
  static int64_t make(Arguments... arguments) {
    if (g_is_composed.load(std::memory_order_relaxed)) {
      return static_cast<int64_t>(sdp::SDPBackend::math);
    }
    return at::native::_fused_sdp_choice_cpp(arguments...);
  }
};

using ChoiceOfCpu = Choice<decltype(&at::native::_fused_sdp_choice_cpp)>;

}  // namespace

void compose_attention(bool is_composed) { g_is_composed.store(is_composed); }

}  // namespace hpu_sim

// torch 2.6 does not ask an HPU, and composes attention of operators.
#ifdef REGISTER_HPU_DISPATCH
namespace at::native {
// The choice reads only shapes, strides, types and torch.backends.cuda.enable_*_sdp, so hpu
// tensors (and torch.compile's fake ones) may be asked about as they are.
REGISTER_HPU_DISPATCH(_fused_sdp_choice_stub, &hpu_sim::ChoiceOfCpu::make);
}  // namespace at::native
#endif

namespace hpu_sim {

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("_fused_sdp_choice", TORCH_FN(ChoiceOfCpu::make));
}

}  // namespace hpu_sim
