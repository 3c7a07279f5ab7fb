/// The elements of vectors of which any may be missing, in host memory.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

template <class T>
T value_or(const ConstChannelVector& vector, std::int64_t channel, T missing) {
  return vector ? static_cast<const T*>(vector.data)[channel] : missing;
}

template <class T>
void put(const ChannelVector& vector, std::int64_t channel, T value) {
  if (vector) static_cast<T*>(vector.data)[channel] = value;
}

}  // namespace fusedsc
