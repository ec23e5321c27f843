#include "statistics/compilations.h"

#include <algorithm>

namespace hpu_sim {
namespace {

constexpr size_t kMaxEntries = 4096;
constexpr size_t kMaxKinds = 256;
constexpr size_t kMaxInputsNamed = 3;

using Shapes = std::vector<int64_t>;

/// The end of the shape that begins at `begin`.
size_t end_of_shape(const Shapes& shapes, size_t begin) { return begin + 1 + shapes[begin]; }

std::string show_shape(const Shapes& shapes, size_t begin) {
  std::string text = "[";
  for (size_t i = begin + 1; i < end_of_shape(shapes, begin); ++i) {
    text += (i == begin + 1 ? "" : ", ") + std::to_string(shapes[i]);
  }
  return text + "]";
}

/// The inputs that differ: "input 0: [8, 113] was [8, 128]; input 3: ...".
std::string difference(const Shapes& now, const Shapes& before) {
  std::string text;
  size_t num_different = 0;
  size_t i = 0, j = 0;
  for (int64_t input = 0; i < now.size() && j < before.size(); ++input) {
    const size_t end_i = end_of_shape(now, i), end_j = end_of_shape(before, j);
    const bool is_equal = std::equal(now.begin() + i, now.begin() + end_i, before.begin() + j,
                                     before.begin() + end_j);
    if (!is_equal && ++num_different <= kMaxInputsNamed) {
      text += (text.empty() ? "input " : "; input ") + std::to_string(input) + ": " +
              show_shape(now, i) + " was " + show_shape(before, j);
    }
    i = end_i;
    j = end_j;
  }
  if (i < now.size() || j < before.size()) return "another number of inputs";
  if (num_different == 0) return "other strides or arguments, inputs of the same shapes";
  if (num_different <= kMaxInputsNamed) return text;
  return text + "; and " + std::to_string(num_different - kMaxInputsNamed) + " more";
}

}  // namespace

bool CompilationLog::add(const std::string& ended_by, int64_t num_ops,
                         const GraphSignature& signature) {
  entries_.push_back({ended_by, num_ops, cause_of(signature)});
  if (entries_.size() > kMaxEntries) {
    entries_.pop_front();
    ++num_forgotten_;
  }
  // Which kind is forgotten does not matter: it would be told as new, once.
  const bool is_new = last_shapes_.count(signature.kind) == 0;
  if (is_new && last_shapes_.size() >= kMaxKinds) last_shapes_.erase(last_shapes_.begin());
  last_shapes_[signature.kind] = signature.input_shapes;
  return !is_new;
}

std::vector<Compilation> CompilationLog::since(int64_t index) const {
  const int64_t first = std::max<int64_t>(index - num_forgotten_, 0);
  if (first >= static_cast<int64_t>(entries_.size())) return {};
  return {entries_.begin() + first, entries_.end()};
}

std::string CompilationLog::cause_of(const GraphSignature& signature) const {
  const auto found = last_shapes_.find(signature.kind);
  return found == last_shapes_.end() ? "" : difference(signature.input_shapes, found->second);
}

}  // namespace hpu_sim
