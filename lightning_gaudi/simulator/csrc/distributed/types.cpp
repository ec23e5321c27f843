#include "distributed/types.h"

#include <ATen/ATen.h>

#include "rules/rules.h"

namespace hpu_sim {

void check_types(const char* collective, const Tensors& tensors, const Asked& asked) {
  check_collective(collective, {tensors, asked.reduction, asked.has_split_sizes});
  check_same_types(collective, tensors);
}

void check_same_types(const char* collective, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == tensors[0].scalar_type(), "HCCL's ", collective,
                     " takes tensors of one type, got ",
                     type_names(type_bit(tensors[0].scalar_type())), " and ",
                     type_names(type_bit(tensor.scalar_type())), ". Convert one of them.");
  }
}

void check_same_sizes(const char* collective, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.numel() == tensors[0].numel(), "HCCL's ", collective,
                " takes lists of tensors of one size, got ", tensors[0].numel(), " and ",
                tensor.numel(), " elements. Pad them, or use all_to_all_single with split sizes.");
  }
}

}  // namespace hpu_sim
