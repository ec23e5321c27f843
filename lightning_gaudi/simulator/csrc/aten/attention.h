// What attention costs on a card.
#pragma once

#include <ATen/core/ivalue.h>

#include "aten/op_info.h"

namespace hpu_sim {

/// Launches of `scaled_dot_product_attention` in eager mode, or of its backward.
///
/// A card composes it of other operators by default; here it is the CPU's flash kernel, which is
/// faster than the composition would be. `info` is that kernel's or its backward's.
int64_t launches_of_attention(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace hpu_sim
