// Layouts that the card does not have.
#pragma once

#include <c10/core/Layout.h>

namespace hpu_sim {

/// Raises NotImplementedError: sparse tensors are not supported on HPU.
[[noreturn]] void refuse_layout(c10::Layout layout);

}  // namespace hpu_sim
