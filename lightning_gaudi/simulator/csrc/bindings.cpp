// The Python module `_hpu_sim`.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/autocast.h"
#include "aten/fallback.h"
#include "distributed/hccl.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/exit.h"
#include "runtime/generator.h"
#include "runtime/hooks.h"
#include "statistics/counters.h"
#include "statistics/graph.h"

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
  result["log"] = stats.log;
  return result;
}

py::dict collectives_dict() {
  py::dict result;
  for (const auto& [kind, stats] : collectives()) {
    py::dict entry;
    entry["calls"] = stats.num_calls;
    entry["bytes"] = stats.num_bytes;
    result[py::str(kind)] = entry;
  }
  return result;
}

void init_device(py::module_& m) {
  m.def("set_device_count", &set_server_device_count);
  m.def("device_count", &server_device_count);
  m.def("set_release", &set_software_release);
  m.def("current_device", [] { return static_cast<int>(kDeviceIndex); });
  m.def("set_device", &check_device_index);
  m.def("synchronize", [] { host_sync("synchronize"); });
  m.def("default_generator", &default_generator);
}

void init_memory(py::module_& m) {
  m.def("set_memory_limit", &set_memory_limit);
  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory_stats", &reset_peak_memory_stats);
  m.def("reset_accumulated_memory_stats", &reset_accumulated_memory_stats);
}

void init_counters(py::module_& m) {
  m.def("host_syncs", &host_syncs);
  m.def("transfers", &transfers);
  m.def("collectives", &collectives_dict);
  m.def("reset_counters", &reset_counters);
  // Operators that the card would send to the CPU. Which ones it would is not known here.
  m.def("fallback_stats", [] { return std::map<std::string, int64_t>(); });
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
  m.def("reset_graph_cache", &reset_graph_cache);
}

}  // namespace
}  // namespace hpu_sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &hpu_sim::install);
  m.def("install_hooks", &hpu_sim::install_hooks);
  m.def("hide_accelerators", &hpu_sim::hide_accelerators);
  m.def("drain_autograd", &hpu_sim::drain_autograd, py::call_guard<py::gil_scoped_release>());
  hpu_sim::init_device(m);
  hpu_sim::init_memory(m);
  hpu_sim::init_counters(m);
  hpu_sim::init_graph(m);
  hpu_sim::bind_collectives(m);
}
