/// Zero-filling through strides, for the results of empty problems.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

/// Sets every element to zero; does nothing where data is null. Throws Unsupported for memory of a GPU.
void clear(const TensorView& tensor);
void clear(const ChannelVector& vector);

}  // namespace fusedsc
