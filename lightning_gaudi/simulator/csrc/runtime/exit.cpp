#include "runtime/exit.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "runtime/device.h"

namespace hpu_sim {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// The end of a backward.
struct End final : Node {
  variable_list apply(variable_list&&) override { return {}; }
};

// Edges own their node by an intrusive pointer since torch 2.13, and by a shared one before.
template <class Pointer>
auto owned(Node* node, int) -> decltype(Pointer::unsafe_steal_from_new(node)) {
  return Pointer::unsafe_steal_from_new(node);
}
template <class Pointer>
Pointer owned(Node* node, long) {
  return Pointer(node);
}

/// A tensor of the card without an element. Nothing is allocated, so no card is taken for it.
at::Tensor nothing() {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, hpu_device()),
                       nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::HPU),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return tensor;
}

}  // namespace

void drain_autograd() {
  // A backward of its own: the thread does one task after the other, and frees each before the
  // next. Its tensor is unknown to Python, so freeing it needs no lock.
  const auto tensor = nothing();
  auto end = owned<decltype(Edge::function)>(new End(), 0);
  end->add_input_metadata(tensor);
  torch::autograd::Engine::get_default_engine().execute(
      {Edge(std::move(end), 0)}, {tensor}, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/true, {});
}

}  // namespace hpu_sim
