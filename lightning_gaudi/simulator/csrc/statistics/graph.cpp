#include "statistics/graph.h"

#include <c10/util/bit_cast.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_set>

#include "aten/op_info.h"
#include "runtime/allocator.h"
#include "statistics/launches.h"
#include "statistics/observer.h"

namespace hpu_sim {

std::atomic<bool> g_is_lazy{false};
thread_local bool t_is_replaying = false;

namespace {

std::atomic<bool> g_has_lazy_collectives{false};

constexpr uint64_t kEmptyGraph = 1469598103934665603ULL;

// One for each kind of thing that is hashed, so that [a, [b]] and [[a], b] differ.
enum Mark : uint64_t {
  kNone = 3,
  kListEnd = 5,
  kOther = 7,
  kScalar = 11,
  kHostTensor = 13,
  kCopy = 17,
  kCollective = 19
};

/// All of it is guarded by `mutex`: backward runs on a thread of its own.
class Tracker {
 public:
  void mix(uint64_t word) { mix_into(hash_, word); }

  /// For what graphs of one kind have in common, too.
  void mix_kind(uint64_t word) {
    mix(word);
    mix_into(signature_.kind, word);
  }

  void mix_value(const c10::IValue& value) {
    if (value.isTensor()) {
      mix_tensor(value.toTensor());
    } else if (value.isInt()) {
      mix(static_cast<uint64_t>(value.toInt()));
    } else if (value.isBool()) {
      mix(value.toBool() ? 1 : 2);
    } else if (value.isDouble()) {
      mix(c10::bit_cast<uint64_t>(value.toDouble()));
    } else if (value.isNone()) {
      mix(kNone);
    } else if (value.isString()) {
      mix(std::hash<std::string>()(value.toStringRef()));
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) mix_value(element);
      mix(kListEnd);
    } else {
      mix(kOther);
    }
  }

  void mix_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return mix(kNone);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    mix_kind(static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())));
    for (int64_t size : impl->sizes()) mix(static_cast<uint64_t>(size) * 2 + 1);
    for (int64_t stride : impl->strides()) mix(static_cast<uint64_t>(stride) * 2);
    if (!tensor.device().is_hpu()) return mix(kHostTensor);
    mix(static_cast<uint64_t>(impl->storage_offset()));
    mix_identity(impl);
  }

  void define(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_hpu()) return;
    if (Block* block = block_of(tensor.storage().unsafeGetStorageImpl())) name(*block);
  }

  void count_op() {
    ++stats.pending_ops;
    ++stats.num_ops;
  }

  void end_graph(const std::string& reason) {
    if (stats.pending_ops == 0) {
      ++stats.num_empty_steps;
      return;
    }
    const char* what = "reused";
    if (recipes.insert(hash_).second) {
      ++stats.num_compilations;
      const bool is_again = log.add(reason, stats.pending_ops, signature_);
      stats.num_recompilations += is_again;
      what = is_again ? "recompiled" : "compiled";
    } else {
      ++stats.num_cache_hits;
    }
    count_graph_launch();
    if (is_observed()) note_ended(what);
    start_graph();
  }

  void start_graph() {
    ++epoch_;
    next_value_ = 0;
    hash_ = kEmptyGraph;
    signature_.kind = kEmptyGraph;
    signature_.input_shapes.clear();
    stats.pending_ops = 0;
  }

  struct Ended {
    const char* what;
    int64_t num_ops;
    std::string cause;
  };

  std::mutex mutex;
  std::vector<Ended> ended;  ///< graphs that the observer is to be told of, without the lock
  GraphStats stats;
  CompilationLog log;
  std::unordered_set<uint64_t> recipes;

 private:
  static void mix_into(uint64_t& hash, uint64_t word) {
    hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 12) + (hash >> 4);
    hash *= 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }

  // Values are numbered in the order in which the graph meets them. What it meets first as an
  // argument is an input, marked by the complement.
  void mix_identity(const c10::TensorImpl* impl) {
    Block* block = block_of(impl->unsafe_storage().unsafeGetStorageImpl());
    if (block == nullptr) return mix(kOther);
    const bool is_input = block->graph_epoch != epoch_;
    if (is_input) {
      name(*block);
      auto& shapes = signature_.input_shapes;
      shapes.push_back(impl->dim());
      shapes.insert(shapes.end(), impl->sizes().begin(), impl->sizes().end());
    }
    const auto value = static_cast<uint64_t>(block->graph_value);
    mix(is_input ? ~value : value);
  }

  void note_ended(const char* what) {
    const bool is_again = std::strcmp(what, "recompiled") == 0;
    ended.push_back({what, stats.pending_ops, is_again ? log.last_cause() : ""});
  }

  void name(Block& block) {
    block.graph_epoch = epoch_;
    block.graph_value = next_value_++;
  }

  uint64_t hash_ = kEmptyGraph;
  GraphSignature signature_{kEmptyGraph, {}};
  int64_t epoch_ = 0;
  int64_t next_value_ = 0;
};

