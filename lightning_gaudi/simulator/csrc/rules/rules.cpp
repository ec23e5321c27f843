#include "rules/rules.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "aten/dispatch_keys.h"
#include "statistics/counters.h"
#include "statistics/graph.h"

namespace hpu_sim {

TypeSet g_entering_types = 0;

namespace {

// Written before any operator runs, then only read.
std::unordered_map<std::string, std::vector<Rule>>& table() {
  static auto& instance = *new std::unordered_map<std::string, std::vector<Rule>>();
  return instance;
}

RuleReport& reporter() {
  static auto& instance = *new RuleReport();
  return instance;
}

std::atomic<bool> g_is_reported{false};

void append(const std::string& key, std::vector<Rule>& rules) {
  const auto found = table().find(key);
  if (found != table().end()) {
    rules.insert(rules.end(), found->second.begin(), found->second.end());
  }
}

std::string name_of(at::Tag tag) {
  switch (tag) {
    case at::Tag::dynamic_output_shape:
      return "tag::dynamic_output_shape";
    case at::Tag::data_dependent_output:
      return "tag::data_dependent_output";
    default:
      return "";
  }
}

bool applies_to_mode(const Rule& rule) {
  return is_lazy() ? rule.in_lazy_mode : rule.in_eager_mode;
}

bool is_mask(const at::Tensor& index) {
  return index.defined() &&
         (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

bool has_mask_among_indices(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const auto& index : argument.toOptionalTensorVector()) {
      if (index.has_value() && is_mask(*index)) return true;
    }
  }
  return false;
}

/// "float64, int64"
std::string type_names(TypeSet types) {
  std::string names;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if ((types & (TypeSet{1} << i)) == 0) continue;
    const auto type = static_cast<at::ScalarType>(i);
    if (!names.empty()) names += ", ";
    names += c10::getDtypeNames(type).first;
  }
  return names;
}

/// Least and most of a CPU tensor of int64 or float64, nans aside; for an empty one zeros.
template <class T>
std::pair<T, T> range_of(const at::Tensor& cpu) {
  if (cpu.numel() == 0) return {0, 0};
  c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
  const at::Tensor finite =
      cpu.is_floating_point() ? at::nan_to_num(cpu, 0.0, 0.0, 0.0) : cpu;
  const auto [least, most] = at::aminmax(finite);
  return {least.template item<T>(), most.template item<T>()};
}

template <class Narrow, class T>
std::optional<T> value_beyond(const at::Tensor& cpu) {
  const auto [least, most] = range_of<T>(cpu);
  if (most > static_cast<T>(std::numeric_limits<Narrow>::max())) return most;
  if (least < static_cast<T>(std::numeric_limits<Narrow>::lowest())) return least;
  return std::nullopt;
}

template <class T>
std::string value_text(T value) {
  std::ostringstream text;
  text << "the value " << value;
  return text.str();
}

/// What a copy from the host meets of a condition on values; empty for nothing.
std::string met_by_copy(const Rule& rule, const at::Tensor& source) {
  if (rule.condition == Condition::kCopiedBeyondInt32 && source.scalar_type() == at::kLong) {
    const auto value = value_beyond<int32_t, int64_t>(source);
    return value.has_value() ? value_text(*value) : "";
  }
  if (rule.condition == Condition::kCopiedBeyondFloat32 && source.scalar_type() == at::kDouble) {
    const auto value = value_beyond<float, double>(source);
    return value.has_value() ? value_text(*value) : "";
  }
  return "";
}

bool has_more_dims(c10::ArrayRef<c10::IValue> arguments, int64_t most) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().dim() > most) {
      return true;
    }
  }
  return false;
}

bool holds(const Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  switch (rule.condition) {
    case Condition::kAlways:
      return true;
    case Condition::kMaskAmongIndices:
      return has_mask_among_indices(arguments);
    case Condition::kMoreThan5Dims:
      return has_more_dims(arguments, 5);
    case Condition::kMoreThan8Dims:
      return has_more_dims(arguments, 8);
    default:
      return false;  // of copies and results
  }
}

bool is_reported() { return g_is_reported.load(std::memory_order_relaxed); }

void report(const Rule& rule, const std::string& op, TypeSet types) {
  if (!is_reported()) return;
  // A rule for whatever type has nothing to say about types.
  const TypeSet met = rule.types == ~TypeSet{0} ? 0 : rule.types & types;
  reporter()(rule.id, op, type_names(met));
}

}  // namespace

void add_rule(const std::string& op, const Rule& rule) {
  table()[op].push_back(rule);
  if (op == "*" && rule.condition == Condition::kAlways) g_entering_types |= rule.types;
}

void clear_rules() {
  table().clear();
  g_entering_types = 0;
}

void set_rule_report(RuleReport report) { reporter() = std::move(report); }
void set_rules_reported(bool reported) { g_is_reported.store(reported); }

OpRules rules_of(const std::string& base_name, const std::string& full_name,
                 c10::ArrayRef<at::Tag> tags) {
  OpRules result;
  append(base_name, result.rules);
  if (full_name != base_name) append(full_name, result.rules);
  // An index waits for a mask alone, which rows of their own say.
  if (base_name.rfind("aten::index", 0) != 0) {
    for (at::Tag tag : tags) append(name_of(tag), result.rules);
  }
  for (const Rule& rule : result.rules) result.watched |= rule.types;
  return result;
}

Consulted consult(const OpRules& rules, const std::string& op, TypeSet types,
                  c10::ArrayRef<c10::IValue> arguments) {
  Consulted result;
  for (const Rule& rule : rules.rules) {
    if ((rule.types & types) == 0 || !applies_to_mode(rule)) continue;
    if (!holds(rule, arguments)) continue;
    result.waits |= rule.verdict == Verdict::kDynamic || rule.verdict == Verdict::kWaits;
    if (rule.verdict == Verdict::kOnCpu && !std::exchange(result.is_on_cpu, true)) {
      count_fallback(op);
    }
    if (rule.verdict != Verdict::kWaits) report(rule, op, types);
  }
  return result;
}

void report_entering(const std::string& op, TypeSet types) {
  for (const Rule& rule : table()["*"]) {
    if ((rule.types & types) && applies_to_mode(rule) && rule.condition == Condition::kAlways) {
      report(rule, op, types);
    }
  }
}

void check_int64_range(const std::string& op, const at::Tensor& cpu) {
  if (!is_reported() || cpu.scalar_type() != at::kLong) return;
  for (const Rule& rule : table()["*"]) {
    if (rule.condition != Condition::kBeyondInt32 || !applies_to_mode(rule)) continue;
    const auto value = value_beyond<int32_t, int64_t>(cpu);
    if (value.has_value()) reporter()(rule.id, op, value_text(*value));
  }
}

void check_copy(const at::Tensor& source, const at::Tensor& destination) {
  static const OpRules rules = rules_of("aten::copy_", "aten::copy_", {});
  if (!is_reported() || (rules.watched & type_bit(source.scalar_type())) == 0) return;
  const bool from_host = !source.device().is_hpu() && destination.device().is_hpu();
  const c10::IValue arguments[] = {destination, source};
  for (const Rule& rule : rules.rules) {
    if ((rule.types & type_bit(source.scalar_type())) == 0 || !applies_to_mode(rule)) continue;
    if (holds(rule, arguments)) report(rule, "aten::copy_", type_bit(source.scalar_type()));
    const std::string met = from_host ? met_by_copy(rule, source) : "";
    if (!met.empty()) reporter()(rule.id, "aten::copy_", met);
  }
}

}  // namespace hpu_sim
