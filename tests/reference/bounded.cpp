#include "reference/bounded.h"

namespace fusedsc::reference {

Precision::Precision(DataType dtype) {
  const bool is_double = dtype == DataType::float64;
  accumulation = is_double ? 0x1p-52 : 0x1p-23;
  storage = 0;
  tiny = is_double ? 0 : 0x1p-126;
  if (dtype == DataType::float16) {
    storage = 0x1p-11;
    tiny = 0x1p-25;
  }
  if (dtype == DataType::bfloat16) storage = 0x1p-8;
}

}  // namespace fusedsc::reference
