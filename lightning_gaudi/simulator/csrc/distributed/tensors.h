// Lists of tensors, as collectives take them.
#pragma once

#include <ATen/ATen.h>

#include "aten/alias.h"
#include "distributed/work.h"

namespace hpu_sim {

inline Tensors aliases(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(cpu_alias(tensor));
  return result;
}

inline TensorLists aliases(const TensorLists& lists) {
  TensorLists result;
  result.reserve(lists.size());
  for (const auto& list : lists) result.push_back(aliases(list));
  return result;
}

inline Tensors first(const TensorLists& lists) { return lists.empty() ? Tensors{} : lists[0]; }

inline Tensors flat_list(const TensorLists& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// All tensors end to end in one of one dimension.
inline at::Tensor flatten(const Tensors& tensors) {
  Tensors flat;
  flat.reserve(tensors.size());
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

inline void copy_flat(at::Tensor output, const at::Tensor& flat) {
  output.copy_(flat.view(output.sizes()));
}

}  // namespace hpu_sim
