// What a collective returns: gloo's work on CPU aliases, seen as work on hpu tensors.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "distributed/lost.h"
#include "distributed/pending.h"
#include "statistics/graph.h"

namespace hpu_sim {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// A future of tensors, on the device of these.
inline FuturePtr future_of(const Tensors& outputs) {
  std::vector<c10::Device> devices;
  if (!outputs.empty() && outputs[0].device().is_hpu()) devices = {outputs[0].device()};
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
}

/// A work of gloo's, and what remains to be done when it has ended: `finish`, if any, runs once, on
/// whichever thread sees the end first, and before anyone is told so.
///
/// `staged` is what gloo works on, held until someone has waited for the end: a thread of gloo's lets
/// go of what it owns at a moment of its own, and what memory a program takes would depend on which
/// of the two threads comes first.
class HcclWork : public c10d::Work {
 public:
  HcclWork(c10d::OpType type, WorkPtr inner, Tensors staged, Tensors outputs,
           std::function<void()> finish)
      : Work(-1, type),
        staged_(hold_pending(std::move(staged))),
        inner_(std::move(inner)),
        outputs_(hold_pending(std::move(outputs))),
        finish_(std::move(finish)) {}

  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override {
    auto error = inner_->exception();
    return is_lost(error) ? nullptr : error;
  }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return *outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { inner_->abort(); }

 protected:
  void finish_once() {
    std::call_once(finished_, [this] {
      if (!finish_) return;
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      finish_();
      finish_ = nullptr;
    });
  }
  void let_go_once() {
    std::call_once(let_go_, [this] { staged_.reset(); });
  }

 private:
  std::shared_ptr<const Tensors> staged_;  // before gloo's work, so that it goes after it

 protected:
  const WorkPtr inner_;
  const std::shared_ptr<const Tensors> outputs_;

 private:
  std::function<void()> finish_;
  std::once_flag finished_;
  std::once_flag let_go_;
};

/// The work of a collective. gloo's has a future, which another follows.
class CollectiveWork final : public HcclWork {
 public:
  template <class... Args>
  static WorkPtr make(Args&&... args) {
    auto work = c10::make_intrusive<CollectiveWork>(std::forward<Args>(args)...);
    work->follow();
    return work;
  }
  using HcclWork::HcclWork;

  bool isCompleted() override {
    // gloo completes its future a moment before its work.
    if (future_->completed()) return true;
    if (!inner_->isCompleted() || is_lost(inner_->exception())) return false;
    if (inner_->isSuccess()) finish_once();
    return true;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = unless_lost([&] { return inner_->wait(timeout); });
    finish_once();
    let_go_once();
    end_lazy_collectives("wait");
    return is_done;
  }
  FuturePtr getFuture() override { return future_; }

 private:
  void follow() {
    future_ = future_of(*outputs_);
    auto self = c10::intrusive_ptr<CollectiveWork>::reclaim_copy(this);
    // Before the future: whoever follows that may need the interpreter lock.
    inner_->getFuture()->addCallback([self, ended = note_under_way()](c10::ivalue::Future& inner) {
      if (inner.hasError()) {
        if (is_lost(inner.exception_ptr())) return;  // who waits for it does so for ever
        ended->store(true);
        self->future_->setError(inner.exception_ptr());
        return;
      }
      try {
        self->finish_once();
      } catch (...) {
        ended->store(true);
        self->future_->setError(std::current_exception());
        return;
      }
      ended->store(true);
      self->future_->markCompleted(c10::IValue(*self->outputs_));
    });
  }

  FuturePtr future_;
};

/// The work of a send or a receive. gloo's ends only in wait(), in one thread's, and has no future.
class PointToPointWork final : public HcclWork {
 public:
  using HcclWork::HcclWork;

  /// Waits, as the vendor's does: gloo would never say that it has ended.
  bool isCompleted() override { return wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  /// From the first call on another thread waits, so that futures of a batch end in any order.
  FuturePtr getFuture() override;

 private:
  std::mutex mutex_;  // guards what follows
  bool has_ended_ = false;
  FuturePtr future_;
};

/// The work of a send or a receive that gloo refuses since the other rank is lost: it never ends.
class LostWork final : public c10d::Work {
 public:
  LostWork(c10d::OpType type, const Tensors& outputs) : Work(-1, type), future_(future_of(outputs)) {}

  bool isCompleted() override { return false; }
  bool isSuccess() const override { return false; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds) override { wait_for_ever(); }
  FuturePtr getFuture() override { return future_; }

 private:
  const FuturePtr future_;
};

/// Several works as one: what a coalesced call returns.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<WorkPtr> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  Tensors result() override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  /// Ends when all works have, with the outputs of all, or with the first error.
  FuturePtr getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
  std::mutex mutex_;  // guards what follows
  FuturePtr future_;
};

}  // namespace hpu_sim
