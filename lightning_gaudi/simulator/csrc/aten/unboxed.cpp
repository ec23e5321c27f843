// Unboxed ways to the CPU's kernel, for the operators that steps of small models consist of.
//
// They do what the boxed fallback does. Boxing is not only slower itself: it copies each tensor
// argument, and a tensor that Python knows takes Python's lock whenever its count of C++
// references leaves one or comes back to it (incref_pyobject in c10/util/intrusive_ptr.h). Four
// such rounds are a third of what a small operator costs.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "aten/alias.h"
#include "aten/dispatch_keys.h"
#include "aten/fallback.h"
#include "aten/op_info.h"
#include "runtime/device.h"
#include "runtime/dry.h"
#include "statistics/graph.h"
#include "statistics/launches.h"

namespace hpu_sim {
namespace {

using at::Tensor;

/// Whether the argument needs nothing that only the boxed way does: checks of devices, errors, the
/// rules of the operator for the types that it watches.
template <class T>
bool is_plain(const T& argument, TypeSet watched) {
  if constexpr (std::is_same_v<T, Tensor>) {
    // A CPU tensor of no dimensions counts as a number.
    return argument.defined() && (type_bit(argument.scalar_type()) & watched) == 0 &&
           (argument.device().is_hpu() || (argument.device().is_cpu() && argument.dim() == 0));
  } else if constexpr (std::is_same_v<T, at::TensorList>) {
    return std::all_of(argument.begin(), argument.end(), [watched](const Tensor& tensor) {
      return tensor.defined() && tensor.device().is_hpu() &&
             (type_bit(tensor.scalar_type()) & watched) == 0;
    });
  }
  return true;
}

/// The argument as the CPU's kernel wants it; the caller holds what it borrows.
template <class T>
decltype(auto) on_cpu(const T& argument) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return borrowing_cpu_alias(argument);
  } else if constexpr (std::is_same_v<T, at::TensorList>) {
    std::vector<Tensor> aliases;
    aliases.reserve(argument.size());
    for (const Tensor& tensor : argument) aliases.push_back(borrowing_cpu_alias(tensor));
    return aliases;
  } else {
    return (argument);
  }
}

/// Of an argument of these types the boxed way takes care.
TypeSet watched_types(const OpInfo& info) {
  return info.rules.watched | info.widened | g_watched_results;
}

template <class Op>
const c10::OperatorHandle& handle() {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  return op;
}

template <class Op, class... Arguments>
torch::jit::Stack call_boxed(const Arguments&... arguments) {
  torch::jit::Stack stack{c10::IValue(arguments)...};
  cpu_fallback(handle<Op>(), kHpuKeys, &stack);
  return stack;
}

template <class Op, class Schema = typename Op::schema>
struct Unboxed;

/// A new tensor from others.
template <class Op, class... Arguments>
struct Unboxed<Op, Tensor(Arguments...)> {
  static Tensor call(Arguments... arguments) {
    static const OpInfo& info = op_info(handle<Op>());
    if (is_lazy() || is_dry() || !(is_plain(arguments, watched_types(info)) && ...)) {
      return call_boxed<Op>(arguments...)[0].toTensor();
    }
    touch_device();
    count_launches(1);
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    return adopt_result(Op::redispatch(kCpuKeys, on_cpu(arguments)...),
                        info.has_contiguous_results);
  }
};

/// An update in place, which never resizes.
template <class Op, class... Arguments>
struct Unboxed<Op, Tensor&(Tensor&, Arguments...)> {
  static Tensor& call(Tensor& self, Arguments... arguments) {
    static const OpInfo& info = op_info(handle<Op>());
    const TypeSet watched = watched_types(info);
    if (is_lazy() || is_dry() || !self.device().is_hpu() ||
        !(is_plain(self, watched) && ... && is_plain(arguments, watched))) {
      call_boxed<Op>(self, arguments...);
      return self;
    }
    touch_device();
    count_launches(1);
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    Tensor alias = on_cpu(self);
    Op::redispatch(kCpuKeys, alias, on_cpu(arguments)...);
    return self;
  }
};

/// New tensors, one from each of a list.
template <class Op, class... Arguments>
struct Unboxed<Op, std::vector<Tensor>(at::TensorList, Arguments...)> {
  static std::vector<Tensor> call(at::TensorList self, Arguments... arguments) {
    static const OpInfo& info = op_info(handle<Op>());
    const TypeSet watched = watched_types(info);
    if (is_lazy() || is_dry() || !(is_plain(self, watched) && ... && is_plain(arguments, watched))) {
      return call_boxed<Op>(self, arguments...)[0].toTensorVector();
    }
    touch_device();
    count_launches(1);
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    std::vector<Tensor> results = Op::redispatch(kCpuKeys, on_cpu(self), on_cpu(arguments)...);
    for (Tensor& tensor : results) {
      tensor = adopt_result(std::move(tensor), info.has_contiguous_results);
    }
    return results;
  }
};

/// An update in place of each tensor of a list, none of which is resized.
template <class Op, class... Arguments>
struct Unboxed<Op, void(at::TensorList, Arguments...)> {
  static void call(at::TensorList self, Arguments... arguments) {
    static const OpInfo& info = op_info(handle<Op>());
    const TypeSet watched = watched_types(info);
    if (is_lazy() || is_dry() || !(is_plain(self, watched) && ... && is_plain(arguments, watched))) {
      call_boxed<Op>(self, arguments...);
      return;
    }
    touch_device();
    count_launches(1);
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    Op::redispatch(kCpuKeys, on_cpu(self), on_cpu(arguments)...);
  }
};

template <class... Ops>
void register_unboxed(torch::Library& library) {
  (library.impl(full_name(c10::OperatorName(Ops::name, Ops::overload_name)).c_str(),
                TORCH_FN((&Unboxed<Ops>::call))),
   ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  namespace ops = at::_ops;
  register_unboxed<ops::add_Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::div_Tensor, ops::sqrt,
                   ops::relu, ops::threshold_backward, ops::mm, ops::addmm, ops::bmm,
                   ops::_log_softmax, ops::_log_softmax_backward_data>(library);
  // What AdamW does in place.
  register_unboxed<ops::add__Tensor, ops::mul__Tensor, ops::div__Tensor, ops::lerp__Scalar,
                   ops::addcmul_, ops::addcdiv_>(library);
  // The same for all weights of a group at once.
  register_unboxed<ops::_foreach_mul__Scalar, ops::_foreach_lerp__Scalar,
                   ops::_foreach_addcmul__Scalar, ops::_foreach_sqrt,
                   ops::_foreach_div__ScalarList, ops::_foreach_add__Scalar,
                   ops::_foreach_addcdiv__ScalarList>(library);
}

}  // namespace hpu_sim
