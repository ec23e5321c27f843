// Walking torch's operators at load, to register one boxed kernel for many of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>

namespace hpu_sim {

/// Calls `visit(op, name)` for every operator of aten that has a schema; `name` is without
/// "aten::".
void for_each_aten_op(
    const std::function<void(const c10::OperatorHandle& op, const std::string& name)>& visit);

/// A library that stays registered until the process ends.
torch::Library& permanent_library(const std::string& name_space, c10::DispatchKey key);

}  // namespace hpu_sim
