// A group of many ranks of which one is there, for a dry card: the others are taken to be alike.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hpu_sim {

/// Adds `LoneRank(rank, size)` to the module: a backend as gloo is one.
void bind_lone_ranks(py::module_& module);

}  // namespace hpu_sim
