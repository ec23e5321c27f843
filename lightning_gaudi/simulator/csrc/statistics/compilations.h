// The log of compiled graphs: what ended each, and how it differs from the last one of its kind.
//
// Graphs are of one kind if they have the same operators on the same types, whatever the sizes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

namespace hpu_sim {

struct Compilation {
  std::string ended_by;  ///< what ended the graph
  int64_t num_ops;
  std::string cause;  ///< "input 0: [8, 113] was [8, 128]"; empty for the first graph of its kind
};

/// What graphs of a kind have in common, and the shapes in which they differ.
struct GraphSignature {
  uint64_t kind = 0;
  std::vector<int64_t> input_shapes;  ///< for each input the number of its dims, then their sizes
};

/// Its memory is bounded: the oldest graphs are forgotten, and counted on.
class CompilationLog {
 public:
  /// Returns whether it is a recompilation: a graph of this kind is known.
  bool add(const std::string& ended_by, int64_t num_ops, const GraphSignature& signature);

  /// Those from the one at `index` on (the first ever is 0), as far as they are kept.
  std::vector<Compilation> since(int64_t index) const;

  /// Of the one that was added last.
  const std::string& last_cause() const { return entries_.back().cause; }

 private:
  std::string cause_of(const GraphSignature& signature) const;

  std::deque<Compilation> entries_;
  int64_t num_forgotten_ = 0;
  std::unordered_map<uint64_t, std::vector<int64_t>> last_shapes_;  // by kind
};

}  // namespace hpu_sim
