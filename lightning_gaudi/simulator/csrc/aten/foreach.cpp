#include "aten/foreach.h"

#include <unordered_set>

namespace hpu_sim {
namespace {

// Each is one recipe, whatever the length of the lists.
// Source: Gaudi PyTorch bridge 1.19, scripts/hpu_op.yaml.
const std::unordered_set<std::string> kForeachOfCard{
    "abs",       "acos",      "add",     "addcdiv", "addcmul", "asin",    "atan",    "ceil",
    "clamp_max", "clamp_min", "cos",     "cosh",    "div",     "erf",     "erfc",    "exp",
    "expm1",     "floor",     "frac",    "lerp",    "lgamma",  "log",     "log10",   "log1p",
    "log2",      "maximum",   "minimum", "mul",     "neg",     "pow",     "reciprocal",
    "round",     "sigmoid",   "sign",    "sin",     "sinh",    "sqrt",    "sub",     "tan",
    "tanh",      "trunc",     "zero"};

}  // namespace

bool is_foreach_of_card(const std::string& name) {
  const std::string prefix = "_foreach_";
  if (name.rfind(prefix, 0) != 0) return false;
  std::string base = name.substr(prefix.size(), name.find('.') - prefix.size());
  if (!base.empty() && base.back() == '_') base.pop_back();
  const bool is_out = name.size() > 3 && name.compare(name.size() - 3, 3, "out") == 0;
  return !is_out && kForeachOfCard.count(base) > 0;
}

}  // namespace hpu_sim
