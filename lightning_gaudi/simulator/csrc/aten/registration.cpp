#include "aten/registration.h"

#include "aten/fallback.h"
#include "aten/foreach.h"
#include "aten/op_info.h"

namespace hpu_sim {

void for_each_aten_op(
    const std::function<void(const c10::OperatorHandle& op, const std::string& name)>& visit) {
  const std::string prefix = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(prefix, 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (op.has_value()) visit(*op, full_name(name).substr(prefix.size()));
  }
}

torch::Library& permanent_library(const std::string& name_space, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

void install_direct_kernels() {
  using c10::DispatchKey;
  torch::Library& library = permanent_library("aten", DispatchKey::HPU);
  for_each_aten_op([&](const c10::OperatorHandle& op, const std::string& name) {
    const bool has_explicit =
        op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
        op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
    const bool has_composite =
        has_explicit || op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    // The CPU runs the composite kernel of a _foreach_ operator, on all aliases in one call.
    const bool is_of_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU) ||
                           is_foreach_of_card(name) || (has_explicit && has_layout_of_its_own(op));
    if (has_composite && is_of_cpu && !op.hasKernelForDispatchKey(DispatchKey::HPU)) {
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
    }
  });
}

TORCH_LIBRARY_IMPL(_, HPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

}  // namespace hpu_sim
