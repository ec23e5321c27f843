// Which card of the server is this process's, while it runs.
#pragma once

#include <cstdint>
#include <string>

namespace hpu_sim {

/// Processes with the same name here share the cards of one simulated server.
void set_server(const std::string& name);

/// Takes a card for this process, until it ends: module HLS_MODULE_ID, else the last one that is
/// free. HABANA_VISIBLE_MODULES says which modules there are; without it all of the server.
///
/// Returns: the module.
/// Raises: RuntimeError if another process has it, if all are taken, or if there is no such module.
int64_t acquire_card();

}  // namespace hpu_sim
