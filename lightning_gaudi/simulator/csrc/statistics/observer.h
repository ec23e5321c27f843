// Who wants to be told of what the card is given to do, as it happens: by default nobody, which
// costs one relaxed load an event.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace hpu_sim {

inline std::atomic<bool> g_is_observed{false};
inline bool is_observed() { return g_is_observed.load(std::memory_order_relaxed); }

/// Called in the thread of the event, with what `simulator/observer.py` says of its kinds. Takes
/// Python's lock: no lock of ours may be held.
using Observer = std::function<void(const char* kind, const std::string& what, int64_t amount,
                                    const std::string& detail)>;

/// Once, for ever; `g_is_observed` says whether it is called.
void set_observer(Observer observer);

void tell_observer(const char* kind, const std::string& what, int64_t amount,
                   const std::string& detail);

inline void observe(const char* kind, const std::string& what, int64_t amount,
                    const std::string& detail = "") {
  if (is_observed()) tell_observer(kind, what, amount, detail);
}

}  // namespace hpu_sim
