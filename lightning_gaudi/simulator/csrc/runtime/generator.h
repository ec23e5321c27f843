// The card's random numbers: a stream of its own, drawn by the CPU's algorithm.
#pragma once

#include <ATen/core/Generator.h>

namespace hpu_sim {

const at::Generator& default_generator();
at::Generator make_generator();

/// The CPU generator that an hpu generator draws from.
const at::Generator& cpu_generator_of(const at::Generator& hpu);

}  // namespace hpu_sim
