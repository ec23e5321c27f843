// The card's random numbers: a stream of its own, drawn by the CPU's algorithm.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace hpu_sim {

const at::Generator& default_generator();
at::Generator make_generator();

/// The CPU generator that an hpu generator draws from.
const at::Generator& cpu_generator_of(const at::Generator& hpu);

/// While it lives, the CPU's default generator continues the card's default stream, and the card's
/// the CPU's. For operators that draw but take no Generator.
///
/// One at a time in a process; it may not be nested.
class ScopedEngineSwap {
 public:
  ScopedEngineSwap();
  ScopedEngineSwap(const ScopedEngineSwap&) = delete;
  ScopedEngineSwap& operator=(const ScopedEngineSwap&) = delete;
  ~ScopedEngineSwap();
};

}  // namespace hpu_sim
