#include "rules/rules.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "statistics/counters.h"
#include "statistics/graph.h"

namespace hpu_sim {

TypeSet g_entering_types = 0;
TypeSet g_watched_results = 0;

namespace {

// Written before any operator runs, then only read.
int64_t g_num_rules_added = 0;

std::unordered_map<std::string, std::vector<Rule>>& rule_table() {
  static auto& instance = *new std::unordered_map<std::string, std::vector<Rule>>();
  return instance;
}

const std::vector<Rule>& rules_of_all() {
  static const std::vector<Rule> none;
  const auto found = rule_table().find("*");
  return found == rule_table().end() ? none : found->second;
}

RuleReport& reporter() {
  static auto& instance = *new RuleReport();
  return instance;
}

std::atomic<bool> g_is_reported{false};

void append(const std::string& key, std::vector<Rule>& rules) {
  const auto found = rule_table().find(key);
  if (found != rule_table().end()) {
    rules.insert(rules.end(), found->second.begin(), found->second.end());
  }
}

bool is_of_waiting(Verdict verdict) {
  return verdict == Verdict::kDynamic || verdict == Verdict::kWaits;
}

bool has_waiting_rule(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    if (is_of_waiting(rule.verdict) || rule.verdict == Verdict::kNoWait) return true;
  }
  return false;
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

bool applies(const Rule& rule, TypeSet types) {
  return (rule.types & types) != 0 && (is_lazy() ? rule.in_lazy_mode : rule.in_eager_mode);
}

bool is_reported() {
  return t_rules_paused == 0 && g_is_reported.load(std::memory_order_relaxed);
}

void report(const Rule& rule, const std::string& op, TypeSet types) {
  if (!is_reported()) return;
  // A rule for whatever type has nothing to say about types.
  const TypeSet met = rule.types == ~TypeSet{0} ? 0 : rule.types & types;
  reporter()(rule.id, op, type_names(met));
}

}  // namespace

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

void add_rule(const std::string& op, const Rule& rule) {
  rule_table()[op].push_back(rule);
  ++g_num_rules_added;
  if (op != "*") return;
  (rule.condition.result == nullptr ? g_entering_types : g_watched_results) |= rule.types;
}

void clear_rules() {
  rule_table().clear();
  g_entering_types = 0;
  g_watched_results = 0;
}

void set_rule_report(RuleReport report) { reporter() = std::move(report); }
void set_rules_reported(bool reported) { g_is_reported.store(reported); }

OpRules rules_of(const std::string& base_name, const std::string& full_name,
                 c10::ArrayRef<at::Tag> tags) {
  OpRules result;
  append(base_name, result.rules);
  if (full_name != base_name) append(full_name, result.rules);
  // Rows of their own say more exactly when, and what to do instead.
  if (!has_waiting_rule(result.rules)) {
    for (at::Tag tag : tags) append(name_of(tag), result.rules);
  }
  for (const Rule& rule : result.rules) result.watched |= rule.types;
  return result;
}

Consulted consult(const OpRules& rules, const std::string& op, TypeSet types, const Call& call) {
  Consulted result;
  if (t_rules_paused > 0) return result;
  // The rows stand in the table from the particular to the general, and what was measured of one
  // says nothing of those before it.
  bool is_known_to_run = false;
  bool is_known_not_to_wait = false;
  for (const Rule& rule : rules.rules) {
    if (!applies(rule, types)) continue;
    if (rule.condition.call != nullptr && !rule.condition.call(call)) continue;
    is_known_to_run |= rule.verdict == Verdict::kNoFallback;
    is_known_not_to_wait |= rule.verdict == Verdict::kNoWait;
    if (rule.verdict >= Verdict::kNoFallback) continue;
    if (rule.verdict == Verdict::kOnCpu && is_known_to_run) continue;
    if (is_of_waiting(rule.verdict) && is_known_not_to_wait) continue;
    result.waits |= is_of_waiting(rule.verdict);
    if (rule.verdict == Verdict::kOnCpu && !std::exchange(result.is_on_cpu, true)) {
      count_fallback(op);
    }
    if (rule.verdict != Verdict::kWaits) report(rule, op, types);
  }
  return result;
}

void check_own_kernel(const char* op) {
  consult(rules_of(op, op, {}), op, ~TypeSet{0}, {});
}

void report_entering(const std::string& op, TypeSet types) {
  for (const Rule& rule : rules_of_all()) {
    if (rule.condition.result == nullptr && applies(rule, types)) report(rule, op, types);
  }
}

void report_result(const std::string& op, const at::Tensor& cpu) {
  if (!is_reported()) return;
  for (const Rule& rule : rules_of_all()) {
    if (rule.condition.result == nullptr) continue;
    if (!applies(rule, type_bit(cpu.scalar_type()))) continue;
    const std::string met = rule.condition.result(cpu);
    if (!met.empty()) reporter()(rule.id, op, met);
  }
}

void check_collective(const std::string& name, const CollectiveCall& call) {
  if (!is_reported()) return;
  const auto found = rule_table().find("hccl::" + name);
  if (found == rule_table().end()) return;
  TypeSet types = call.tensors.empty() ? ~TypeSet{0} : 0;
  for (const at::Tensor& tensor : call.tensors) types |= type_bit(tensor.scalar_type());
  for (const Rule& rule : found->second) {
    if (!applies(rule, types)) continue;
    if (rule.verdict >= Verdict::kWaits) continue;  // counted where it waits
    if (rule.condition.collective == nullptr) {
      report(rule, name, types);
      continue;
    }
    const std::string met = rule.condition.collective(call);
    if (!met.empty()) reporter()(rule.id, name, met);
  }
}

namespace {

/// Looks them up once for each table, since a copy is no operator that keeps its own.
const OpRules& rules_of_copies() {
  static OpRules& rules = *new OpRules();
  static int64_t of_table = 0;
  if (of_table != g_num_rules_added) {
    rules = rules_of("aten::copy_", "aten::copy_", {});
    of_table = g_num_rules_added;
  }
  return rules;
}

}  // namespace

bool check_copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  const OpRules& rules = rules_of_copies();
  const TypeSet type = type_bit(source.scalar_type());
  bool waits = false;
  if ((rules.watched & type) == 0) return waits;
  for (const Rule& rule : rules.rules) {
    const bool is_wait = rule.verdict == Verdict::kWaits;
    if (rule.verdict >= Verdict::kNoFallback) continue;
    if (rule.condition.copy == nullptr || !(is_wait || is_reported())) continue;
    if (!applies(rule, type)) continue;
    const std::string met = rule.condition.copy({source, destination, non_blocking});
    if (met.empty()) continue;
    if (is_wait) {
      waits = true;  // counted as any other wait, and not said
    } else {
      reporter()(rule.id, "aten::copy_", met);
    }
  }
  return waits;
}

}  // namespace hpu_sim
