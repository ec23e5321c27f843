// The Python module `_hpu_sim`.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/autocast.h"
#include "aten/fallback.h"
#include "aten/op_info.h"
#include "aten/registration.h"
#include "aten/sdpa.h"
#include "compiled/binding.h"
#include "distributed/hccl.h"
#include "distributed/pending.h"
#include "rules/rules.h"
#include "runtime/allocator.h"
#include "runtime/cards.h"
#include "runtime/device.h"
#include "runtime/dry.h"
#include "runtime/exit.h"
#include "runtime/generator.h"
#include "runtime/hooks.h"
#include "runtime/memory_accounting.h"
#include "runtime/signals.h"
#include "statistics/counters.h"
#include "statistics/graph.h"
#include "statistics/launches.h"
#include "statistics/observer.h"

namespace hpu_sim {
namespace {

void install() {
  static bool is_installed = false;
  if (std::exchange(is_installed, true)) return;
  install_direct_kernels();
  install_autocast();
  install_collectives();
}

py::dict graph_stats_dict() {
  const GraphStats stats = graph_stats();
  py::dict result;
  result["num_compilations"] = stats.num_compilations;
  result["num_cache_hits"] = stats.num_cache_hits;
  result["num_breaks"] = stats.num_breaks;
  result["num_mark_steps"] = stats.num_mark_steps;
  result["num_collectives"] = stats.num_collectives;
  result["num_empty_steps"] = stats.num_empty_steps;
  result["num_ops"] = stats.num_ops;
  result["pending_ops"] = stats.pending_ops;
  result["num_recompilations"] = stats.num_recompilations;
  return result;
}

/// What ended each, its operations, and its difference from the last one of its kind.
py::list compilations_list(int64_t index) {
  py::list result;
  for (const Compilation& compilation : compilations(index)) {
    result.append(py::make_tuple(compilation.ended_by, compilation.num_ops, compilation.cause));
  }
  return result;
}

py::dict collectives_dict() {
  py::dict result;
  for (const auto& [kind, stats] : collectives()) {
    py::dict entry;
    entry["calls"] = stats.num_calls;
    entry["bytes"] = stats.num_bytes;
    entry["sent"] = stats.num_sent_bytes;
    result[py::str(kind)] = entry;
  }
  return result;
}

/// Waits for the card with the interpreter lock, as the vendor does, whose bindings do not release
/// it there, nor in `_mark_step`: no thread of Python runs until all ranks have come to the
/// collectives. Source: bridge 1.19 and 1.24.0, hpu/csrc/bindings.cpp ("synchronize_device"); 1.19,
/// core/bindings.cpp ("_mark_step").
void synchronize() {
  host_sync("synchronize");
  wait_for_collectives();
}

// Held for ever, as the observer.
void before_first_use(const py::function& function) {
  const auto* held = new py::function(function);
  call_before_first_touch([held] {
    py::gil_scoped_acquire gil;
    (*held)();
  });
}

void init_device(py::module_& m) {
  m.def("before_first_use", &before_first_use);
  m.def("set_device_count", &set_server_device_count);
  m.def("device_count", &server_device_count);
  m.def("set_server", &set_server);
  m.def("current_device", [] { return static_cast<int>(kDeviceIndex); });
  m.def("set_device", &check_device_index);
  m.def("set_dry", &set_dry);
  m.def("is_dry", &is_dry);
  m.def("holds_card", [] { return g_process_state.load() == ProcessState::kInUse; });
  m.def("synchronize", &synchronize);
  m.def("default_generator", &default_generator);
}

/// The number of the allocation that a tensor's memory is; 0 where it has none of the card's.
int64_t allocation_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_hpu() || !tensor.has_storage()) return 0;
  const Block* block = block_of(tensor.storage().unsafeGetStorageImpl());
  return block == nullptr ? 0 : block->number;
}

void init_memory(py::module_& m) {
  m.def("set_memory_limit", &set_memory_limit);
  m.def("compose_attention", &compose_attention);
  m.def("set_workspace_bytes", &set_workspace_bytes);
  m.def("set_memory_terms", [](int64_t alignment, int64_t header_bytes, int64_t small_bytes,
                               int64_t num_small, int64_t at_start_bytes) {
    set_memory_terms({alignment, header_bytes, small_bytes, num_small, at_start_bytes});
  });
  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory_stats", &reset_peak_memory_stats);
  m.def("log_memory", &log_memory);
  m.def("memory_log_size", &memory_log_size);
  m.def("most_logged", &most_logged);
  m.def("logged_peak", &logged_peak);
  m.def("allocation_of", &allocation_of);
  m.def("reset_accumulated_memory_stats", &reset_accumulated_memory_stats);
}