// Never destroyed: threads of torch may outlive this library's static objects.
Tracker& tracker() {
  static auto& instance = *new Tracker();
  return instance;
}

/// Holds the lock, and tells the observer of the graphs that have ended once it is given back.
class EndingLock {
 public:
  explicit EndingLock(Tracker& graph) : graph_(graph), lock_(graph.mutex) {}
  ~EndingLock() {
    std::vector<Tracker::Ended> ended;
    ended.swap(graph_.ended);
    lock_.unlock();
    for (const auto& each : ended) observe("graph", each.what, each.num_ops, each.cause);
  }

 private:
  Tracker& graph_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace

void set_lazy(bool lazy) { g_is_lazy.store(lazy); }

void record_operation(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  graph.mix_kind(info.hash);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_scalar[i]) {
      graph.mix(kScalar);
    } else {
      graph.mix_value(arguments[i]);
    }
  }
  graph.count_op();
}

void record_copy(const at::Tensor& source, const at::Tensor& destination) {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  graph.mix_kind(kCopy);
  graph.mix_tensor(source);
  graph.mix_tensor(destination);
  graph.define(destination);
  graph.count_op();
}

void define_value(const c10::IValue& value) {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  if (value.isTensor()) {
    graph.define(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) graph.define(tensor);
  }
}

void break_graph(const std::string& reason) {
  if (!is_lazy()) return;
  Tracker& graph = tracker();
  const EndingLock lock(graph);
  ++graph.stats.num_breaks;
  graph.end_graph(reason);
}

void set_lazy_collectives(bool lazy) { g_has_lazy_collectives.store(lazy); }
bool has_lazy_collectives() { return g_has_lazy_collectives.load(); }

void record_collective(const std::string& kind, c10::ArrayRef<at::Tensor> tensors) {
  if (!is_lazy()) return;
  Tracker& graph = tracker();
  const EndingLock lock(graph);
  if (!has_lazy_collectives()) {
    ++graph.stats.num_collectives;
    graph.end_graph(kind);
    return;
  }
  graph.mix_kind(kCollective);
  graph.mix_kind(std::hash<std::string>()(kind));
  for (const at::Tensor& tensor : tensors) graph.mix_tensor(tensor);
  for (const at::Tensor& tensor : tensors) graph.define(tensor);
  graph.count_op();
}

void end_lazy_collectives(const std::string& reason) {
  if (!is_lazy() || !has_lazy_collectives()) return;
  Tracker& graph = tracker();
  const EndingLock lock(graph);
  ++graph.stats.num_collectives;
  graph.end_graph(reason);
}

void mark_step() {
  if (!is_lazy()) return;
  Tracker& graph = tracker();
  const EndingLock lock(graph);
  ++graph.stats.num_mark_steps;
  graph.end_graph("mark_step");
}

void end_graph_at_capture() {
  Tracker& graph = tracker();
  const EndingLock lock(graph);
  if (graph.stats.pending_ops > 0) graph.end_graph("capture");
}

void begin_replay() {
  end_graph_at_capture();
  t_is_replaying = true;
  ++t_launch_depth;
}

void end_replay(int64_t num_graphs) {
  t_is_replaying = false;
  --t_launch_depth;
  for (int64_t i = 0; i < num_graphs; ++i) {
    count_graph_launch();
    observe("graph", "reused", 0);
  }
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  graph.stats.num_cache_hits += num_graphs;
}

GraphStats graph_stats() {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  return graph.stats;
}

std::vector<Compilation> compilations(int64_t index) {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  return graph.log.since(index);
}

void reset_graph_cache() {
  Tracker& graph = tracker();
  std::lock_guard<std::mutex> lock(graph.mutex);
  graph.recipes.clear();
  graph.log = CompilationLog();
  graph.start_graph();
  graph.stats = GraphStats();
}

}  // namespace hpu_sim
