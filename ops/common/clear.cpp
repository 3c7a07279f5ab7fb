#include "fusedsc/common/clear.h"

#include <cstring>

#include "fusedsc/common/status.h"

namespace fusedsc {
namespace {

void check_is_here(Device device) {
  if (device == Device::cpu) return;
  throw Unsupported(
      "an empty batch on a GPU: there is nothing to compute; set gradients and statistics to zero instead");
}

}  // namespace

void clear(const TensorView& tensor) {
  if (!tensor) return;
  check_is_here(tensor.device);
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
  if (!vector) return;
  check_is_here(vector.device);
  std::memset(vector.data, 0, static_cast<std::size_t>(vector.size) * size_of(vector.dtype));
}

}  // namespace fusedsc