// Held for ever: the interpreter may be gone before the last operator is.
void observe_by(const py::function& function) {
  const auto* held = new py::function(function);
  set_observer([held](const char* kind, const std::string& what, int64_t amount,
                      const std::string& detail) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    try {
      (*held)(kind, what, amount, detail);
    } catch (py::error_already_set& error) {
      // Nothing that is observed fails because of it; Ctrl-C is for what comes next.
      if (error.matches(PyExc_KeyboardInterrupt)) {
        PyErr_SetInterrupt();
      } else {
        error.discard_as_unraisable("the observer of the simulated HPU");
      }
    }
  });
}

void init_counters(py::module_& m) {
  m.def("host_syncs", &host_syncs);
  m.def("transfers", &transfers);
  m.def("collectives", &collectives_dict);
  m.def("launches", &launches);
  m.def("begin_launch", &begin_launch);
  m.def("end_launch", &end_launch);
  m.def("reset_counters", &reset_counters);
  m.def("observe_by", &observe_by);
  m.def("fallback_stats", &fallbacks);
}

/// "aten::nonzero" and all others that the host waits for: always, or for some arguments.
std::vector<std::string> waiting_operators() {
  std::vector<std::string> names;
  for_each_aten_op([&](const c10::OperatorHandle& op, const std::string&) {
    for (const Rule& rule : op_info(op).rules.rules) {
      if (rule.verdict == Verdict::kDynamic || rule.verdict == Verdict::kWaits) {
        names.push_back(op_info(op).name);
        return;
      }
    }
  });
  return names;
}

// Held for ever, as the observer.
void report_rules_to(const py::function& function) {
  const auto* held = new py::function(function);
  set_rule_report([held](int64_t id, const std::string& op, const std::string& detail) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    (*held)(id, op, detail);
  });
}

void init_rules(py::module_& m) {
  m.def("add_rule", [](const std::string& op, int64_t id, int verdict,
                       const std::vector<at::ScalarType>& types, bool in_lazy_mode,
                       bool in_eager_mode, const std::string& condition) {
    Rule rule{id,           static_cast<Verdict>(verdict), 0, in_lazy_mode, in_eager_mode,
              condition_named(condition)};
    for (at::ScalarType type : types) rule.types |= type_bit(type);
    if (types.empty()) rule.types = ~TypeSet{0};
    add_rule(op, rule);
  });
  m.def("waiting_operators", &waiting_operators);
  m.def("clear_rules", &clear_rules);
  m.def("pause_rules", [] { ++t_rules_paused; });
  m.def("resume_rules", [] { --t_rules_paused; });
  m.def("report_rules_to", &report_rules_to);
  m.def("set_rules_reported", &set_rules_reported);
}

void init_graph(py::module_& m) {
  m.def("set_lazy", &set_lazy);
  m.def("is_lazy", &is_lazy);
  m.def("set_lazy_collectives", &set_lazy_collectives);
  m.def("has_lazy_collectives", &has_lazy_collectives);
  m.def("mark_step", &mark_step);
  m.def("end_graph_at_capture", &end_graph_at_capture);
  m.def("begin_replay", &begin_replay);
  m.def("end_replay", &end_replay);
  m.def("graph_stats", &graph_stats_dict);
  m.def("compilations", &compilations_list, py::arg("index") = 0);
  m.def("reset_graph_cache", &reset_graph_cache);
}

}  // namespace
}  // namespace hpu_sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &hpu_sim::install);
  m.def("install_hooks", &hpu_sim::install_hooks);
  m.def("hide_accelerators", &hpu_sim::hide_accelerators);
  m.def("take_sigint", &hpu_sim::take_sigint);
  m.def("drain_autograd", &hpu_sim::drain_autograd, py::call_guard<py::gil_scoped_release>());
  hpu_sim::init_device(m);
  hpu_sim::init_memory(m);
  hpu_sim::init_counters(m);
  hpu_sim::init_graph(m);
  hpu_sim::init_rules(m);
  hpu_sim::bind_collectives(m);
  hpu_sim::bind_programs(m);
}
