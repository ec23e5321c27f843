// A graph of torch.compile: operators that run one after the other, without Python between them.
//
// They are the same calls of the same operators through the dispatcher that the graph's Python code
// makes. What each has beside is Python's: its arguments are parsed and its result is wrapped, for
// small tensors as long as the operator itself takes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hpu_sim {

/// Values by number: first the graph's inputs, then what its operators return.
using Registers = std::vector<c10::IValue>;

/// One call of an operator.
struct ProgramStep {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  ///< as its schema has them, with what never changes
  std::vector<std::pair<int64_t, int64_t>> holes;  ///< arguments that change: position, register
  /// Lists of tensors: position, and the registers of what is in it; -1 for none.
  std::vector<std::pair<int64_t, std::vector<int64_t>>> list_holes;
  std::vector<int64_t> results;  ///< where its results go, those of a list too; -1 drops one
  std::vector<int64_t> frees;    ///< registers that no later step reads
};

class Program {
 public:
  Program(int64_t num_registers, std::vector<int64_t> outputs)
      : num_registers_(num_registers), outputs_(std::move(outputs)) {}

  void add(ProgramStep step) { steps_.push_back(std::move(step)); }

  /// The outputs, None for each -1, from the inputs.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

 private:
  int64_t num_registers_;
  std::vector<int64_t> outputs_;
  std::vector<ProgramStep> steps_;
};

}  // namespace hpu_sim
