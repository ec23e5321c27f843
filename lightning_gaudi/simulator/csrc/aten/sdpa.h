// How F.scaled_dot_product_attention is computed where nothing fuses it.
#pragma once

namespace hpu_sim {

/// Whether it is composed of operators, whose scores are in the card's memory, rather than the
/// CPU's flash kernel, which keeps none.
void compose_attention(bool is_composed);

}  // namespace hpu_sim
