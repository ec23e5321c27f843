// What a collective returns: gloo's work on CPU aliases, seen as work on hpu tensors.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "distributed/pending.h"
#include "statistics/graph.h"

namespace hpu_sim {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class HcclWork final : public c10d::Work {
 public:
  /// Wraps gloo's `inner`. `finish`, if any, runs once when `inner` is done, on whichever thread
  /// sees it first, and before anyone is told so.
  static WorkPtr make(c10d::OpType type, WorkPtr inner, Tensors outputs,
                      std::function<void()> finish) {
    auto work = c10::make_intrusive<HcclWork>(type, std::move(inner), std::move(outputs),
                                              std::move(finish));
    // gloo's point-to-point works have no future to follow.
    if (!c10d::isP2POp(type) && type != c10d::OpType::RECVANYSOURCE) work->follow();
    return work;
  }

  HcclWork(c10d::OpType type, WorkPtr inner, Tensors outputs, std::function<void()> finish)
      : Work(-1, type),
        inner_(std::move(inner)),
        outputs_(hold_pending(std::move(outputs))),
        finish_(std::move(finish)) {}

  bool isCompleted() override {
    // gloo completes its future a moment before its work.
    if (future_ && future_->completed()) return true;
    if (!inner_->isCompleted()) return false;
    if (inner_->isSuccess()) finish_once();
    return true;
  }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return *outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    bool is_done = inner_->wait(timeout);
    finish_once();
    end_lazy_collectives("wait");
    return is_done;
  }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    TORCH_CHECK(future_, "The work of a point-to-point operation of the simulated HCCL has no ",
                "future. Call wait() on it.");
    return future_;
  }

 private:
  /// Makes a future that completes, on the outputs' device, when gloo's does.
  void follow() {
    std::vector<c10::Device> devices;
    if (!outputs_->empty() && outputs_->at(0).device().is_hpu()) {
      devices = {outputs_->at(0).device()};
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
    auto self = c10::intrusive_ptr<HcclWork>::reclaim_copy(this);
    inner_->getFuture()->addCallback([self](c10::ivalue::Future& inner) {
      if (inner.hasError()) {
        self->future_->setError(inner.exception_ptr());
        return;
      }
      self->finish_once();
      self->future_->markCompleted(c10::IValue(*self->outputs_));
    });
  }

  void finish_once() {
    std::call_once(finished_, [this] {
      if (!finish_) return;
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      finish_();
      finish_ = nullptr;
    });
  }

  WorkPtr inner_;
  std::shared_ptr<const Tensors> outputs_;
  std::function<void()> finish_;
  std::once_flag finished_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Several works as one: what a coalesced call returns.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<WorkPtr> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    for (const auto& work : works_) {
      if (!work->isCompleted()) return false;
    }
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : works_) {
      if (!work->isSuccess()) return false;
    }
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }
  Tensors result() override {
    Tensors all;
    for (const auto& work : works_) {
      for (auto& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    bool is_done = true;
    for (const auto& work : works_) is_done = work->wait(timeout) && is_done;
    return is_done;
  }

 private:
  std::vector<WorkPtr> works_;
};

}  // namespace hpu_sim
