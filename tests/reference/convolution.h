/// Depthwise and pointwise convolution and their gradients, as plain loops. Prologues, epilogues and statistics are
/// separate steps: seams.h.
#pragma once

#include "fusedsc/common/problem.h"
#include "reference/array.h"

namespace fusedsc::reference {

/// `weight` is [C*m, 1, Kh, Kw]; an empty `bias` stands for 0.
Array depthwise(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                const Window& window);
Array depthwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Window& window, const Sizes& x_sizes);
Array depthwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x, const Window& window,
                                const Sizes& weight_sizes);

/// `weight` is [M, C/groups, 1, 1].
Array pointwise(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                std::int64_t groups = 1);
Array pointwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Sizes& x_sizes, std::int64_t groups = 1);
Array pointwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x,
                                const Sizes& weight_sizes, std::int64_t groups = 1);

}  // namespace fusedsc::reference
