#include "aten/op_info.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace hpu_sim {
namespace {

using Names = std::unordered_set<std::string>;

const std::string kForeach = "aten::_foreach_";

// torch's FakeTensor expects row-major results of pointwise operators on hpu; these are not tagged
// as pointwise but behave alike, or are tagged and do not.
const Names kAlsoContiguous{"aten::where", "aten::masked_fill", "aten::native_dropout"};
const Names kNotContiguous{"aten::addcmul", "aten::addcdiv", "aten::lerp"};

// Gaudi computes these in bf16 and half too; the CPU has no such kernel.
const Names kWidensReducedFloats{"aten::_cdist_forward",
                                 "aten::_pdist_forward",
                                 "aten::multi_margin_loss",
                                 "aten::multilabel_margin_loss_forward",
                                 "aten::special_erfcx",
                                 "aten::multi_margin_loss_backward",
                                 "aten::_cdist_backward",
                                 "aten::_pdist_backward",
                                 "aten::multilabel_margin_loss_backward"};
const Names kWidensInt32Index{"aten::take"};

// They ask what a tensor is, not what is in it.
const Names kMetadataOnly{"aten::is_set_to", "aten::_assert_tensor_metadata"};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// The position of the mutated argument that `result` is, or -1.
int argument_returned_as(const c10::Argument& result, const std::vector<c10::Argument>& arguments) {
  if (!is_written(result)) return -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i]) &&
        arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void read_arguments(const std::string& base_name, const std::vector<c10::Argument>& arguments,
                    OpInfo& info) {
  const bool is_foreach = base_name.rfind(kForeach, 0) == 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string type = arguments[i].type()->str();
    const int position = static_cast<int>(i);
    if (is_written(arguments[i])) info.mutated_arguments.push_back(position);
    if (type == "Generator" || type == "Generator?") info.generator_argument = position;
    info.is_scalar.push_back(type == "Scalar" || type == "Scalar?" || type == "number" ||
                             type == "number?");
    // Index lists, and the scalars of _foreach_addcmul given as a tensor.
    info.may_be_on_host.push_back(type == "Tensor?[]" ||
                                  (is_foreach && arguments[i].name() == "scalars"));
  }
}

void read_returns(const c10::FunctionSchema& schema, OpInfo& info) {
  for (const c10::Argument& result : schema.returns()) {
    info.returned_arguments.push_back(argument_returned_as(result, schema.arguments()));
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) info.is_view = true;
  }
}

void read_traits(const c10::OperatorHandle& op, OpInfo& info) {
  const std::string& name = op.operator_name().name;
  info.rules = rules_of(name, info.name, op.getTags());
  bool is_pointwise = false;
  bool is_seeded = false;
  for (at::Tag tag : op.getTags()) {
    is_pointwise |= tag == at::Tag::pointwise;
    is_seeded |= tag == at::Tag::nondeterministic_seeded;
  }
  info.draws_without_generator = is_seeded && info.generator_argument < 0;
  info.is_foreign = name.rfind("aten::", 0) != 0;
  info.is_read = name == "aten::_local_scalar_dense";
  const bool is_foreach = name.rfind(kForeach, 0) == 0;
  const std::string of_each = is_foreach ? "aten::" + name.substr(kForeach.size()) : name;
  info.has_contiguous_results = (is_pointwise || is_foreach || kAlsoContiguous.count(name) > 0) &&
                                kNotContiguous.count(of_each) == 0;
  const bool is_functional = info.mutated_arguments.empty();
  info.widens_reduced_floats = is_functional && kWidensReducedFloats.count(name) > 0;
  info.widens_int32_index = is_functional && kWidensInt32Index.count(name) > 0;
}

void read_launches(const c10::OperatorHandle& op, OpInfo& info) {
  const std::string& name = op.operator_name().name;
  const auto tags = op.getTags();
  const bool is_inplace_view =
      std::find(tags.begin(), tags.end(), at::Tag::inplace_view) != tags.end();
  info.launches =
      !info.is_view && !info.is_read && !is_inplace_view && kMetadataOnly.count(name) == 0;
  info.is_attention = name.rfind("aten::_scaled_dot_product_flash_attention_for_cpu", 0) == 0;
}

std::unique_ptr<OpInfo> read_op_info(const c10::OperatorHandle& op) {
  auto info = std::make_unique<OpInfo>();
  const c10::FunctionSchema& schema = op.schema();
  info->name = full_name(op.operator_name());
  info->hash = std::hash<std::string>()(info->name);
  info->arguments = schema.arguments().data();
  read_arguments(op.operator_name().name, schema.arguments(), *info);
  read_returns(schema, *info);
  read_traits(op, *info);
  read_launches(op, *info);
  return info;
}

/// The shared table. Entries are never freed: another thread may still read one.
const OpInfo& find_or_read(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto& table = *new std::unordered_map<const void*, const OpInfo*>();
  std::lock_guard<std::mutex> lock(mutex);
  const OpInfo*& entry = table[&op.schema()];
  if (entry == nullptr || !entry->describes(op.schema())) entry = read_op_info(op).release();
  return *entry;
}

}  // namespace

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// An operator may be removed (a Python library that goes) and another take its address.
bool OpInfo::describes(const c10::FunctionSchema& schema) const {
  return arguments == schema.arguments().data() && is_scalar.size() == schema.arguments().size() &&
         name.compare(0, schema.name().size(), schema.name()) == 0 &&
         name.size() ==
             schema.name().size() +
                 (schema.overload_name().empty() ? 0 : schema.overload_name().size() + 1);
}

const OpInfo& op_info(const c10::OperatorHandle& op) {
  struct Slot {
    const c10::FunctionSchema* schema = nullptr;
    const OpInfo* info = nullptr;
  };
  thread_local std::array<Slot, 1024> slots;
  const c10::FunctionSchema* schema = &op.schema();
  Slot& slot = slots[(reinterpret_cast<uintptr_t>(schema) >> 4) % slots.size()];
  if (slot.schema != schema || !slot.info->describes(*schema)) {
    slot = {schema, &find_or_read(op)};
  }
  return *slot.info;
}

}  // namespace hpu_sim
