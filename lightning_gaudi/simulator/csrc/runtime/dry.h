// A dry card: its large tensors have sizes, types and addresses, and nothing is computed of them. So
// a model that is larger than the host can be set up and stepped through, to see what memory it
// will take. Kernels are those of torch's device "meta".
//
// Small tensors have values, and so have larger ones of integers and booleans that come from the
// host, with all that is computed of them: what a program looks at to decide how it goes on
// (labels, lengths, masks, metrics, what libraries say of themselves) is there to be looked at. What
// has no values reads as zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>

namespace hpu_sim {

extern std::atomic<bool> g_is_dry;
inline bool is_dry() { return g_is_dry.load(std::memory_order_relaxed); }

/// Have this process's card be dry, before it is used.
void set_dry();

/// A call with no more bytes, arguments and results together, is computed though the card is dry,
/// and no more are copied. A weight of a large model has more.
inline constexpr size_t kComputedBytes = size_t{1} << 20;

/// The same for integers and booleans whose values are known: a batch of 64 texts has 1 MiB.
inline constexpr size_t kKnownBytes = size_t{1} << 24;

/// The most that is read to find the size of a result which depends on values.
inline constexpr size_t kSizedBytes = size_t{1} << 30;

/// What is at most zeroed where it comes from a dry card to the host: more would take memory.
inline constexpr size_t kZeroedBytes = size_t{1} << 28;

/// Whether a dry card has the values of a tensor, of its own or of the host.
bool has_values(const at::Tensor& tensor);

/// A dry card no longer has the values of what is in the memory of `tensor`, or never had them.
void lose_values(const at::Tensor& tensor);

/// Bytes of tensors, and what of them may be computed, or copied, on a dry card.
class Amount {
 public:
  void add(const at::Tensor& tensor);

  /// Whether all that was added has values.
  bool is_known() const { return is_known_; }
  /// Whether it is so little that it is computed though the card is dry.
  bool is_small() const;
  size_t num_bytes() const { return num_float_bytes_ + num_integer_bytes_; }

 private:
  size_t num_float_bytes_ = 0;
  size_t num_integer_bytes_ = 0;  ///< also of booleans, and not of bytes, which are pictures
  bool is_known_ = true;
};

/// Addresses that nobody else has, and that read as zero; they take no memory until written.
c10::DataPtr reserve_addresses(size_t num_bytes);

}  // namespace hpu_sim
