#include "distributed/types.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <sstream>

namespace hpu_sim {
namespace {

using Types = std::vector<at::ScalarType>;

struct Row {
  const char* collective;
  Types types;
};

// Gaudi's PyTorch bridge 1.24.0, also 1.19: `hcclDataType` in backend/helpers/collective_utils.cpp,
// and what process_group_hccl_base.cpp does before it asks for one.
const std::vector<Row>& table() {
  static const auto* rows = [] {
    const Types base{at::kByte, at::kChar, at::kBool,     at::kInt,   at::kLong,
                     at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
    Types all = base;  // fp8 travels as bytes and is reduced in fp32
    all.insert(all.end(), {at::kFloat8_e4m3fn, at::kFloat8_e5m2});
    Types moved = all;  // by size alone, without a look at HCCL's types
    moved.push_back(at::kShort);
    return new std::vector<Row>{
        {"all_reduce", all},
        {"reduce", all},
        {"broadcast", moved},
        {"all_gather", all},
        {"gather", all},
        {"scatter", all},
        {"reduce_scatter", base},  // of lists: the bridge would have HCCL add fp8 up as uint8
        {"reduce_scatter_tensor", all},
        {"all_to_all", moved},  // of lists
        {"all_to_all_single", all},
        // The bridge counts elements of one byte and has HCCL move numbers of two or four.
        {"all_to_all_single with split sizes", base},
        {"send", all},
        {"recv", all},
    };
  }();
  return *rows;
}

const Row& row_of(const char* collective) {
  for (const Row& row : table()) {
    if (std::strcmp(row.collective, collective) == 0) return row;
  }
  TORCH_INTERNAL_ASSERT(false, "no types of ", collective);
}

std::string name_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    default: {  // torch's own names, but for the case: bool, bfloat16, float8_e5m2, ...
      std::string name = c10::toString(type);
      for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
      return name;
    }
  }
}

std::string names_of(const Types& types) {
  std::ostringstream names;
  for (size_t i = 0; i < types.size(); ++i) names << (i ? ", " : "") << name_of(types[i]);
  return names.str();
}

const char* advice(at::ScalarType type) {
  if (c10::isComplexType(type)) return "Pass torch.view_as_real(tensor).";
  if (c10::isFloat8Type(type)) return "Pass tensor.view(torch.uint8) to move it, or convert it.";
  return "Convert the tensor.";
}

}  // namespace

void check_types(const char* collective, const Tensors& tensors) {
  const Types& types = row_of(collective).types;
  for (const auto& tensor : tensors) {
    const auto type = tensor.scalar_type();
    TORCH_CHECK_TYPE(std::find(types.begin(), types.end(), type) != types.end(), "HCCL's ",
                     collective, " takes no tensors of ", name_of(type), ", but ", names_of(types),
                     ". ", advice(type));
    TORCH_CHECK_TYPE(type == tensors[0].scalar_type(), "HCCL's ", collective,
                     " takes tensors of one type, got ", name_of(tensors[0].scalar_type()), " and ",
                     name_of(type), ". Convert one of them.");
  }
}

std::map<std::string, std::vector<std::string>> hccl_types() {
  std::map<std::string, std::vector<std::string>> result;
  for (const Row& row : table()) {
    for (const auto type : row.types) result[row.collective].push_back(name_of(type));
  }
  return result;
}

void check_even_bytes(const char* collective, const Tensors& tensors) {
  size_t num_bytes = 0;
  for (const auto& tensor : tensors) num_bytes += tensor.nbytes();
  TORCH_CHECK(num_bytes % 2 == 0, "HCCL's ", collective, " moves an even number of bytes, got ",
              num_bytes, ". Pad the tensor by an element, or convert it to a type of two bytes.");
}

void check_same_sizes(const char* collective, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.numel() == tensors[0].numel(), "HCCL's ", collective,
                " takes lists of tensors of one size, got ", tensors[0].numel(), " and ",
                tensor.numel(), " elements. Pad them, or use all_to_all_single with split sizes.");
  }
}

}  // namespace hpu_sim
