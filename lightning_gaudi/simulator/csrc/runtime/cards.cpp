#include "runtime/cards.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <vector>

#include "runtime/device.h"

namespace hpu_sim {
namespace {

using Modules = std::vector<int64_t>;

constexpr int64_t kMaxModules = 8;
constexpr uint64_t kMaxServers = uint64_t{1} << 58;

std::string g_server = "default";
int g_file = -1;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// The module that a text names, if it is one.
std::optional<int64_t> module_of(const std::string& text) {
  char* end = nullptr;
  const long module = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != '\0' || module < 0 || module >= kMaxModules) return {};
  return module;
}

std::string text_of(const Modules& modules) {
  std::ostringstream text;
  for (size_t i = 0; i < modules.size(); ++i) text << (i ? ", " : "") << modules[i];
  return text.str();
}

/// The modules that this process may see.
Modules visible_modules() {
  Modules modules;
  if (const char* visible = variable("HABANA_VISIBLE_MODULES")) {
    std::istringstream list(visible);
    for (std::string each; std::getline(list, each, ',');) {
      const auto module = module_of(each);
      TORCH_CHECK(module, "Device acquire failed: HABANA_VISIBLE_MODULES=", visible, " is no list ",
                  "of modules. Set it to numbers from 0 to ", kMaxModules - 1, " with commas ",
                  "between them, or unset it.");
      modules.push_back(*module);
    }
  } else {
    for (int64_t i = 0; i < server_device_count(); ++i) modules.push_back(i);
  }
  return modules;
}

/// Modules to try, in this order.
Modules candidates() {
  const Modules visible = visible_modules();
  const char* assigned = variable("HLS_MODULE_ID");
  // The last one first: launchers give ranks the first ones.
  if (!assigned) return Modules(visible.rbegin(), visible.rend());
  const auto module = module_of(assigned);
  TORCH_CHECK(module && std::find(visible.begin(), visible.end(), *module) != visible.end(),
              "Device acquire failed: HLS_MODULE_ID=", assigned, " is no module of the simulated ",
              "server, which shows this process ", text_of(visible), ". Set HLS_MODULE_ID to one ",
              "of these or unset it, or simulate more cards by LIGHTNING_GAUDI_SIMULATE.");
  return {*module};
}

/// The file whose locks say which cards are taken. It is empty, and one for all servers of a user.
int open_file() {
  const std::string name = "/lightning-gaudi-cards-" + std::to_string(getuid());
  std::ostringstream tried;
  for (const char* folder : {variable("XDG_RUNTIME_DIR"), variable("TMPDIR"), "/tmp"}) {
    if (!folder) continue;
    const std::string path = folder + name;
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file >= 0) return file;
    tried << (tried.tellp() > 0 ? "; " : "") << path << ": " << std::strerror(errno);
  }
  TORCH_CHECK(false, "Device acquire failed: no file can be made that says which simulated cards ",
              "are taken (", tried.str(), "). Set TMPDIR to a folder that can be written.");
}

/// The lock of a module: a byte of its own for each module of each server.
struct flock lock_of(int64_t module) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const unsigned char letter : g_server) hash = (hash ^ letter) * 1099511628211u;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(hash % kMaxServers) * kMaxModules + module;
  lock.l_len = 1;
  return lock;
}

/// These locks belong to a process, not to what it has forked, and end with it however it ends.
bool take(int64_t module) {
  struct flock lock = lock_of(module);
  if (fcntl(g_file, F_SETLK, &lock) == 0) return true;
  TORCH_CHECK(errno == EACCES || errno == EAGAIN, "Device acquire failed: simulated cards cannot ",
              "be locked (", std::strerror(errno), "). Set XDG_RUNTIME_DIR or TMPDIR to a folder ",
              "of a local file system.");
  return false;
}

std::string holder_of(int64_t module) {
  struct flock lock = lock_of(module);
  const bool is_known = fcntl(g_file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  return is_known && lock.l_pid > 0 ? "process " + std::to_string(lock.l_pid) : "another process";
}

[[noreturn]] void refuse(const Modules& modules) {
  std::ostringstream holders;
  for (size_t i = 0; i < modules.size(); ++i) {
    holders << (i ? ", " : "") << "module " << modules[i] << " by " << holder_of(modules[i]);
  }
  const bool is_assigned = variable("HLS_MODULE_ID") != nullptr;
  TORCH_CHECK(false, "Device acquire failed (a Gaudi says synStatus=8): ",
              is_assigned ? "HLS_MODULE_ID names a card" : "all cards of the simulated server are",
              is_assigned ? " that is taken: " : " taken: ", holders.str(),
              ". A card is one process's at a time. End that process, ",
              is_assigned ? "or give each process a module of its own"
                          : "or simulate more cards by LIGHTNING_GAUDI_SIMULATE",
              "; if it belongs to another run, set LIGHTNING_GAUDI_SIMULATE_SERVER to a name of ",
              "this run's own.");
}

}  // namespace

void set_server(const std::string& name) { g_server = name; }

int64_t acquire_card() {
  const Modules modules = candidates();
  if (g_file < 0) g_file = open_file();  // stays open: closing it would end the lock
  for (const int64_t module : modules) {
    if (take(module)) return module;
  }
  refuse(modules);
}

}  // namespace hpu_sim
