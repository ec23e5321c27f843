// Ctrl-C as releases of the vendor's package take it that install handlers when they are loaded.
#pragma once

namespace hpu_sim {

/// Has SIGINT end the process at once with exit status 2, unless somebody takes it again: no code of
/// Python's runs, neither a handler nor `atexit`. The interpreter does not hear of the change.
///
/// Source: Intel Gaudi PyTorch bridge 1.19, `pytorch_helpers/habana_helpers/signal_handler.cpp` and
/// `signal_handler.h`: an object of the library installs it. In 1.24.0 it is made when it is first
/// asked for, and nobody asks.
void take_sigint();

}  // namespace hpu_sim
