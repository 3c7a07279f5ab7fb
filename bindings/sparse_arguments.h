/// What the operators that skip zeros share: checks of their arguments, and the library's struct of them.
#pragma once

#include "arguments.h"
#include "fusedsc/forward/sparse.h"
#include "operators.h"

namespace fusedsc::aten {

MaxPooling sparse_pooling_of(IntArrayRef size, IntArrayRef stride);

/// Of a convolution of a map of sizes `x`, pooled; says what does not fit.
SymSizes sparse_output_sizes_of(const SymSizes& x, const Tensor& weight, const Window& window, std::int64_t groups,
                                const MaxPooling& pooling);

/// As packed_sparse_weight_size().
c10::SymInt packed_weight_size(const Tensor& weight, std::int64_t groups);
/// `packed`, if given, must be what pack_sparse_weight() makes of the weight.
void check_packed_weight(const OptionalTensor& packed, const Tensor& x, const Tensor& weight, std::int64_t groups);

/// Without x and y. Tensors are as kernels read them.
SparseArguments sparse_arguments(const Tensor& weight, const Tensor& bias, const Window& window, std::int64_t groups,
                                 std::string_view activation, const MaxPooling& pooling, const Tensor& packed,
                                 std::string_view config);

/// There are no gradients: who wants one is told what has. `dense`: what that is.
void refuse_gradient(const char* op, const char* dense, const Tensor& x, const Tensor& weight,
                     const OptionalTensor& bias);

}  // namespace fusedsc::aten
