// The process group: every collective runs in gloo, on the memory of the hpu tensors where it can.
// What gloo lacks is made from what it has: reduce-scatter, all-to-all of lists, the average.
// What HCCL lacks is refused, though gloo has it.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "distributed/hccl.h"
#include "distributed/host_barrier.h"
#include "distributed/lone_rank.h"
#include "distributed/pending.h"
#include "distributed/reduce.h"
#include "distributed/staging.h"
#include "distributed/types.h"
#include "distributed/work.h"
#include "rules/rules.h"
#include "runtime/dry.h"
#include "statistics/counters.h"
#include "statistics/graph.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using c10d::OpType;
using Purpose = Staging::Purpose;

Tensors concatenated(Tensors tensors, const Tensors& others) {
  tensors.insert(tensors.end(), others.begin(), others.end());
  return tensors;
}

/// How many bytes a rank of `num_ranks` sends over its links for one that is counted, in a ring or
/// directly. Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md ("bus bandwidth").
double sent_of_counted(const std::string& kind, int num_ranks) {
  const double n = num_ranks;
  if (num_ranks < 2 || kind == "recv") return 0;
  if (kind == "all_reduce") return 2 * (n - 1) / n;
  if (kind == "all_gather") return n - 1;  // of its own part, which is counted
  if (kind == "reduce_scatter" || kind == "all_to_all" || kind == "scatter") return (n - 1) / n;
  return 1;
}

// Not every torch has these; gloo's do nothing where it has none of its own.
template <class Backend>
auto set_backend_timeout(Backend& backend, std::chrono::milliseconds timeout, int)
    -> decltype(backend.setTimeout(timeout)) {
  backend.setTimeout(timeout);
}
template <class Backend>
void set_backend_timeout(Backend&, std::chrono::milliseconds, long) {}

constexpr auto kForEver = std::chrono::hours(24 * 365);

