#include "fusedsc/common/data_type.h"

namespace fusedsc {

std::size_t size_of(DataType dtype) {
  switch (dtype) {
    case DataType::float64: return 8;
    case DataType::float32: return 4;
    case DataType::float16:
    case DataType::bfloat16: return 2;
  }
  return 0;
}

const char* name_of(DataType dtype) {
  switch (dtype) {
    case DataType::float64: return "float64";
    case DataType::float32: return "float32";
    case DataType::float16: return "float16";
    case DataType::bfloat16: return "bfloat16";
  }
  return "unknown";
}

DataType accumulation_type(DataType dtype) {
  return dtype == DataType::float64 ? DataType::float64 : DataType::float32;
}

}  // namespace fusedsc
