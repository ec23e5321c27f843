// torch.autocast("hpu") with the vendor's lists and precedence.
#pragma once

namespace hpu_sim {

/// Registers the autocast kernels. The lists are read once, here.
void install_autocast();

}  // namespace hpu_sim
