#include "fusedsc/common/clear.h"

#include <cstring>

namespace fusedsc {

void clear(const TensorView& tensor) {
  if (!tensor) return;
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));  // zero is all bits zero in every type
  for (std::int64_t n = 0; n < tensor.sizes[0]; ++n) {
    for (std::int64_t c = 0; c < tensor.sizes[1]; ++c) {
      for (std::int64_t h = 0; h < tensor.sizes[2]; ++h) {
        for (std::int64_t w = 0; w < tensor.sizes[3]; ++w) {
          const std::int64_t at =
              n * tensor.strides[0] + c * tensor.strides[1] + h * tensor.strides[2] + w * tensor.strides[3];
          std::memset(static_cast<char*>(tensor.data) + at * bytes, 0, static_cast<std::size_t>(bytes));
        }
      }
    }
  }
}

void clear(const ChannelVector& vector) {
  if (vector) std::memset(vector.data, 0, static_cast<std::size_t>(vector.size) * size_of(vector.dtype));
}

}  // namespace fusedsc
