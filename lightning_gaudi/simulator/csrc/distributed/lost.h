// What becomes of a collective when a rank is lost. gloo notices a closed connection and a timeout;
// HCCL notices neither: whoever waits for its work waits for ever.
//
// Source: Intel Gaudi PyTorch bridge 1.19 and 1.24.0, `process_group_eager_hccl.cpp` (`wait` ignores
// its timeout, `abort` is not implemented).
#pragma once

#include <exception>
#include <string>
#include <thread>

namespace hpu_sim {

/// Whether an error says that a rank is gone or late, and not that a collective is wrong.
inline bool is_lost(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& found) {
    const std::string what = found.what();
    // gloo's check of a message's length names its `preamble`.
    return what.find("gloo/transport") != std::string::npos &&
           what.find("preamble") == std::string::npos;
  } catch (...) {
    return false;
  }
}

[[noreturn]] inline void wait_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Calls a function that waits for other ranks; never returns if one of them is lost.
template <class Function>
auto unless_lost(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (...) {
    if (!is_lost(std::current_exception())) throw;
  }
  wait_for_ever();
}

}  // namespace hpu_sim
