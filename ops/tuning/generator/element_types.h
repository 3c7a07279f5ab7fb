/// Element types as generated kernels name them.
#pragma once

#include "fusedsc/common/data_type.h"

namespace fusedsc::generated {

inline const char* type_of(DataType dtype) {
  switch (dtype) {
    case DataType::float16: return "fusedsc::Float16";
    case DataType::bfloat16: return "fusedsc::BFloat16";
    case DataType::float32: return "float";
    case DataType::float64: return "double";
  }
  return "";
}

}  // namespace fusedsc::generated
