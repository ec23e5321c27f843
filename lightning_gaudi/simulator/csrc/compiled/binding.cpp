// `Program` for Python: see `_program.py` of the compiler backend.
#include "compiled/binding.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include "compiled/program.h"

namespace hpu_sim {
namespace {

using Holes = std::vector<std::pair<int64_t, int64_t>>;
using ListHoles = std::vector<std::pair<int64_t, std::vector<int64_t>>>;

/// `constants`: a value for each argument of the schema; what stands in holes is not looked at.
void add_step(Program& program, const std::string& name, const std::string& overload,
              const py::list& constants, Holes holes, ListHoles list_holes,
              std::vector<int64_t> results, std::vector<int64_t> frees) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const c10::FunctionSchema& schema = op.schema();
  const size_t num_arguments = schema.arguments().size();
  TORCH_INTERNAL_ASSERT(num_arguments == constants.size());
  std::vector<bool> is_hole(num_arguments);
  for (const auto& hole : holes) is_hole[hole.first] = true;
  for (const auto& hole : list_holes) is_hole[hole.first] = true;
  std::vector<c10::IValue> arguments(num_arguments);
  // The graph has been traced: a number where a tensor belongs is one that its operator takes.
  torch::jit::ToIValueAllowNumbersAsTensors numbers_are_tensors(true);
  for (size_t i = 0; i < num_arguments; ++i) {
    if (!is_hole[i]) arguments[i] = torch::jit::argumentToIValue(schema, i, constants[i]);
  }
  program.add({op, std::move(arguments), std::move(holes), std::move(list_holes),
               std::move(results), std::move(frees)});
}

py::list run(const Program& program, const py::args& tensors) {
  std::vector<c10::IValue> inputs;
  inputs.reserve(tensors.size());
  for (const py::handle& tensor : tensors) inputs.emplace_back(py::cast<at::Tensor>(tensor));
  // With the interpreter lock, as the vendor's "graph_launch" (bridge 1.19) runs.
  std::vector<c10::IValue> outputs = program.run(std::move(inputs));
  py::list result;
  for (c10::IValue& output : outputs) result.append(torch::jit::toPyObject(std::move(output)));
  return result;
}

}  // namespace

void bind_programs(py::module_& m) {
  py::class_<Program>(m, "Program")
      .def(py::init<int64_t, std::vector<int64_t>>(), py::arg("num_registers"), py::arg("outputs"))
      .def("add", &add_step)
      .def("run", &run);
}

}  // namespace hpu_sim
