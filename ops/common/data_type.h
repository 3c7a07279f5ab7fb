/// Element types of tensors, and the types that sums are kept in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fusedsc {

enum class DataType { float32, float64, float16, bfloat16 };

/// IEEE binary16 as stored in memory; arithmetic happens in float.
struct Float16 {
  std::uint16_t bits;
};

/// bfloat16 (the upper half of a binary32) as stored in memory; arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits;
};

/// Bytes of one element.
std::size_t size_of(DataType dtype);

/// "float32", "float64", "float16" or "bfloat16".
const char* name_of(DataType dtype);

/// The type sums are kept in, and the type of every per-channel vector (BatchNorm parameters, statistics, prologues,
/// epilogues): float64 for float64, float32 for everything else.
DataType accumulation_type(DataType dtype);

}  // namespace fusedsc
