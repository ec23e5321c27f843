// The process group: every collective runs in gloo, in place, on CPU aliases of the hpu tensors.
// What gloo lacks is made from what it has: reduce-scatter, all-to-all of lists, the average.
// What HCCL lacks is refused, though gloo has it.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "aten/alias.h"
#include "distributed/hccl.h"
#include "distributed/pending.h"
#include "distributed/reduce.h"
#include "distributed/tensors.h"
#include "distributed/work.h"
#include "statistics/counters.h"
#include "statistics/graph.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using c10d::OpType;

/// Counts a collective and the bytes of `counted`: what this rank gives to it, or gets by recv.
/// The lazy graph hears of it, and of the `others` that it writes.
void begin(const char* kind, const Tensors& counted, const Tensors& others = {}) {
  int64_t num_bytes = 0;
  for (const auto& tensor : counted) num_bytes += static_cast<int64_t>(tensor.nbytes());
  count_collective(kind, num_bytes);
  Tensors tensors = counted;
  tensors.insert(tensors.end(), others.begin(), others.end());
  record_collective(kind, tensors);
}

// Not every torch has these; gloo's do nothing where it has none of its own.
template <class Backend>
auto abort_backend(Backend& backend, int) -> decltype(backend.abort()) {
  backend.abort();
}
template <class Backend>
void abort_backend(Backend&, long) {}
template <class Backend>
auto shut_down_backend(Backend& backend, int) -> decltype(backend.shutdown()) {
  backend.shutdown();
}
template <class Backend>
void shut_down_backend(Backend&, long) {}
template <class Backend>
auto set_backend_timeout(Backend& backend, std::chrono::milliseconds timeout, int)
    -> decltype(backend.setTimeout(timeout)) {
  backend.setTimeout(timeout);
}
template <class Backend>
void set_backend_timeout(Backend&, std::chrono::milliseconds, long) {}

class ProcessGroupHCCL final : public c10d::Backend {
 public:
  ProcessGroupHCCL(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "hccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  // No `override`: not every torch has these to override.
  void abort() { abort_backend(*gloo_, 0); }
  void shutdown() { shut_down_backend(*gloo_, 0); }
  void setTimeout(std::chrono::milliseconds timeout) { set_backend_timeout(*gloo_, timeout, 0); }
  bool supportsCoalescing() const { return true; }

  void startCoalescing() override {
    TORCH_CHECK(!is_coalescing_, "Collectives of this HCCL group are being coalesced already. End ",
                "one coalescing manager before the next begins.");
    is_coalescing_ = true;
    coalesced_.clear();
  }
  WorkPtr endCoalescing() override {
    is_coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    begin("broadcast", tensors);
    end_lazy_collectives("broadcast");
    auto cpu = aliases(tensors);
    return submit(OpType::BROADCAST, gloo_->broadcast(cpu, options), tensors);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& asked) override {
    begin("all_reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    return submit(OpType::ALLREDUCE, gloo_->allreduce(cpu, options), tensors, finish);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& asked) override {
    begin("all_reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    return submit(OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(cpu, options), tensors,
                  finish);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& asked) override {
    begin("reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto finish = translate_reduction(options.reduceOp, cpu, size_);
    if (options.rootRank != rank_) finish = nullptr;
    return submit(OpType::REDUCE, gloo_->reduce(cpu, options), tensors, finish);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    begin("all_gather", inputs, first(outputs));
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::ALLGATHER, gloo_->allgather(cpu_outputs, cpu_inputs, options),
                  first(outputs));
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    begin("all_gather", {input}, {output});
    // gloo would mind if ranks had a dimension of their own.
    auto cpu_output = cpu_alias(output).view({-1});
    auto cpu_input = cpu_alias(input).view({-1});
    return submit(OpType::_ALLGATHER_BASE, gloo_->_allgather_base(cpu_output, cpu_input, options),
                  {output});
  }

  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    const auto all = flat_list(outputs);
    begin("all_gather", inputs, all);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::ALLGATHER_COALESCED,
                  gloo_->allgather_coalesced(cpu_outputs, cpu_inputs, options), all);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    begin("all_gather", inputs, outputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::COALESCED,
                  gloo_->allgather_into_tensor_coalesced(cpu_outputs, cpu_inputs, options),
                  outputs);
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    begin("gather", inputs, first(outputs));
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::GATHER, gloo_->gather(cpu_outputs, cpu_inputs, options), first(outputs));
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    begin("scatter", first(inputs), outputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::SCATTER, gloo_->scatter(cpu_outputs, cpu_inputs, options), outputs);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    begin("reduce_scatter", inputs.at(0), outputs);
    auto chunks = aliases(inputs.at(0));
    int64_t offset = 0;
    for (int rank = 0; rank < rank_; ++rank) offset += chunks.at(rank).numel();
    return reduce_scatter_flat(OpType::REDUCE_SCATTER, outputs.at(0), flatten(chunks), offset,
                               options);
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    begin("reduce_scatter", {input}, {output});
    return reduce_scatter_tensor(output, input, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
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
    begin("all_to_all", {input}, {output});
    auto cpu_output = cpu_alias(output);
    auto cpu_input = cpu_alias(input);
    return submit(
        OpType::ALLTOALL_BASE,
        gloo_->alltoall_base(cpu_output, cpu_input, output_splits, input_splits, options),
        {output});
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    begin("all_to_all", inputs, outputs);
    auto cpu_outputs = aliases(outputs);
    auto flat_input = flatten(aliases(inputs));
    auto flat_output = flatten(cpu_outputs);
    std::vector<int64_t> output_splits, input_splits;
    for (const auto& tensor : outputs) output_splits.push_back(tensor.numel());
    for (const auto& tensor : inputs) input_splits.push_back(tensor.numel());
    auto work =
        gloo_->alltoall_base(flat_output, flat_input, output_splits, input_splits, options);
    return submit(OpType::ALLTOALL, work, outputs, [cpu_outputs, flat_output] {
      int64_t offset = 0;
      for (const auto& output : cpu_outputs) {
        copy_flat(output, flat_output.narrow(0, offset, output.numel()));
        offset += output.numel();
      }
    });
  }

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    begin("send", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::SEND, gloo_->send(cpu, destination, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    begin("recv", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::RECV, gloo_->recv(cpu, source, tag), tensors);
  }
  WorkPtr recvAnysource(Tensors&, int) override {
    TORCH_CHECK(false, "HCCL cannot receive from any rank. Say which: recv(tensor, src=...).");
  }

  // Ranks meet at the host, so that a lazy graph may go on.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    count_collective("barrier", 0);
    count_host_sync("barrier");
    end_lazy_collectives("barrier");
    return submit(OpType::BARRIER, gloo_->barrier(options), {});
  }

