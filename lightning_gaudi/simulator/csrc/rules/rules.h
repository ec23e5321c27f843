// What a card does that the CPU does not: refuse, demote, compute on the host, wait. The table is
// in Python (simulator/rules); here are its rows as operators ask for them.
#pragma once

#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rules/conditions.h"

namespace hpu_sim {

/// Types of tensors, a bit each.
using TypeSet = uint64_t;
inline TypeSet type_bit(at::ScalarType type) { return TypeSet{1} << static_cast<int>(type); }

// The order is that of `Verdict` in simulator/rules/table.py.
enum class Verdict : int {
  kRefused,
  kDemoted,
  kOnCpu,
  kDynamic,
  kWaits,
  kNoFallback,  ///< measured on a card: no row below is right that sends this to the host
  kNoWait,      ///< measured on a card: no row below is right that makes the host wait for this
};

struct Rule {
  int64_t id = 0;  ///< its place in the table
  Verdict verdict = Verdict::kDemoted;
  TypeSet types = ~TypeSet{0};
  bool in_lazy_mode = true;
  bool in_eager_mode = true;
  Condition condition;
};

/// The rules of one operator, read when it is met first.
struct OpRules {
  std::vector<Rule> rules;
  TypeSet watched = 0;  ///< the types of any of them: no look at the rules where none is met
};

/// "float64, int64"
std::string type_names(TypeSet types);

/// Adds a row of the table, before any operator runs.
///
/// `op` is "aten::add" (every overload), "aten::add.Tensor", "hccl::all_reduce", "tag::name" (each
/// operator that torch tags so), or "*": whatever brings one of the types onto the card.
void add_rule(const std::string& op, const Rule& rule);
void clear_rules();

/// More than 0 while this thread runs the parts of what a card has a kernel for.
inline thread_local int t_rules_paused = 0;
struct PausedRules {
  PausedRules() { ++t_rules_paused; }
  ~PausedRules() { --t_rules_paused; }
};

/// Called with a rule's place in the table, the operator and what else is known. May throw.
using RuleReport = std::function<void(int64_t id, const std::string& op, const std::string& detail)>;
void set_rule_report(RuleReport report);

/// Whether met rules are told to anyone, and refusals refuse. What is counted is counted anyway.
void set_rules_reported(bool reported);

OpRules rules_of(const std::string& base_name, const std::string& full_name,
                 c10::ArrayRef<at::Tag> tags);

/// What the rules make of one call.
struct Consulted {
  bool waits = false;      ///< the host waits for a value or a shape
  bool is_on_cpu = false;  ///< the card has no kernel for it
};

/// Looks up what `rules` say of a call whose hpu tensors have `types`, and reports it.
Consulted consult(const OpRules& rules, const std::string& op, TypeSet types, const Call& call);

/// Reports the rules of an operator that has a kernel of its own, whatever its types.
void check_own_kernel(const char* op);

/// Types whose coming onto the card some rule is about.
extern TypeSet g_entering_types;

/// Reports the rules about tensors of `types`, which `op` brings onto the card.
void report_entering(const std::string& op, TypeSet types);
inline void check_entering(const char* op, TypeSet types) {
  if (types & g_entering_types) report_entering(op, types);
}

/// Reports the rules about values of results. `cpu` is an alias of the result.
extern TypeSet g_watched_results;
void report_result(const std::string& op, const at::Tensor& cpu);
inline void check_result(const std::string& op, const at::Tensor& cpu) {
  if (type_bit(cpu.scalar_type()) & g_watched_results) report_result(op, cpu);
}

/// Reports the rules about a collective, as torch.distributed calls it, before it begins.
void check_collective(const std::string& name, const CollectiveCall& call);

/// Reports the rules about copies, before one is made; whether the host waits for it.
bool check_copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

}  // namespace hpu_sim
