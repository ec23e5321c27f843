// The process group: every collective runs in gloo, in place, on CPU aliases of the hpu tensors.
// What gloo lacks is made from what it has: the average, reduce-scatter, all-to-all of lists.
#include "hccl.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "alias.h"
#include "counters.h"
#include "hccl_work.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using c10d::OpType;

/// Counts one collective and the bytes of `tensors`: what this rank gives to it, or gets by recv.
void count(const char* kind, const Tensors& tensors) {
  int64_t num_bytes = 0;
  for (const auto& tensor : tensors) num_bytes += static_cast<int64_t>(tensor.nbytes());
  count_collective(kind, num_bytes);
}

Tensors aliases(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(cpu_alias(tensor));
  return result;
}

TensorLists aliases(const TensorLists& lists) {
  TensorLists result;
  result.reserve(lists.size());
  for (const auto& list : lists) result.push_back(aliases(list));
  return result;
}

Tensors first(const TensorLists& lists) { return lists.empty() ? Tensors{} : lists[0]; }

/// All tensors end to end in one of one dimension.
Tensor flatten(const Tensors& tensors) {
  Tensors flat;
  flat.reserve(tensors.size());
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

void copy_flat(Tensor output, const Tensor& flat) { output.copy_(flat.view(output.sizes())); }

void divide(Tensor tensor, int64_t divisor) {
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    tensor.floor_divide_(divisor);
  } else {
    tensor.div_(divisor);
  }
}

class ProcessGroupHCCL final : public c10d::Backend {
 public:
  ProcessGroupHCCL(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "hccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  // No `override`: torch 2.6 has none to override.
  bool supportsCoalescing() const { return true; }
  void startCoalescing() override {
    is_coalescing_ = true;
    coalesced_.clear();
  }
  WorkPtr endCoalescing() override {
    is_coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    count("broadcast", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::BROADCAST, gloo_->broadcast(cpu, options), tensors);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& asked) override {
    count("all_reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto average = replace_average(options.reduceOp, cpu);
    return submit(OpType::ALLREDUCE, gloo_->allreduce(cpu, options), tensors, average);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& asked) override {
    count("all_reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto average = replace_average(options.reduceOp, cpu);
    return submit(OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(cpu, options), tensors,
                  average);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& asked) override {
    count("reduce", tensors);
    auto cpu = aliases(tensors);
    auto options = asked;
    auto average = replace_average(options.reduceOp, cpu);
    if (options.rootRank != rank_) average = nullptr;
    return submit(OpType::REDUCE, gloo_->reduce(cpu, options), tensors, average);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    count("all_gather", inputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::ALLGATHER, gloo_->allgather(cpu_outputs, cpu_inputs, options),
                  first(outputs));
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    count("all_gather", {input});
    auto cpu_output = cpu_alias(output);
    auto cpu_input = cpu_alias(input);
    return submit(OpType::_ALLGATHER_BASE, gloo_->_allgather_base(cpu_output, cpu_input, options),
                  {output});
  }

  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    count("all_gather", inputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    Tensors all;
    for (const auto& list : outputs) all.insert(all.end(), list.begin(), list.end());
    return submit(OpType::ALLGATHER_COALESCED,
                  gloo_->allgather_coalesced(cpu_outputs, cpu_inputs, options), all);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    count("all_gather", inputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::COALESCED,
                  gloo_->allgather_into_tensor_coalesced(cpu_outputs, cpu_inputs, options),
                  outputs);
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    count("gather", inputs);
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::GATHER, gloo_->gather(cpu_outputs, cpu_inputs, options), first(outputs));
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    count("scatter", first(inputs));
    auto cpu_outputs = aliases(outputs);
    auto cpu_inputs = aliases(inputs);
    return submit(OpType::SCATTER, gloo_->scatter(cpu_outputs, cpu_inputs, options), outputs);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    auto chunks = aliases(inputs.at(0));
    int64_t offset = 0;
    for (int rank = 0; rank < rank_; ++rank) offset += chunks.at(rank).numel();
    return reduce_scatter_flat(OpType::REDUCE_SCATTER, outputs.at(0), flatten(chunks), offset,
                               options);
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    auto flat = cpu_alias(input).reshape({-1}).clone();
    return reduce_scatter_flat(OpType::_REDUCE_SCATTER_BASE, output, flat,
                               rank_ * output.numel(), options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < outputs.size(); ++i) {
      works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
    }
    return c10::make_intrusive<CoalescedWork>(std::move(works));
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    count("all_to_all", {input});
    auto cpu_output = cpu_alias(output);
    auto cpu_input = cpu_alias(input);
    return submit(
        OpType::ALLTOALL_BASE,
        gloo_->alltoall_base(cpu_output, cpu_input, output_splits, input_splits, options),
        {output});
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    count("all_to_all", inputs);
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
    count("send", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::SEND, gloo_->send(cpu, destination, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    count("recv", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::RECV, gloo_->recv(cpu, source, tag), tensors);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    count("recv", tensors);
    auto cpu = aliases(tensors);
    return submit(OpType::RECVANYSOURCE, gloo_->recvAnysource(cpu, tag), tensors);
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    count("barrier", {});
    return submit(OpType::BARRIER, gloo_->barrier(options), {});
  }

 private:
  WorkPtr submit(OpType type, WorkPtr inner, Tensors outputs,
                 std::function<void()> finish = nullptr) {
    auto work = HcclWork::make(type, std::move(inner), std::move(outputs), std::move(finish));
    if (is_coalescing_) coalesced_.push_back(work);
    return work;
  }

  /// gloo cannot average: it is asked for the sum, and the result divides it.
  std::function<void()> replace_average(c10d::ReduceOp& op, const Tensors& reduced) {
    if (op.op_ != c10d::ReduceOp::AVG) return nullptr;
    op = c10d::ReduceOp(c10d::ReduceOp::SUM);
    return [reduced, size = size_] {
      for (const auto& tensor : reduced) divide(tensor, size);
    };
  }

  /// Reduces `flat`, which is overwritten, over all ranks; `output` gets what begins at `offset`.
  WorkPtr reduce_scatter_flat(OpType type, const Tensor& output, const Tensor& flat,
                              int64_t offset, const c10d::ReduceScatterOptions& asked) {
    count("reduce_scatter", {flat});
    c10d::AllreduceOptions options;
    options.reduceOp = asked.reduceOp;
    options.timeout = asked.timeout;
    auto chunk = flat.narrow(0, offset, output.numel());
    auto average = replace_average(options.reduceOp, {chunk});
    Tensors buffer{flat};
    return submit(type, gloo_->allreduce(buffer, options), {output},
                  [average, chunk, cpu_output = cpu_alias(output)] {
                    if (average) average();
                    copy_flat(cpu_output, chunk);
                  });
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  bool is_coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace

void bind_collectives(py::module_& module) {
  py::module_::import("torch.distributed");  // binds the base class
  py::class_<ProcessGroupHCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupHCCL>>(
      module, "ProcessGroupHCCL")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, int, int>(),
           py::call_guard<py::gil_scoped_release>(), py::arg("gloo"), py::arg("rank"),
           py::arg("size"));
}

}  // namespace hpu_sim