 private:
  WorkPtr submit(OpType type, WorkPtr inner, Tensors outputs,
                 std::function<void()> finish = nullptr) {
    auto work = HcclWork::make(type, std::move(inner), std::move(outputs), std::move(finish));
    if (is_coalescing_) coalesced_.push_back(work);
    return work;
  }

  WorkPtr reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                const c10d::ReduceScatterOptions& options) {
    auto flat = cpu_alias(input).reshape({-1}).clone();
    return reduce_scatter_flat(OpType::_REDUCE_SCATTER_BASE, output, flat,
                               rank_ * output.numel(), options);
  }

  /// Reduces `flat`, which is overwritten, over all ranks; `output` gets what begins at `offset`.
  WorkPtr reduce_scatter_flat(OpType type, const Tensor& output, const Tensor& flat,
                              int64_t offset, const c10d::ReduceScatterOptions& asked) {
    c10d::AllreduceOptions options;
    options.reduceOp = asked.reduceOp;
    options.timeout = asked.timeout;
    auto chunk = flat.narrow(0, offset, output.numel());
    auto finish = translate_reduction(options.reduceOp, {chunk}, size_);
    Tensors buffer{flat};
    return submit(type, gloo_->allreduce(buffer, options), {output},
                  [finish, chunk, cpu_output = cpu_alias(output)] {
                    if (finish) finish();
                    copy_flat(cpu_output, chunk);
                  });
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  bool is_coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace

void bind_collectives(py::module_& module) {
  module.def("keep_pending_collectives", &keep_pending, py::call_guard<py::gil_scoped_release>());
  py::module_::import("torch.distributed");  // binds the base class
  py::class_<ProcessGroupHCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupHCCL>>(
      module, "ProcessGroupHCCL")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, int, int>(),
           py::call_guard<py::gil_scoped_release>(), py::arg("gloo"), py::arg("rank"),
           py::arg("size"));
}

}  // namespace hpu_sim
