#include "distributed/reduce.h"

#include <ATen/ATen.h>

#include <cstring>

#include "statistics/graph.h"

namespace hpu_sim {
namespace {

using c10d::ReduceOp;

const char* name_of(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "an unknown operation";
  }
}

// The vendor's bridge divides integers in fp32 and converts the quotient back, towards zero.
void divide(at::Tensor tensor, int64_t divisor) {
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    tensor.div_(divisor, "trunc");
  } else {
    tensor.div_(divisor);
  }
}

}  // namespace

std::function<void()> translate_reduction(ReduceOp& op, const Tensors& reduced, int num_ranks) {
  const bool is_bool = !reduced.empty() && reduced[0].scalar_type() == at::kBool;
  switch (op.op_) {
    case ReduceOp::SUM:
      if (is_bool) op = ReduceOp(ReduceOp::MAX);
      return nullptr;
    case ReduceOp::PRODUCT:
      if (is_bool) op = ReduceOp(ReduceOp::MIN);
      return nullptr;
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      return nullptr;
    case ReduceOp::AVG:
      TORCH_CHECK(!is_bool, "HCCL cannot average bool tensors by ReduceOp.AVG. Convert them, or ",
                  "reduce by SUM (or) or PRODUCT (and).");
      TORCH_CHECK(!has_lazy_collectives(), "With PT_HPU_ENABLE_LAZY_COLLECTIVES=1 HCCL has no ",
                  "ReduceOp.AVG. Reduce by SUM and divide, or leave that variable unset.");
      op = ReduceOp(ReduceOp::SUM);
      return [reduced, num_ranks] {
        for (const auto& tensor : reduced) divide(tensor, num_ranks);
      };
    default:
      TORCH_CHECK(false, "HCCL reduces by SUM, AVG, MIN, MAX or PRODUCT, got ", name_of(op),
                  ". Use one of these, or gather and reduce; for PREMUL_SUM multiply first.");
  }
}

void check_divisible(const char* collective, const ReduceOp& op, const at::Tensor& output) {
  const auto type = output.scalar_type();
  const bool is_list = std::strcmp(collective, "reduce_scatter") == 0;
  TORCH_CHECK(op.op_ != ReduceOp::AVG || !at::isIntegralType(type, /*includeBool=*/false) ||
                  !(is_list || type == at::kInt || type == at::kLong),
              "HCCL's ", collective, " cannot average integers by ReduceOp.AVG. Reduce by SUM and ",
              "divide, or convert the tensors to float32.");
}

}  // namespace hpu_sim
