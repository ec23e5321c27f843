#include "runtime/signals.h"

#include <signal.h>
#include <unistd.h>

namespace hpu_sim {
namespace {

void end(int signum, siginfo_t*, void*) {
  constexpr char kMessage[] = "Received Interrupt\n";
  [[maybe_unused]] auto written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(signum);
}

}  // namespace

void take_sigint() {
  struct sigaction action = {};
  sigfillset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK | SA_SIGINFO;
  action.sa_sigaction = end;
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace hpu_sim
