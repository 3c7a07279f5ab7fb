/// The device headers that generated kernels are made of, as this library carries them: the very text that its own
/// kernels were compiled from.
#pragma once

#include <span>

namespace fusedsc::tuning {

struct DeviceHeader {
  const char* name;  ///< as it is included: "fusedsc/common/gpu/tensors/vector.h", "cstdint"
  const char* text;
};

std::span<const DeviceHeader> device_headers();
/// Of all of them: another one where any has changed.
const char* device_headers_hash();

}  // namespace fusedsc::tuning
