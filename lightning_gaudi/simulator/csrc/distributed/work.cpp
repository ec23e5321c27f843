#include "distributed/work.h"

#include <atomic>
#include <memory>
#include <thread>

namespace hpu_sim {

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
  FuturePtr future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!future_ && !has_ended_) {
      unless_lost([&] { return inner_->wait(timeout); });
      finish_once();
      has_ended_ = true;
    }
    future = future_;
  }
  if (future) future->waitAndThrow();
  let_go_once();
  end_lazy_collectives("wait");
  return true;
}

FuturePtr PointToPointWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (future_) return future_;
  future_ = future_of(*outputs_);
  if (has_ended_) {
    future_->markCompleted(c10::IValue(*outputs_));
    return future_;
  }
  auto self = c10::intrusive_ptr<PointToPointWork>::reclaim_copy(this);
  std::thread([self] {
    try {
      self->inner_->wait(kNoTimeout);
      self->finish_once();
    } catch (...) {
      if (is_lost(std::current_exception())) return;
      self->future_->setError(std::current_exception());
      return;
    }
    self->future_->markCompleted(c10::IValue(*self->outputs_));
  }).detach();
  return future_;
}

bool CoalescedWork::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool CoalescedWork::isSuccess() const {
  for (const auto& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

Tensors CoalescedWork::result() {
  Tensors all;
  for (const auto& work : works_) {
    for (auto& tensor : work->result()) all.push_back(std::move(tensor));
  }
  return all;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  bool is_done = true;
  for (const auto& work : works_) is_done = work->wait(timeout) && is_done;
  return is_done;
}

FuturePtr CoalescedWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (future_) return future_;
  const Tensors outputs = result();
  future_ = future_of(outputs);
  if (works_.empty()) {
    future_->markCompleted(c10::IValue(outputs));
    return future_;
  }
  auto num_left = std::make_shared<std::atomic<size_t>>(works_.size());
  // With the works: those that nobody else holds must not end before their futures.
  auto end = [future = future_, outputs, num_left, works = works_](c10::ivalue::Future& inner) {
    if (inner.hasError()) future->setErrorIfNeeded(inner.exception_ptr());
    if (--*num_left == 0 && !future->completed()) future->markCompleted(c10::IValue(outputs));
  };
  for (const auto& work : works_) work->getFuture()->addCallback(end);
  return future_;
}

}  // namespace hpu_sim
