// hpu kernels of the c10d operators. torch has them for the devices it knows; ours look their
// arguments up by name, since signatures grow from one torch version to the next.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "aten/registration.h"
#include "distributed/hccl.h"
#include "distributed/work.h"

namespace hpu_sim {
namespace {

using at::Tensor;
using c10::IValue;
using c10d::Backend;

/// The arguments of one call, by name.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, std::vector<IValue> values)
      : schema_(schema), values_(std::move(values)) {}

  Backend& backend() const {
    auto group = at("process_group").toCustomClass<c10d::ProcessGroup>();
    return *group->getBackend(c10::DeviceType::HPU);
  }
  int64_t integer(const char* name) const { return at(name).toInt(); }
  std::vector<int64_t> integers(const char* name) const { return at(name).toIntVector(); }
  Tensor tensor(const char* name) const { return at(name).toTensor(); }
  Tensors tensors(const char* name) const { return at(name).toTensorVector(); }
  TensorLists tensor_lists(const char* name) const {
    TensorLists lists;
    for (const IValue& list : at(name).toListRef()) lists.push_back(list.toTensorVector());
    return lists;
  }

  /// A c10d options struct with those of its fields that this operator has arguments for.
  template <class Options>
  Options options() const {
    Options result;
    const IValue* timeout = find("timeout");
    if (timeout && timeout->toInt() >= 0) {
      result.timeout = std::chrono::milliseconds(timeout->toInt());
    }
    set_reduce_op(result, 0);
    set_root_rank(result, 0);
    set_root_tensor(result, 0);
    return result;
  }

 private:
  const IValue* find(const char* name) const {
    auto index = schema_.argumentIndexWithName(name);
    return index ? &values_[*index] : nullptr;
  }
  const IValue& at(const char* name) const {
    const IValue* value = find(name);
    TORCH_CHECK(value, schema_.name(), " has no argument '", name, "' in this version of torch, ",
                "which the simulated HPU does not know yet. Install another version of torch.");
    return *value;
  }

  // The int overload wins where Options has the field, the long one takes the rest.
  template <class Options>
  auto set_reduce_op(Options& options, int) const -> decltype((void)options.reduceOp) {
    options.reduceOp = *at("reduce_op").toCustomClass<c10d::ReduceOp>();
  }
  template <class Options>
  void set_reduce_op(Options&, long) const {}
  template <class Options>
  auto set_root_rank(Options& options, int) const -> decltype((void)options.rootRank) {
    options.rootRank = integer("root_rank");
  }
  template <class Options>
  void set_root_rank(Options&, long) const {}
  template <class Options>
  auto set_root_tensor(Options& options, int) const -> decltype((void)options.rootTensor) {
    options.rootTensor = integer("root_tensor");
  }
  template <class Options>
  void set_root_tensor(Options&, long) const {}

