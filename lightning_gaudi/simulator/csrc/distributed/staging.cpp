#include "distributed/staging.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include "aten/alias.h"
#include "runtime/dry.h"

namespace hpu_sim {
namespace {

/// A type of the same size that gloo knows; itself if gloo does.
at::ScalarType moved_as(at::ScalarType type) {
  if (c10::isFloat8Type(type)) return at::kByte;
  return type == at::kShort ? at::kHalf : type;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

}  // namespace

void check_writable(const at::Tensor& tensor) {
  TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
              "HCCL cannot write into a tensor whose elements share memory, as those of expand() "
              "do: its sizes are ",
              tensor.sizes(), ", its strides ", tensor.strides(),
              ". Pass tensor.clone(), and use what it then holds.");
}

at::Tensor Staging::stage(const at::Tensor& tensor, bool is_read, bool is_written) {
  if (is_written) {
    check_writable(tensor);
    if (is_dry() && tensor.nbytes() > kComputedBytes) lose_values(tensor);
  }
  at::Tensor alias = unowning_cpu_alias(tensor);
  held_.push_back(tensor);
  const bool is_cast = purpose_ == Purpose::kReduce && c10::isFloat8Type(alias.scalar_type());
  if (!is_plain(alias) || is_cast) {
    auto options = alias.options().dtype(is_cast ? at::kFloat : alias.scalar_type());
    at::Tensor copy = at::empty(alias.sizes(), options);
    if (is_read && !is_dry()) copy.copy_(alias);
    if (is_written) copies_.emplace_back(alias, copy);
    alias = copy;
  }
  const auto type = moved_as(alias.scalar_type());
  return type == alias.scalar_type() ? alias : alias.view(type);
}

Tensors Staging::stage(const Tensors& tensors, bool is_read, bool is_written) {
  Tensors result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(stage(tensor, is_read, is_written));
  return result;
}

TensorLists Staging::stage(const TensorLists& lists, bool is_read, bool is_written) {
  TensorLists result;
  result.reserve(lists.size());
  for (const auto& list : lists) result.push_back(stage(list, is_read, is_written));
  return result;
}

std::function<void()> Staging::after(std::function<void()> finish) {
  if (copies_.empty()) return finish;
  return [finish = std::move(finish), copies = std::move(copies_)] {
    if (finish) finish();
    for (const auto& [target, copy] : copies) target.copy_(copy);
  };
}

at::Tensor apart_from(const at::Tensor& read, const Tensors& written) {
  for (const auto& tensor : written) {
    // Each alias has a storage of its own over the memory.
    const bool is_same = read.storage().data() == tensor.storage().data();
    if (is_same && read.numel() > 0 && !is_dry()) return read.clone();
  }
  return read;
}

at::Tensor flattened(const Tensors& tensors) {
  if (is_dry()) {
    int64_t num_elements = 0;
    for (const auto& tensor : tensors) num_elements += tensor.numel();
    return at::empty({num_elements}, tensors.at(0).options());
  }
  Tensors flat;
  flat.reserve(tensors.size());
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

}  // namespace hpu_sim