class ProcessGroupHCCL final : public c10d::Backend {
 public:
  /// With `store`, in which no other group has keys, ranks meet at barriers and at the end.
  ProcessGroupHCCL(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store,
                   int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)), host_barrier_(std::move(store), rank, size) {
    set_backend_timeout(*gloo_, kForEver, 0);  // once all are connected
  }
  ~ProcessGroupHCCL() override {
    std::optional<py::gil_scoped_release> no_gil;
    if (PyGILState_Check()) no_gil.emplace();
    destroy();
  }

  /// Waits for all ranks, once: on each this must be called, or the group be freed.
  void destroy() {
    if (std::exchange(is_destroyed_, true) || is_dry()) return;
    host_barrier_.meet();
    host_barrier_.part();
  }

  const std::string getBackendName() const override { return "hccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  // No `override`: not every torch has these to override.
  // HCCL can abort nothing and knows no timeout, so the first and the last do nothing.
  void abort() {}
  void shutdown() {}
  void setTimeout(std::chrono::milliseconds) {}
  bool supportsCoalescing() const { return true; }

  void startCoalescing() override {
    TORCH_CHECK(!is_coalescing_, "Collectives of this HCCL group are being coalesced already. End ",
                "one coalescing manager before the next begins.");
    is_coalescing_ = true;
    coalesced_.clear();
  }
  WorkPtr endCoalescing() override {
    TORCH_CHECK(is_coalescing_, "No collectives of this HCCL group are being coalesced. Begin a ",
                "coalescing manager before one ends.");
    is_coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
  }
  /// Forgets what is being coalesced, if anything is: its coalescing manager has failed.
  void abandon_coalescing() {
    is_coalescing_ = false;
    coalesced_.clear();
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check_types("broadcast", tensors);
    Staging staging(Purpose::kMove);
    auto cpu = staging.updated(tensors);
    begin("broadcast", tensors);
    end_lazy_collectives("broadcast");
    return submit(OpType::BROADCAST, gloo_->broadcast(cpu, options), tensors, staging);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& asked) override {
    check_types("all_reduce", tensors, {asked.reduceOp.op_});
    Staging staging(Purpose::kReduce);
    auto cpu = staging.updated(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    begin("all_reduce", tensors);
    return submit(OpType::ALLREDUCE, gloo_->allreduce(cpu, options), tensors, staging, finish);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& asked) override {
    check_types("all_reduce", tensors, {asked.reduceOp.op_});
    Staging staging(Purpose::kReduce);
    auto cpu = staging.updated(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    begin("all_reduce", tensors);
    return submit(OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(cpu, options), tensors,
                  staging, finish);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& asked) override {
    check_types("reduce", tensors, {asked.reduceOp.op_});
    const bool is_root = asked.rootRank == rank_;
    Staging staging(Purpose::kReduce);
    auto cpu = is_root ? staging.updated(tensors) : staging.read(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    if (!is_root) finish = nullptr;
    begin("reduce", tensors);
    return submit(OpType::REDUCE, gloo_->reduce(cpu, options), tensors, staging, finish);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    check_types("all_gather", concatenated(inputs, first(outputs)));
    Staging staging(Purpose::kMove);
    auto cpu_outputs = staging.written(outputs);
    auto cpu_inputs = staging.read(inputs);
    begin("all_gather", inputs, first(outputs));
    return submit(OpType::ALLGATHER, gloo_->allgather(cpu_outputs, cpu_inputs, options),
                  first(outputs), staging);
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    check_types("all_gather_into_tensor", {input, output});
    Staging staging(Purpose::kMove);
    // gloo would mind if ranks had a dimension of their own.
    auto cpu_output = staging.written(output).view({-1});
    auto cpu_input = gathered_input(staging.read(input).view({-1}), cpu_output);
    begin("all_gather", {input}, {output});
    return submit(OpType::_ALLGATHER_BASE, gloo_->_allgather_base(cpu_output, cpu_input, options),
                  {output}, staging);
  }

  WorkPtr allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override {
    check_collective("all_gather_coalesced", {});
    TORCH_CHECK(false, "HCCL has no all_gather_coalesced. Call all_gather for each tensor.");
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    for (size_t i = 0; i < outputs.size(); ++i) check_types("all_gather_into_tensor", {inputs[i], outputs[i]});
    Staging staging(Purpose::kMove);
    auto cpu_outputs = staging.written(outputs);
    auto cpu_inputs = staging.read(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      cpu_inputs[i] = gathered_input(cpu_inputs[i], cpu_outputs[i]);
    }
    begin("all_gather", inputs, outputs);
    return submit(OpType::COALESCED,
                  gloo_->allgather_into_tensor_coalesced(cpu_outputs, cpu_inputs, options),
                  outputs, staging);
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    check_types("gather", concatenated(inputs, first(outputs)));
    Staging staging(Purpose::kMove);
    auto cpu_outputs = staging.written(outputs);
    auto cpu_inputs = staging.read(inputs);
    begin("gather", inputs, first(outputs));
    return submit(OpType::GATHER, gloo_->gather(cpu_outputs, cpu_inputs, options), first(outputs),
                  staging);
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    check_types("scatter", concatenated(outputs, first(inputs)));
    Staging staging(Purpose::kMove);
    auto cpu_outputs = staging.written(outputs);
    auto cpu_inputs = staging.read(inputs);
    for (auto& list : cpu_inputs) {
      for (auto& input : list) input = apart_from(input, cpu_outputs);
    }
    begin("scatter", first(inputs), outputs);
    return submit(OpType::SCATTER, gloo_->scatter(cpu_outputs, cpu_inputs, options), outputs,
                  staging);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const Tensors& chunks = inputs.at(0);
    check_types("reduce_scatter", concatenated(outputs, chunks), {options.reduceOp.op_});
    check_same_sizes("reduce_scatter", concatenated(outputs, chunks));
    check_divisible("reduce_scatter", options.reduceOp, outputs[0]);
    Staging staging(Purpose::kReduce);
    auto flat = flattened(staging.read(chunks));
    auto output = staging.written(outputs.at(0));
    begin("reduce_scatter", chunks, outputs);
    return reduce_scatter_flat(OpType::REDUCE_SCATTER, outputs[0], output, flat, staging, options);
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check_reduce_scatter("reduce_scatter_tensor", output, input, options);
    begin("reduce_scatter", {input}, {output});
    return reduce_scatter_tensor(output, input, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    for (size_t i = 0; i < outputs.size(); ++i) {
      check_reduce_scatter("reduce_scatter_tensor_coalesced", outputs[i], inputs.at(i), options);
    }
    begin("reduce_scatter", inputs, outputs);
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < outputs.size(); ++i) {
      works.push_back(reduce_scatter_tensor(outputs[i], inputs[i], options));
    }
    return c10::make_intrusive<CoalescedWork>(std::move(works));
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    const bool has_splits = !output_splits.empty() || !input_splits.empty();
    check_types("all_to_all_single", {input}, {std::nullopt, has_splits});
    check_same_types("all_to_all_single", {input, output});
    Staging staging(Purpose::kMove);
    auto cpu_output = staging.written(output);
    auto cpu_input = apart_from(staging.read(input), {cpu_output});
    begin("all_to_all", {input}, {output});
    return submit(
        OpType::ALLTOALL_BASE,
        gloo_->alltoall_base(cpu_output, cpu_input, output_splits, input_splits, options),
        {output}, staging);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    const Tensors all = concatenated(inputs, outputs);
    check_types("all_to_all", inputs);
    check_same_sizes("all_to_all", all);
    Staging staging(Purpose::kMove);
    auto cpu_outputs = staging.written(outputs);
    auto flat_input = flattened(staging.read(inputs));
    auto flat_output = at::empty_like(flat_input);
    begin("all_to_all", inputs, outputs);
    std::vector<int64_t> even;
    auto work = gloo_->alltoall_base(flat_output, flat_input, even, even, options);
    return submit(OpType::ALLTOALL, work, outputs, staging, [cpu_outputs, flat_output] {
      int64_t offset = 0;
      for (const auto& output : cpu_outputs) {
        output.view({-1}).copy_(flat_output.narrow(0, offset, output.numel()));
        offset += output.numel();
      }
    });
  }

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    check_types("send", tensors);
    Staging staging(Purpose::kMove);
    auto cpu = staging.read(tensors);
    begin("send", tensors);
    return submit_unless_lost(OpType::SEND, tensors, staging,
                              [&] { return gloo_->send(cpu, destination, tag); });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    check_types("recv", tensors);
    Staging staging(Purpose::kMove);
    auto cpu = staging.written(tensors);
    begin("recv", tensors);
    return submit_unless_lost(OpType::RECV, tensors, staging,
                              [&] { return gloo_->recv(cpu, source, tag); });
  }
  WorkPtr recvAnysource(Tensors&, int) override {
    check_collective("recv_any_source", {});
    TORCH_CHECK(false, "HCCL cannot receive from any rank. Say which: recv(tensor, src=...).");
  }

  // Ranks meet at the host, so that a lazy graph may go on.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    count_collective("barrier", 0, 0);
    count_host_sync("barrier");
    end_lazy_collectives("barrier");
    if (is_dry()) return submit(OpType::BARRIER, gloo_->barrier(options), {}, Staging(Purpose::kMove));
    host_barrier_.meet();
    return c10::make_intrusive<CoalescedWork>(std::vector<WorkPtr>{});
  }

 private:
  /// Counts a collective and the bytes of `counted`: what this rank gives to it, or gets by recv.
  /// The lazy graph hears of it, and of the `others` that it writes.
  void begin(const char* kind, const Tensors& counted, const Tensors& others = {}) const {
    int64_t num_bytes = 0;
    for (const auto& tensor : counted) num_bytes += static_cast<int64_t>(tensor.nbytes());
    count_collective(kind, num_bytes,
                     std::llround(static_cast<double>(num_bytes) * sent_of_counted(kind, size_)));
    record_collective(kind, concatenated(counted, others));
  }

  WorkPtr submit(OpType type, WorkPtr inner, Tensors outputs, Staging staging,
                 std::function<void()> finish = nullptr) {
    finish = staging.after(std::move(finish));
    if (is_dry()) finish = nullptr;  // there are no values to average or to copy back
    WorkPtr work;
    if (c10d::isP2POp(type)) {
      work = c10::make_intrusive<PointToPointWork>(type, inner, staging.held(), std::move(outputs),
                                                   finish);
    } else {
      work = CollectiveWork::make(type, inner, staging.held(), std::move(outputs), finish);
    }
    if (is_coalescing_) coalesced_.push_back(work);
    return work;
  }

  /// gloo refuses to send to a rank, or to receive from one, whose connection is closed.
  template <class Start>
  WorkPtr submit_unless_lost(OpType type, Tensors outputs, Staging staging, Start&& start) {
    try {
      return submit(type, start(), std::move(outputs), std::move(staging));
    } catch (...) {
      if (!is_lost(std::current_exception())) throw;
      return c10::make_intrusive<LostWork>(type, outputs);
    }
  }

  /// What this rank gives to be gathered in `output`: gloo copies it to its place there first.
  Tensor gathered_input(const Tensor& input, const Tensor& output) const {
    const auto* place = static_cast<const char*>(output.const_data_ptr()) + rank_ * input.nbytes();
    return input.const_data_ptr() == place ? input : apart_from(input, {output});
  }

  void check_reduce_scatter(const char* collective, const Tensor& output, const Tensor& input,
                            const c10d::ReduceScatterOptions& options) const {
    check_types(collective, {input, output}, {options.reduceOp.op_});
    TORCH_CHECK(input.numel() == output.numel() * size_, "HCCL's reduce_scatter_tensor gives each ",
                "of ", size_, " ranks an equal part of its input, but the input has ",
                input.numel(), " elements and the output ", output.numel(), ". Pad the input.");
    check_divisible("reduce_scatter_tensor", options.reduceOp, output);
    check_writable(output);
  }

  WorkPtr reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                const c10d::ReduceScatterOptions& options) {
    Staging staging(Purpose::kReduce);
    auto flat = flattened({staging.read(input)});
    auto cpu_output = staging.written(output);
    return reduce_scatter_flat(OpType::_REDUCE_SCATTER_BASE, output, cpu_output, flat, staging,
                               options);
  }

  /// Reduces `flat`, which is overwritten, over all ranks; `cpu_output` gets this rank's part.
  WorkPtr reduce_scatter_flat(OpType type, const Tensor& output, const Tensor& cpu_output,
                              const Tensor& flat, Staging& staging,
                              const c10d::ReduceScatterOptions& asked) {
    c10d::AllreduceOptions options;
    options.reduceOp = asked.reduceOp;
    options.timeout = asked.timeout;
    auto chunk = flat.narrow(0, rank_ * output.numel(), output.numel());
    auto finish = translate_reduction(options.reduceOp, {chunk}, size_);
    Tensors buffer{flat};
    return submit(type, gloo_->allreduce(buffer, options), {output}, staging,
                  [finish, chunk, cpu_output] {
                    if (finish) finish();
                    cpu_output.view({-1}).copy_(chunk);
                  });
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  HostBarrier host_barrier_;
  bool is_destroyed_ = false;
  bool is_coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

/// All groups that may still be there, the oldest first. Never destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<ProcessGroupHCCL>> groups;
};
Registry& registry() {
  static auto& instance = *new Registry();
  return instance;
}

c10::intrusive_ptr<ProcessGroupHCCL> create_group(c10::intrusive_ptr<c10d::Backend> gloo,
                                                  c10::intrusive_ptr<c10d::Store> store, int rank,
                                                  int size) {
  auto group = c10::make_intrusive<ProcessGroupHCCL>(std::move(gloo), std::move(store), rank, size);
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().groups.emplace_back(group);
  return group;
}

/// Destroys the groups that somebody still holds, the newest first, on each rank alike.
void destroy_groups() {
  std::vector<c10::weak_intrusive_ptr<ProcessGroupHCCL>> groups;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    groups = std::exchange(registry().groups, {});
  }
  for (auto found = groups.rbegin(); found != groups.rend(); ++found) {
    if (auto group = found->lock()) group->destroy();
  }
}

}  // namespace

void bind_collectives(py::module_& module) {
  // As the vendor's does, it holds the interpreter lock while it waits.
  module.def("destroy_process_groups", &destroy_groups);
  module.def("keep_pending_collectives", &keep_pending, py::call_guard<py::gil_scoped_release>());
  py::module_::import("torch.distributed");  // binds the base class
  bind_lone_ranks(module);
  py::class_<ProcessGroupHCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupHCCL>>(
      module, "ProcessGroupHCCL")
      .def(py::init(&create_group), py::call_guard<py::gil_scoped_release>(), py::arg("gloo"),
           py::arg("store"), py::arg("rank"), py::arg("size"))
      .def("abandon_coalescing", &ProcessGroupHCCL::abandon_coalescing,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace hpu_sim