  const c10::FunctionSchema& schema_;
  std::vector<IValue> values_;
};

/// What an operator returns: the work and, if its schema says so, the outputs before it.
struct Result {
  WorkPtr work;
  IValue outputs;
};
using Kernel = Result (*)(const Arguments&);

IValue nested(const TensorLists& lists) {
  c10::List<c10::List<Tensor>> result;
  for (const auto& list : lists) result.push_back(c10::List<Tensor>(list));
  return result;
}

Result broadcast(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  auto work = args.backend().broadcast(tensors, args.options<c10d::BroadcastOptions>());
  return {work, tensors};
}

Result allreduce(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  auto work = args.backend().allreduce(tensors, args.options<c10d::AllreduceOptions>());
  return {work, tensors};
}

Result allreduce_coalesced(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  auto options = args.options<c10d::AllreduceCoalescedOptions>();
  return {args.backend().allreduce_coalesced(tensors, options), {}};
}

Result reduce(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  return {args.backend().reduce(tensors, args.options<c10d::ReduceOptions>()), {}};
}

Result allgather(const Arguments& args) {
  auto outputs = args.tensor_lists("output_tensors");
  auto inputs = args.tensors("input_tensors");
  auto work = args.backend().allgather(outputs, inputs, args.options<c10d::AllgatherOptions>());
  return {work, nested(outputs)};
}

Result allgather_base(const Arguments& args) {
  auto output = args.tensor("output_tensor");
  auto input = args.tensor("input_tensor");
  auto options = args.options<c10d::AllgatherOptions>();
  return {args.backend()._allgather_base(output, input, options), output};
}

Result allgather_coalesced(const Arguments& args) {
  auto outputs = args.tensor_lists("output_lists");
  auto inputs = args.tensors("input_list");
  auto options = args.options<c10d::AllgatherOptions>();
  return {args.backend().allgather_coalesced(outputs, inputs, options), {}};
}

Result allgather_into_tensor_coalesced(const Arguments& args) {
  auto outputs = args.tensors("outputs");
  auto inputs = args.tensors("inputs");
  auto options = args.options<c10d::AllgatherOptions>();
  return {args.backend().allgather_into_tensor_coalesced(outputs, inputs, options), {}};
}

Result gather(const Arguments& args) {
  auto outputs = args.tensor_lists("output_tensors");
  auto inputs = args.tensors("input_tensors");
  return {args.backend().gather(outputs, inputs, args.options<c10d::GatherOptions>()), {}};
}

Result scatter(const Arguments& args) {
  auto outputs = args.tensors("output_tensors");
  auto inputs = args.tensor_lists("input_tensors");
  auto work = args.backend().scatter(outputs, inputs, args.options<c10d::ScatterOptions>());
  return {work, outputs};
}

Result reduce_scatter(const Arguments& args) {
  auto outputs = args.tensors("output_tensors");
  auto inputs = args.tensor_lists("input_tensors");
  auto options = args.options<c10d::ReduceScatterOptions>();
  return {args.backend().reduce_scatter(outputs, inputs, options), outputs};
}

Result reduce_scatter_base(const Arguments& args) {
  auto output = args.tensor("output_tensor");
  auto input = args.tensor("input_tensor");
  auto options = args.options<c10d::ReduceScatterOptions>();
  return {args.backend()._reduce_scatter_base(output, input, options), output};
}

Result reduce_scatter_tensor_coalesced(const Arguments& args) {
  auto outputs = args.tensors("outputs");
  auto inputs = args.tensors("inputs");
  auto options = args.options<c10d::ReduceScatterOptions>();
  return {args.backend().reduce_scatter_tensor_coalesced(outputs, inputs, options), {}};
}

Result alltoall(const Arguments& args) {
  auto outputs = args.tensors("output_tensors");
  auto inputs = args.tensors("input_tensors");
  auto work = args.backend().alltoall(outputs, inputs, args.options<c10d::AllToAllOptions>());
  return {work, outputs};
}

Result alltoall_base(const Arguments& args) {
  auto output = args.tensor("output");
  auto input = args.tensor("input");
  auto output_splits = args.integers("output_split_sizes");
  auto input_splits = args.integers("input_split_sizes");
  auto options = args.options<c10d::AllToAllOptions>();
  return {args.backend().alltoall_base(output, input, output_splits, input_splits, options), {}};
}

Result send(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  auto destination = static_cast<int>(args.integer("dst"));
  return {args.backend().send(tensors, destination, static_cast<int>(args.integer("tag"))), {}};
}

Result recv(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  auto source = static_cast<int>(args.integer("src"));
  return {args.backend().recv(tensors, source, static_cast<int>(args.integer("tag"))), {}};
}

Result recv_any_source(const Arguments& args) {
  auto tensors = args.tensors("tensors");
  return {args.backend().recvAnysource(tensors, static_cast<int>(args.integer("tag"))), {}};
}

Result barrier(const Arguments& args) {
  return {args.backend().barrier(args.options<c10d::BarrierOptions>()), {}};
}

const std::unordered_map<std::string, Kernel>& kernels() {
  static const auto* table = new std::unordered_map<std::string, Kernel>{
      {"c10d::broadcast_", broadcast},
      {"c10d::allreduce_", allreduce},
      {"c10d::allreduce_coalesced_", allreduce_coalesced},
      {"c10d::reduce_", reduce},
      {"c10d::allgather_", allgather},
      {"c10d::_allgather_base_", allgather_base},
      {"c10d::allgather_coalesced_", allgather_coalesced},
      {"c10d::allgather_into_tensor_coalesced_", allgather_into_tensor_coalesced},
      {"c10d::gather_", gather},
      {"c10d::scatter_", scatter},
      {"c10d::reduce_scatter_", reduce_scatter},
      {"c10d::_reduce_scatter_base_", reduce_scatter_base},
      {"c10d::reduce_scatter_tensor_coalesced_", reduce_scatter_tensor_coalesced},
      {"c10d::alltoall_", alltoall},
      {"c10d::alltoall_base_", alltoall_base},
      {"c10d::send", send},
      {"c10d::recv_", recv},
      {"c10d::recv_any_source_", recv_any_source},
      {"c10d::barrier", barrier},
  };
  return *table;
}

void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Arguments args(schema, torch::jit::pop(*stack, schema.arguments().size()));
  Result result;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = kernels().at(schema.name())(args);
  }
  if (schema.returns().size() == 2) stack->push_back(std::move(result.outputs));
  stack->push_back(IValue(std::move(result.work)));
}

bool has_hpu_tensor(const IValue& value) {
  if (value.isTensor()) return value.toTensor().is_hpu();
  if (!value.isList()) return false;
  for (const IValue& element : value.toListRef()) {
    if (has_hpu_tensor(element)) return true;
  }
  return false;
}

IValue resolved(const IValue& value) {
  if (value.isTensor()) return value.toTensor().resolve_conj().resolve_neg();
  if (!value.isList()) return value;
  auto result = value.toList().copy();
  for (size_t i = 0; i < result.size(); ++i) result.set(i, resolved(result.get(i)));
  return result;
}

/// Lets tensors that stand for the negative or the conjugate of their memory through to our kernel.
/// torch would give it copies, so that what it writes would be lost.
void let_bits_through(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const c10::DispatchKeySet bits({c10::DispatchKey::Negative, c10::DispatchKey::Conjugate});
  auto args = torch::jit::last(*stack, op.schema().arguments().size());
  if (std::any_of(args.begin(), args.end(), has_hpu_tensor)) {
    op.redispatchBoxed(keys - bits, stack);
    return;
  }
  auto values = torch::jit::pop(*stack, args.size());
  for (const IValue& value : values) stack->push_back(resolved(value));
  op.callBoxed(stack);
}

void install(c10::DispatchKey key, torch::CppFunction (*kernel)()) {
  torch::Library& library = permanent_library("c10d", key);
  for (const auto& entry : kernels()) {
    const std::string& name = entry.first;
    if (!c10::Dispatcher::singleton().findSchema({name, ""})) continue;  // not in this torch
    library.impl(name.substr(name.rfind(':') + 1).c_str(), kernel());
  }
}

}  // namespace

void install_collectives() {
  install(c10::DispatchKey::HPU, &torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>);
  for (const auto key : {c10::DispatchKey::Negative, c10::DispatchKey::Conjugate}) {
    install(key, &torch::CppFunction::makeFromBoxedFunction<&let_bits_through>);
  }
}

}  // namespace hpu_sim
