#include "runtime/exit.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "runtime/device.h"

namespace hpu_sim {

void drain_autograd() {
  c10::InferenceMode no_inference(false);
  c10::AutoGradMode with_grad(true);
  // A backward of its own: the thread does one task after the other, and frees each before the
  // next. Its tensors are unknown to Python, so freeing them needs no lock.
  auto leaf = at::empty({0}, at::TensorOptions(hpu_device()).dtype(at::kFloat));
  leaf.set_requires_grad(true);
  leaf.sum().backward();
}

}  // namespace hpu_sim
