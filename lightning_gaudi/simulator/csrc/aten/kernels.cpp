// The few operators that the CPU's kernel cannot do for us: making memory, looking at it in another
// shape, and copying it across the bus.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/repeat_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "aten/alias.h"
#include "aten/dispatch_keys.h"
#include "aten/fallback.h"
#include "rules/rules.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/dry.h"
#include "statistics/counters.h"
#include "statistics/graph.h"
#include "statistics/launches.h"
#include "statistics/observer.h"

namespace hpu_sim {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<at::Device> device, optional<bool>, optional<at::MemoryFormat> format) {
  check_device(device);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  check_entering("aten::empty", type_bit(type));
  return at::detail::empty_generic(size, hpu_allocator(), kHpuKeys, type, format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout>, optional<at::Device> device, optional<bool>) {
  check_device(device);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  check_entering("aten::empty_strided", type_bit(type));
  return at::detail::empty_strided_generic(size, stride, hpu_allocator(), kHpuKeys, type);
}

// Elsewhere a tensor without memory that counts as zero: there would be nothing to alias.
Tensor zero_tensor(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout,
                   optional<at::Device> device, optional<bool> pin_memory) {
  Tensor result = empty(size, dtype, layout, device, pin_memory, std::nullopt);
  if (!is_dry()) std::memset(result.mutable_data_ptr(), 0, result.nbytes());
  return result;
}

void count_copy(const Tensor& source, const Tensor& destination, bool non_blocking) {
  const auto num_bytes = static_cast<int64_t>(source.nbytes());
  if (!destination.device().is_hpu()) {
    count_transfer(Transfer::kDeviceToHost, num_bytes);
    observe("transfer", "device_to_host", num_bytes);
  } else if (!source.device().is_hpu()) {
    count_transfer(Transfer::kHostToDevice, num_bytes);
    observe("transfer", "host_to_device", num_bytes, non_blocking ? "" : "blocking");
  } else {
    count_transfer(Transfer::kDeviceToDevice, num_bytes);
    if (is_lazy()) {
      record_copy(source, destination);
    } else {
      count_launches(1);
    }
  }
}

/// Makes memory of the host read as zero and take none, if it is torch's own; whether it was.
///
/// A dry card's values are zeros, and a checkpoint of them has gigabytes.
bool drop_pages(const Tensor& tensor) {
  const auto& data = tensor.storage().data_ptr();
  if (!tensor.is_contiguous() || data.get_deleter() != c10::GetCPUAllocator()->raw_deleter()) {
    return false;
  }
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const auto last = first + tensor.nbytes();
  const auto first_page = (first + page - 1) / page * page;
  const auto last_page = last / page * page;
  // Memory of malloc is private and anonymous: pages that are given back come again as zeros.
  if (first_page >= last_page ||
      ::madvise(reinterpret_cast<void*>(first_page), last_page - first_page, MADV_DONTNEED) != 0) {
    return false;
  }
  std::memset(reinterpret_cast<void*>(first), 0, first_page - first);
  std::memset(reinterpret_cast<void*>(last_page), 0, last - last_page);
  return true;
}

bool is_copied_dry(const Tensor& source, const Tensor& destination) {
  Amount read;
  Amount written;
  read.add(source);
  written.add(destination);
  if (!read.is_known()) lose_values(destination);
  return read.is_small() && written.is_small();
}

Tensor copy_from(const Tensor& source, const Tensor& destination, bool non_blocking) {
  touch_device();
  const bool waits = check_copy(source, destination, non_blocking);
  count_copy(source, destination, non_blocking);
  if (!is_dry() || is_copied_dry(source, destination)) {
    c10::impl::ExcludeDispatchKeyGuard guard(kKeysAboveBackend);
    AliasTable aliases;
    const Tensor written = aliases.to_cpu(destination);
    written.copy_(aliases.to_cpu(source));
    // Of what comes from the host the rules about copies know.
    if (destination.device().is_hpu() && source.device().is_hpu()) {
      check_result("aten::copy_", written);
    }
  } else if (destination.device().is_hpu()) {
    lose_values(destination);
  } else if (!drop_pages(destination) && destination.nbytes() <= kZeroedBytes) {
    destination.zero_();  // what the host had there before may be anything
  }
  if (waits) {
    host_sync("copy_to_host");
  } else if (!destination.device().is_hpu()) {
    break_graph("copy_to_host");  // what it copies has to be computed, but nobody waits for it
  }
  return destination;
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  copy_from(source, self, non_blocking);
  return self;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

Tensor& set_empty(Tensor& self) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, hpu_allocator()->allocate(0), hpu_allocator(),
      /*resizable=*/true));
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

// torch composes it of operators that a card has no kernels for; for this one it has.
Tensor repeat(const Tensor& self, IntArrayRef repeats) {
  const PausedRules paused;
  return at::native::repeat(self, repeats);
}

// Operations finish before they return, so no stream can still be using the memory.
void record_stream(Tensor&, c10::Stream) {}

const c10::OperatorHandle& find_op(const char* name) {
  return *new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

// torch sends convolutions of devices it does not know here, instead of choosing an algorithm; the
// CPU then chooses one for itself.
Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  static const auto& op = find_op("aten::convolution");
  torch::jit::Stack stack{input,    weight,     bias,           stride, padding,
                          dilation, transposed, output_padding, groups};
  cpu_fallback(op, kHpuKeys, &stack);
  return stack[0].toTensor();
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output,
                                                        const Tensor& input, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding,
                                                        IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  static const auto& op = find_op("aten::convolution_backward");
  optional<std::vector<int64_t>> bias_sizes;
  if (output_mask[2]) bias_sizes = std::vector<int64_t>{grad_output.size(1)};
  const c10::List<bool> mask({output_mask[0], output_mask[1], output_mask[2]});
  torch::jit::Stack stack{grad_output, input,      weight,         bias_sizes, stride, padding,
                          dilation,    transposed, output_padding, groups,     mask};
  cpu_fallback(op, kHpuKeys, &stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_efficientzerotensor", zero_tensor);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("set_.source_Storage",
               static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_", set_empty);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("repeat", repeat);
  library.impl("record_stream", record_stream);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace hpu_sim
