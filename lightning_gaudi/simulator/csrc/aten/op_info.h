// What the fallback must know of an operator, read from its schema once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "rules/rules.h"

namespace hpu_sim {

struct OpInfo {
  std::string name;  ///< "aten::add.Tensor"
  uint64_t hash;     ///< of the name

  std::vector<int> mutated_arguments;   ///< positions, in order
  std::vector<int> returned_arguments;  ///< for each return the mutated argument it is, or -1
  std::vector<bool> is_scalar;          ///< for each argument: a Scalar, whose value may change
  std::vector<bool> may_be_on_host;     ///< for each argument: a CPU tensor of any shape is fine
  int generator_argument = -1;

  bool draws_without_generator = false;  ///< random, but takes no Generator
  bool is_read = false;                  ///< a copy to the host, so no part of a graph
  bool is_view = false;
  bool launches = true;       ///< the card computes; else it looks at its tensors otherwise
  bool is_attention = false;  ///< launches as often as aten/attention.h says
  bool is_foreign = false;  ///< not torch's: its kernel may keep the arguments
  bool has_contiguous_results = false;
  TypeSet widened = 0;              ///< for which the CPU has no kernel, and accelerators have
  bool widens_int32_index = false;  ///< the CPU wants int64 indices, Gaudi takes int32 as well

  /// A kernel of the device "meta" has told the sizes of its results.
  mutable std::atomic<bool> is_told_on_meta{false};

  OpRules rules;  ///< what a card does otherwise

  // To see that a cached entry still describes the operator.
  const c10::Argument* arguments = nullptr;
  bool describes(const c10::FunctionSchema& schema) const;
};

/// Lives for ever. Usually one look-up in a table of this thread, without a lock.
const OpInfo& op_info(const c10::OperatorHandle& op);

/// Whether its new results lie row by row, whatever the layout of its arguments.
bool has_contiguous_results(const c10::OperatorHandle& op);

/// Whether it makes new tensors, in a layout that those of which it may be composed would not give.
bool has_layout_of_its_own(const c10::OperatorHandle& op);

/// "aten::add.Tensor"
std::string full_name(const c10::OperatorName& name);

}  // namespace hpu_sim
