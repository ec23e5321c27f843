// How torch learns that hpu is this process's accelerator.
#pragma once

#include <map>
#include <string>

namespace hpu_sim {

/// Makes sure that torch's HPU hooks are ours.
///
/// Returns: "registered" if the library was loaded before torch first asked for them, else
/// "installed-late" (they then replace torch's defaults in place).
/// Raises: RuntimeError if another package's hooks are there.
std::string install_hooks();

/// Lets a torch that was built for another accelerator answer as a CPU build does, because torch
/// allows one accelerator a process.
///
/// Returns: for cuda, xpu and mps "not-built", "hidden" or "already-hidden".
/// Raises: RuntimeError if a GPU is visible or in use, or if the hooks are not torch's own.
std::map<std::string, std::string> hide_accelerators();

}  // namespace hpu_sim
