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

// torch predicts row-major results of pointwise operators on hpu (FakeTensor, torch._refs); these
// are not tagged as pointwise but are predicted alike, or are tagged and keep their arguments'
// layout.
const Names kAlsoContiguous{"aten::_prelu_kernel",
                            "aten::_prelu_kernel_backward",
                            "aten::_unsafe_masked_index_put_accumulate",
                            "aten::binary_cross_entropy_backward",
                            "aten::channel_shuffle",
                            "aten::convolution",
                            "aten::copy",
                            "aten::diagonal_scatter",
                            "aten::elu_backward",
                            "aten::floor_divide",
                            "aten::hardsigmoid_backward",
                            "aten::hardswish",
                            "aten::hardswish_backward",
                            "aten::hardtanh_backward",
                            "aten::huber_loss",
                            "aten::index_put",
                            "aten::leaky_relu_backward",
                            "aten::log_sigmoid_backward",
                            "aten::masked_fill",
                            "aten::masked_select_backward",
                            "aten::max_unpool2d",
                            "aten::mish_backward",
                            "aten::mse_loss",
                            "aten::native_channel_shuffle",
                            "aten::pixel_shuffle",
                            "aten::roll",
                            "aten::rsub",
                            "aten::slice_scatter",
                            "aten::smooth_l1_loss",
                            "aten::soft_margin_loss",
                            "aten::soft_margin_loss_backward",
                            "aten::softplus_backward"};
const Names kNotContiguous{"aten::__lshift__",
                           "aten::__rshift__",
                           "aten::_conj_physical",
                           "aten::add.Scalar",
                           "aten::addcdiv",
                           "aten::addcmul",
                           "aten::angle",
                           "aten::clone",
                           "aten::frexp",
                           "aten::lerp",
                           "aten::nan_to_num",
                           "aten::polygamma",
                           "aten::round",
                           "aten::rrelu_with_noise",
                           "aten::sigmoid",
                           "aten::silu",
                           "aten::special_airy_ai",
                           "aten::special_bessel_y0",
                           "aten::special_bessel_y1",
                           "aten::special_chebyshev_polynomial_t",
                           "aten::special_chebyshev_polynomial_u",
                           "aten::special_chebyshev_polynomial_v",
                           "aten::special_chebyshev_polynomial_w",
                           "aten::special_erfcx",
                           "aten::special_hermite_polynomial_h",
                           "aten::special_hermite_polynomial_he",
                           "aten::special_laguerre_polynomial_l",
                           "aten::special_legendre_polynomial_p",
                           "aten::special_modified_bessel_i0",
                           "aten::special_modified_bessel_i1",
                           "aten::special_modified_bessel_k0",
                           "aten::special_modified_bessel_k1",
                           "aten::special_ndtri",
                           "aten::special_scaled_modified_bessel_k0",
                           "aten::special_scaled_modified_bessel_k1",
                           "aten::special_shifted_chebyshev_polynomial_t",
                           "aten::special_shifted_chebyshev_polynomial_u",
                           "aten::special_shifted_chebyshev_polynomial_v",
                           "aten::special_shifted_chebyshev_polynomial_w",
                           "aten::sub.Scalar",
                           "aten::where",
                           "aten::zero"};

const TypeSet kHalf = type_bit(at::kHalf);
const TypeSet kReducedFloats = type_bit(at::kBFloat16) | kHalf;
const TypeSet kIntegers = type_bit(at::kByte) | type_bit(at::kChar) | type_bit(at::kShort) |
                          type_bit(at::kInt) | type_bit(at::kLong);
const TypeSet kBoolean = type_bit(at::kBool);

