// A clean end for autograd's device thread.
#pragma once

namespace hpu_sim {

/// Waits until autograd's thread for the card has dropped all that earlier backwards gave it. Call
/// without the interpreter lock.
///
/// Without this, that thread may still hold the last reference to a tensor of Python when the
/// interpreter ends; freeing it then needs a lock that is not to be had any more, and the process
/// aborts ("terminate called without an active exception").
void drain_autograd();

}  // namespace hpu_sim
