#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hpu_sim {

void bind_programs(py::module_& m);

}  // namespace hpu_sim