// Accelerators compute these in types for which the CPU has no kernel: CUDA in those that torch's
// own operator database names, an HPU in those of the vendor's tests (lerp, uniform_, erfcx) and
// in all that its gather and resize have (nearest).
const std::unordered_map<std::string, TypeSet> kWidened{
    {"aten::_cdist_forward", kReducedFloats},
    {"aten::_cdist_backward", kReducedFloats},
    {"aten::_pdist_forward", kReducedFloats},
    {"aten::_pdist_backward", kReducedFloats},
    {"aten::multi_margin_loss", kReducedFloats},
    {"aten::multi_margin_loss_backward", kReducedFloats},
    {"aten::multilabel_margin_loss_forward", kReducedFloats},
    {"aten::multilabel_margin_loss_backward", kReducedFloats},
    {"aten::special_erfcx", kReducedFloats},
    {"aten::avg_pool3d", kReducedFloats},
    {"aten::avg_pool3d_backward", kReducedFloats},
    {"aten::_upsample_bilinear2d_aa", kReducedFloats},
    {"aten::_upsample_bilinear2d_aa_backward", kReducedFloats},
    {"aten::_upsample_bicubic2d_aa", kReducedFloats},
    {"aten::_upsample_bicubic2d_aa_backward", kReducedFloats},
    {"aten::rrelu_with_noise", kHalf},
    {"aten::rrelu_with_noise_", kHalf},
    {"aten::rrelu_with_noise_backward", kHalf},
    {"aten::polygamma", kHalf},
    {"aten::histc", kIntegers},
    {"aten::abs", kBoolean},
    {"aten::lerp", kIntegers},
    {"aten::lerp_", kIntegers},
    {"aten::uniform_", kIntegers},
    {"aten::upsample_nearest1d", kIntegers | kBoolean},
    {"aten::upsample_nearest2d", kIntegers | kBoolean},
    {"aten::upsample_nearest3d", kIntegers | kBoolean},
    {"aten::_upsample_nearest_exact1d", kIntegers | kBoolean},
    {"aten::_upsample_nearest_exact2d", kIntegers | kBoolean},
    {"aten::_upsample_nearest_exact3d", kIntegers | kBoolean}};
const Names kWidensInt32Index{"aten::take"};

// They ask what a tensor is, not what is in it.
const Names kMetadataOnly{"aten::is_set_to", "aten::_assert_tensor_metadata"};

bool has_tag(const c10::OperatorHandle& op, at::Tag tag) {
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

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
  info.draws_without_generator =
      has_tag(op, at::Tag::nondeterministic_seeded) && info.generator_argument < 0;
  info.is_foreign = name.rfind("aten::", 0) != 0;
  info.is_read = name == "aten::_local_scalar_dense";
  info.has_contiguous_results = has_contiguous_results(op);
  const auto widened = kWidened.find(name);
  if (widened != kWidened.end()) info.widened = widened->second;
  info.widens_int32_index = info.mutated_arguments.empty() && kWidensInt32Index.count(name) > 0;
}

void read_launches(const c10::OperatorHandle& op, OpInfo& info) {
  const std::string& name = op.operator_name().name;
  info.launches = !info.is_view && !info.is_read && !has_tag(op, at::Tag::inplace_view) &&
                  kMetadataOnly.count(name) == 0;
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

bool has_contiguous_results(const c10::OperatorHandle& op) {
  c10::OperatorName name = op.operator_name();
  if (kAlsoContiguous.count(name.name) > 0) return true;
  const bool is_foreach = name.name.rfind(kForeach, 0) == 0;
  if (is_foreach) name.name = "aten::" + name.name.substr(kForeach.size());
  return (has_tag(op, at::Tag::pointwise) || is_foreach) &&
         kNotContiguous.count(name.name) == 0 && kNotContiguous.count(full_name(name)) == 0;
}

bool has_layout_of_its_own(const c10::OperatorHandle& op) {
  if (op.operator_name().name.rfind(kForeach, 0) == 0) return false;  // that of each operator in it
  const auto& returns = op.schema().returns();
  const bool is_new =
      std::all_of(returns.begin(), returns.end(),
                  [](const c10::Argument& each) { return each.alias_info() == nullptr; });
  return is_new && (has_contiguous_results(op) ||
                    (!op.operator_name().overload_name.empty() &&
                     kNotContiguous.count(full_name(op.operator_name())) > 0));
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
