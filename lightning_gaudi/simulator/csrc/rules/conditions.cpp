#include "rules/conditions.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <limits>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "aten/alias.h"
#include "aten/dispatch_keys.h"
#include "runtime/dry.h"
#include "statistics/graph.h"

namespace hpu_sim {

const c10::IValue* Call::find(const char* name) const {
  if (schema == nullptr) return nullptr;
  const auto index = schema->argumentIndexWithName(name);
  return index.has_value() ? &arguments[*index] : nullptr;
}

namespace {

bool is_true(const Call& call, const char* name) {
  const c10::IValue* value = call.find(name);
  return value != nullptr && value->isBool() && value->toBool();
}

std::optional<at::Tensor> tensor(const Call& call, const char* name) {
  const c10::IValue* value = call.find(name);
  if (value == nullptr || !value->isTensor() || !value->toTensor().defined()) return std::nullopt;
  return value->toTensor();
}

/// Of the first tensor, which is what is selected from, sorted or written to.
int64_t num_dims(const Call& call) {
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().dim();
  }
  return 0;
}

template <int64_t limit>
bool more_dims_than(const Call& call) {
  return num_dims(call) > limit;
}
bool at_most_4_dims(const Call& call) { return num_dims(call) <= 4; }

bool self_is_int64(const Call& call) {
  const auto self = tensor(call, "self");
  return self.has_value() && self->scalar_type() == at::kLong;
}

bool source_shares_memory(const Call& call) {
  const auto self = tensor(call, "self");
  const auto source = tensor(call, "src");
  return self.has_value() && source.has_value() && self->has_storage() && source->has_storage() &&
         self->is_alias_of(*source);
}

struct Indices {
  int num_bool = 0;
  int num_uint8 = 0;
  int num_others = 0;  // of other types, or none for a whole dimension
};

Indices indices_of(const Call& call) {
  Indices result;
  for (const c10::IValue& argument : call.arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const auto& index : argument.toOptionalTensorVector()) {
      const bool is_given = index.has_value() && index->defined();
      result.num_bool += is_given && index->scalar_type() == at::kBool;
      result.num_uint8 += is_given && index->scalar_type() == at::kByte;
      ++result.num_others;
    }
  }
  result.num_others -= result.num_bool + result.num_uint8;
  return result;
}

// torch takes uint8 for a mask too, a card in eager mode does not.
bool mask_among_indices(const Call& call) {
  const Indices indices = indices_of(call);
  return indices.num_bool + indices.num_uint8 > 0;
}
bool uint8_among_indices(const Call& call) { return indices_of(call).num_uint8 > 0; }
bool mask_beside_indices(const Call& call) {
  const Indices indices = indices_of(call);
  return indices.num_bool > 0 && indices.num_bool + indices.num_uint8 + indices.num_others > 1;
}

bool output_size_missing(const Call& call) {
  const c10::IValue* size = call.find("output_size");
  return size == nullptr || size->isNone();
}

bool condition_not_bool(const Call& call) {
  const auto condition = tensor(call, "condition");
  return condition.has_value() && condition->scalar_type() != at::kBool;
}

bool embedding_sparse_or_scaled(const Call& call) {
  return is_true(call, "sparse") || is_true(call, "scale_grad_by_freq");
}

bool sparse_or_deterministic(const Call& call) {
  return is_true(call, "sparse") || at::globalContext().deterministicAlgorithms();
}

bool norm_parameters_not_float32(const Call& call) {
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const auto parameter = tensor(call, name);
    if (parameter.has_value() && parameter->scalar_type() != at::kFloat) return true;
  }
  return false;
}

bool all_are(const Call& call, const char* name, int64_t wanted) {
  const c10::IValue* sizes = call.find(name);
  if (sizes == nullptr) return false;
  for (int64_t size : sizes->toIntVector()) {
    if (size != wanted) return false;
  }
  return true;
}

bool patches_not_of_14(const Call& call) {
  return !(all_are(call, "kernel_size", 14) && all_are(call, "stride", 14) &&
           all_are(call, "dilation", 1) && all_are(call, "padding", 0));
}

/// Least and most, without what is not finite.
template <class T>
std::pair<T, T> range_of(const at::Tensor& cpu) {
  if (cpu.numel() == 0 || is_dry()) return {0, 0};
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  const at::Tensor finite =
      cpu.is_floating_point() ? at::nan_to_num(cpu, 0.0, 0.0, 0.0) : cpu;
  const auto [least, most] = at::aminmax(finite);
  return {least.template item<T>(), most.template item<T>()};
}

/// "the value 3000000000" if the range has one that `Narrow` cannot hold.
template <class Narrow, class T>
std::string value_beyond(std::pair<T, T> range) {
  const auto [least, most] = range;
  std::ostringstream text;
  if (most > static_cast<T>(std::numeric_limits<Narrow>::max())) {
    text << "the value " << most;
  } else if (least < static_cast<T>(std::numeric_limits<Narrow>::lowest())) {
    text << "the value " << least;
  }
  return text.str();
}

bool is_from_host(const Copy& copy) {
  return !copy.source.device().is_hpu() && copy.destination.device().is_hpu();
}

std::string from_host_beyond_int32(const Copy& copy) {
  if (!is_from_host(copy) || copy.source.scalar_type() != at::kLong) return "";
  return value_beyond<int32_t>(range_of<int64_t>(copy.source));
}

