// How often a card is told to run something: in eager mode once an operator, in lazy mode once a
// graph, with torch.compile once a compiled graph.
//
// Views and new memory launch nothing; neither does a copy between host and card, which is a
// transfer, nor a collective.
#pragma once

#include <atomic>
#include <cstdint>

#include "statistics/graph.h"
#include "statistics/observer.h"

namespace hpu_sim {

inline std::atomic<int64_t> g_num_launches{0};

/// More than 0 while this thread runs the parts of what a card runs as one.
inline thread_local int t_launch_depth = 0;

/// Counts what an operator of eager mode launches.
inline void count_launches(int64_t count) {
  if (t_launch_depth > 0 || count == 0) return;
  g_num_launches.fetch_add(count, std::memory_order_relaxed);
  if (is_observed()) tell_observer("launch", "", count, "");
}

/// Counts the launch of a graph, of which whoever ended it tells the observer.
inline void count_graph_launch() {
  if (t_launch_depth == 0) g_num_launches.fetch_add(1, std::memory_order_relaxed);
}

inline int64_t launches() { return g_num_launches.load(std::memory_order_relaxed); }
inline void reset_launches() { g_num_launches.store(0, std::memory_order_relaxed); }

/// What this thread does until `end_launch` is one launch; in lazy mode it is part of the graph.
inline void begin_launch() {
  if (!is_lazy()) count_launches(1);
  ++t_launch_depth;
}
inline void end_launch() { --t_launch_depth; }

}  // namespace hpu_sim
