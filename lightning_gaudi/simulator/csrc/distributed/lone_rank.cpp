// What the others would send is taken to be what this rank sends; a sum is left as it is. Nobody
// waits. Of tensors that are on a dry card only a few bytes are copied, see runtime/dry.h.
#include "distributed/lone_rank.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/work.h"
#include "runtime/dry.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using c10d::OpType;

/// The work of a collective that has ended.
class EndedWork final : public c10d::Work {
 public:
  EndedWork(OpType type, Tensors outputs) : Work(-1, type), outputs_(std::move(outputs)) {
    future_ = future_of(outputs_);
    future_->markCompleted(c10::IValue(outputs_));
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  Tensors result() override { return outputs_; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  FuturePtr getFuture() override { return future_; }

 private:
  const Tensors outputs_;
  FuturePtr future_;
};

WorkPtr ended(OpType type, Tensors outputs) {
  return c10::make_intrusive<EndedWork>(type, std::move(outputs));
}

// Aliases of a dry card's tensors look like any on the CPU: size alone says whether to copy.
void copy_if_small(const Tensor& target, const Tensor& source) {
  if (std::max(target.nbytes(), source.nbytes()) > kComputedBytes) return;
  target.view({-1}).copy_(source.reshape({-1}).slice(0, 0, target.numel()));
}

class LoneRank final : public c10d::Backend {
 public:
  using Backend::Backend;

  const std::string getBackendName() const override { return "gloo"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }
  void setTimeout(std::chrono::milliseconds) {}  // not every torch has it to override

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return ended(OpType::BROADCAST, tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return ended(OpType::ALLREDUCE, tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions&) override {
    return ended(OpType::ALLREDUCE_COALESCED, tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions&) override {
    return ended(OpType::REDUCE, tensors);
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    return gather_in(OpType::ALLGATHER, outputs, inputs);
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions&) override {
    return gather_in_one(OpType::_ALLGATHER_BASE, {output}, {input});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) override {
    return gather_in_one(OpType::COALESCED, outputs, inputs);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions&) override {
    return gather_in(OpType::GATHER, outputs, inputs);
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions&) override {
    if (!inputs.empty()) copy_if_small(outputs.at(0), inputs[0].at(rank_));
    return ended(OpType::SCATTER, outputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions&) override {
    copy_if_small(outputs.at(0), inputs.at(0).at(rank_));
    return ended(OpType::REDUCE_SCATTER, outputs);
  }
  WorkPtr alltoall_base(Tensor& output, Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    return ended(OpType::ALLTOALL_BASE, {output});
  }
  WorkPtr send(Tensors& tensors, int, int) override { return ended(OpType::SEND, tensors); }
  WorkPtr recv(Tensors& tensors, int, int) override { return ended(OpType::RECV, tensors); }
  WorkPtr recvAnysource(Tensors& tensors, int) override {
    return ended(OpType::RECVANYSOURCE, tensors);
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return ended(OpType::BARRIER, {}); }
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override {}

 private:
  WorkPtr gather_in(OpType type, const TensorLists& outputs, const Tensors& inputs) {
    for (const Tensors& list : outputs) {
      for (const Tensor& output : list) copy_if_small(output, inputs.at(0));
    }
    return ended(type, outputs.empty() ? Tensors{} : outputs[0]);
  }

  WorkPtr gather_in_one(OpType type, const Tensors& outputs, const Tensors& inputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      // A large one has no values, however small its parts are: of many ranks each is.
      if (outputs[i].nbytes() > kComputedBytes) continue;
      const Tensor flat = outputs[i].view({-1});
      const int64_t part = flat.numel() / size_;
      for (int64_t rank = 0; rank < size_; ++rank) {
        copy_if_small(flat.narrow(0, rank * part, part), inputs.at(i));
      }
    }
    return ended(type, outputs);
  }
};

}  // namespace

void bind_lone_ranks(py::module_& module) {
  py::class_<LoneRank, c10d::Backend, c10::intrusive_ptr<LoneRank>>(module, "LoneRank")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
}

}  // namespace hpu_sim
