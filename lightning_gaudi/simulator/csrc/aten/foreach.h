// Operators on lists of tensors that a card runs as one.
#pragma once

#include <string>

namespace hpu_sim {

/// Whether the card has a kernel of its own for this operator, such as "_foreach_add_.List"; else
/// torch composes it of one operator a tensor.
bool is_foreach_of_card(const std::string& name);

}  // namespace hpu_sim
