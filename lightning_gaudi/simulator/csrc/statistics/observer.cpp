#include "statistics/observer.h"

#include <utility>

namespace hpu_sim {
namespace {

// Never destroyed: threads of torch may outlive this library's static objects.
Observer& observer() {
  static auto& instance = *new Observer();
  return instance;
}

}  // namespace

void set_observer(Observer function) {
  observer() = std::move(function);
  g_is_observed.store(true);
}

void tell_observer(const char* kind, const std::string& what, int64_t amount,
                   const std::string& detail) {
  observer()(kind, what, amount, detail);
}

}  // namespace hpu_sim
