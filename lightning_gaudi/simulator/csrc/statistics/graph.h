// What a lazy device would compile.
//
// A lazy device collects operations until something forces it to run them: the collected graph is
// a recipe, compiled the first time and taken from a cache after. Here every operation runs at
// once; the tracker only hashes the graph that would have been collected. In eager mode it costs
// one relaxed load an operation.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "statistics/compilations.h"

namespace hpu_sim {

struct OpInfo;

extern std::atomic<bool> g_is_lazy;
/// While a captured graph is replayed, its operations are nobody's to collect.
extern thread_local bool t_is_replaying;
inline bool is_lazy() { return g_is_lazy.load(std::memory_order_relaxed) && !t_is_replaying; }
void set_lazy(bool lazy);

/// Adds an operation to the graph: its name, its tensors' metadata and identities and its other
/// arguments. Values of Scalar arguments are inputs of a recipe, not part of it.
void record_operation(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

/// Adds a copy within the device to the graph.
void record_copy(const at::Tensor& source, const at::Tensor& destination);

/// The tensor, or every tensor of the list, has got a new value in this graph.
void define_value(const c10::IValue& value);

/// Ends the graph because the host must wait; in eager mode nothing.
void break_graph(const std::string& reason);

/// Ends the graph because the user says so; in eager mode nothing.
void mark_step();

/// Ends the graph because a captured one begins or ends; nothing if there is nothing to run.
void end_graph_at_capture();

/// Ends the graph, and collects nothing in this thread until `end_replay`.
void begin_replay();

/// Counts the graphs that were replayed: each was found in the cache, and is a launch.
void end_replay(int64_t num_graphs);

/// Whether collectives are operations of the graph; else each ends the graph that feeds it, and
/// the graph goes on without knowing its result.
void set_lazy_collectives(bool lazy);
bool has_lazy_collectives();

/// Tells the graph of a collective that reads and writes `tensors`.
void record_collective(const std::string& kind, c10::ArrayRef<at::Tensor> tensors);

/// Ends a graph that holds collectives, because one is waited for; else nothing.
void end_lazy_collectives(const std::string& reason);

struct GraphStats {
  int64_t num_compilations = 0;
  int64_t num_cache_hits = 0;
  int64_t num_breaks = 0;       ///< graphs ended by the host's waiting
  int64_t num_mark_steps = 0;   ///< graphs ended by mark_step
  int64_t num_collectives = 0;  ///< graphs ended by a collective, or by waiting for a lazy one
  int64_t num_empty_steps = 0;  ///< of all three, those with nothing to run
  int64_t num_ops = 0;
  int64_t pending_ops = 0;
  int64_t num_recompilations = 0;  ///< of the compilations, those of graphs of a known kind
};

/// As cheap as its handful of numbers, however many graphs there were.
GraphStats graph_stats();

/// The compilations from number `index` on.
std::vector<Compilation> compilations(int64_t index);

/// Forgets recipes, statistics and the pending graph.
void reset_graph_cache();

}  // namespace hpu_sim