std::string from_host_beyond_float32(const Copy& copy) {
  if (!is_from_host(copy) || copy.source.scalar_type() != at::kDouble) return "";
  return value_beyond<float>(range_of<double>(copy.source));
}

template <bool non_blocking>
std::string to_host(const Copy& copy) {
  const bool is_met = !copy.destination.device().is_hpu() && copy.non_blocking == non_blocking;
  return is_met ? "a copy to the host" : "";
}

std::string copied_more_than_8_dims(const Copy& copy) {
  return copy.source.dim() > 8 ? std::to_string(copy.source.dim()) + " dimensions" : "";
}

std::string beyond_int32(const at::Tensor& result) {
  if (result.scalar_type() != at::kLong) return "";
  // What becomes of -inf or nan, and goes on from there, is no number on any device.
  constexpr int64_t kNoNumber = std::numeric_limits<int64_t>::min() + (int64_t{1} << 31);
  auto range = range_of<int64_t>(result);
  if (range.first < kNoNumber) {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    range = range_of<int64_t>(result.masked_fill(result.lt(kNoNumber), 0));
  }
  return value_beyond<int32_t>(range);
}

template <c10d::ReduceOp::RedOpType... ops>
std::string reduces_by(const CollectiveCall& call) {
  const bool is_met = call.reduction.has_value() && ((*call.reduction == ops) || ...);
  return is_met ? "this reduction" : "";
}

std::string averages_in_lazy_graph(const CollectiveCall& call) {
  return has_lazy_collectives() ? reduces_by<c10d::ReduceOp::AVG>(call) : "";
}

std::string beyond_float32_integers(const CollectiveCall& call) {
  constexpr int64_t most = int64_t{1} << 24;
  for (const at::Tensor& tensor : call.tensors) {
    const at::Tensor alias = cpu_alias(tensor);
    const auto [low, high] = range_of<int64_t>(alias);
    if (high > most || low < -most) return "the value " + std::to_string(high > most ? high : low);
  }
  return "";
}

std::string odd_number_of_elements(const CollectiveCall& call) {
  int64_t num_elements = 0;
  for (const at::Tensor& tensor : call.tensors) num_elements += tensor.numel();
  return num_elements % 2 == 0 ? "" : std::to_string(num_elements) + " elements";
}

std::string split_sizes(const CollectiveCall& call) {
  return call.has_split_sizes ? "split sizes" : "";
}

Condition on_collective(CollectiveCondition condition) {
  return {nullptr, nullptr, nullptr, condition};
}
Condition on_call(CallCondition condition) { return {condition, nullptr, nullptr, nullptr}; }
Condition on_copy(CopyCondition condition) { return {nullptr, condition, nullptr, nullptr}; }

}  // namespace

Condition condition_named(const std::string& name) {
  using c10d::ReduceOp;
  static const auto* conditions = new std::unordered_map<std::string, Condition>{
      {"", {}},
      {"at_most_4_dims", on_call(&at_most_4_dims)},
      {"more_than_4_dims", on_call(&more_dims_than<4>)},
      {"more_than_5_dims", on_call(&more_dims_than<5>)},
      {"mask_among_indices", on_call(&mask_among_indices)},
      {"uint8_among_indices", on_call(&uint8_among_indices)},
      {"mask_beside_indices", on_call(&mask_beside_indices)},
      {"output_size_missing", on_call(&output_size_missing)},
      {"condition_not_bool", on_call(&condition_not_bool)},
      {"embedding_sparse_or_scaled", on_call(&embedding_sparse_or_scaled)},
      {"sparse_or_deterministic", on_call(&sparse_or_deterministic)},
      {"norm_parameters_not_float32", on_call(&norm_parameters_not_float32)},
      {"patches_not_of_14", on_call(&patches_not_of_14)},
      {"self_is_int64", on_call(&self_is_int64)},
      {"source_shares_memory", on_call(&source_shares_memory)},
      {"from_host_beyond_int32", on_copy(&from_host_beyond_int32)},
      {"from_host_beyond_float32", on_copy(&from_host_beyond_float32)},
      {"to_host_blocking", on_copy(&to_host<false>)},
      {"to_host_non_blocking", on_copy(&to_host<true>)},
      {"narrow_integers_to_host_non_blocking", on_copy(&to_host<true>)},
      {"copied_more_than_8_dims", on_copy(&copied_more_than_8_dims)},
      {"beyond_int32", {nullptr, nullptr, &beyond_int32, nullptr}},
      {"op_average", on_collective(&reduces_by<ReduceOp::AVG>)},
      {"op_average_in_lazy_collective", on_collective(&averages_in_lazy_graph)},
      {"op_bitwise",
       on_collective(&reduces_by<ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR>)},
      {"op_premul_sum", on_collective(&reduces_by<ReduceOp::PREMUL_SUM>)},
      {"op_product", on_collective(&reduces_by<ReduceOp::PRODUCT>)},
      {"beyond_float32_integers", on_collective(&beyond_float32_integers)},
      {"odd_number_of_elements", on_collective(&odd_number_of_elements)},
      {"split_sizes", on_collective(&split_sizes)},
  };
  const auto found = conditions->find(name);
  TORCH_CHECK_VALUE(found != conditions->end(), "No rule can ask for the condition '", name,
                    "'. Add it in rules/conditions.cpp.");
  return found->second;
}

}  // namespace hpu_sim
