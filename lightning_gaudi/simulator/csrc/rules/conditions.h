// Conditions of rules beyond an operator's name and the types of its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

namespace hpu_sim {

/// One call of an operator: its tensors may be hpu tensors or their CPU aliases.
struct Call {
  const c10::FunctionSchema* schema = nullptr;
  c10::ArrayRef<c10::IValue> arguments;

  /// The argument of that name, or null.
  const c10::IValue* find(const char* name) const;
};

/// Whether a call meets the condition.
using CallCondition = bool (*)(const Call&);

struct Copy {
  const at::Tensor& source;
  const at::Tensor& destination;
  bool non_blocking;
};

/// What a copy meets of the condition, as "the value 3e40"; empty for nothing.
using CopyCondition = std::string (*)(const Copy& copy);

/// What a result meets of the condition, in the same way.
using ResultCondition = std::string (*)(const at::Tensor& result);

/// A collective as this rank calls it.
struct CollectiveCall {
  c10::ArrayRef<at::Tensor> tensors;   ///< what it gives, and what it gets where that says more
  std::optional<int> reduction;        ///< c10d::ReduceOp::RedOpType
  bool has_split_sizes = false;
};

/// What a collective meets of the condition, in the same way.
using CollectiveCondition = std::string (*)(const CollectiveCall&);

/// At most one of them is set; none means always.
struct Condition {
  CallCondition call = nullptr;
  CopyCondition copy = nullptr;
  ResultCondition result = nullptr;
  CollectiveCondition collective = nullptr;
};

/// The condition that the table calls `name`; an empty name means always.
///
/// Raises: ValueError for a name that is not known.
Condition condition_named(const std::string& name);

}  // namespace hpu_sim
