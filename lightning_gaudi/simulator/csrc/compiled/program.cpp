#include "compiled/program.h"

#include <ATen/core/stack.h>

namespace hpu_sim {
namespace {

c10::IValue list_of(const c10::TypePtr& type, const std::vector<int64_t>& places,
                    const Registers& registers) {
  if (type->isSubtypeOf(*c10::ListType::ofOptionalTensors()) &&
      !type->isSubtypeOf(*c10::ListType::ofTensors())) {
    c10::List<std::optional<at::Tensor>> list;
    for (int64_t place : places) {
      list.push_back(place < 0 ? std::nullopt
                               : std::make_optional(registers[place].toTensor()));
    }
    return list;
  }
  c10::List<at::Tensor> list;
  for (int64_t place : places) list.push_back(registers[place].toTensor());
  return list;
}

void run_step(const ProgramStep& step, Registers& registers) {
  torch::jit::Stack stack = step.arguments;
  for (const auto& [position, place] : step.holes) stack[position] = registers[place];
  for (const auto& [position, places] : step.list_holes) {
    const c10::TypePtr& type = step.op.schema().arguments()[position].real_type();
    stack[position] = list_of(type, places, registers);
  }
  step.op.callBoxed(stack);
  if (stack.size() == 1 && stack[0].isTensorList()) {
    const auto tensors = stack[0].toTensorVector();
    stack.assign(tensors.begin(), tensors.end());
  }
  for (size_t i = 0; i < step.results.size(); ++i) {
    if (step.results[i] >= 0) registers[step.results[i]] = std::move(stack[i]);
  }
  for (int64_t place : step.frees) registers[place] = c10::IValue();
}

}  // namespace

std::vector<c10::IValue> Program::run(std::vector<c10::IValue> inputs) const {
  Registers registers = std::move(inputs);
  registers.resize(num_registers_);
  for (const ProgramStep& step : steps_) run_step(step, registers);
  std::vector<c10::IValue> outputs;
  outputs.reserve(outputs_.size());
  for (int64_t place : outputs_) {
    outputs.push_back(place < 0 ? c10::IValue() : registers[place]);
  }
  return outputs;
}

}  // namespace hpu_sim
