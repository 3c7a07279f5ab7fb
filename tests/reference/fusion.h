/// What is fused with a convolution: what is done to its input, its output and their gradients, per channel.
#pragma once

#include "reference/activation.h"
#include "reference/array.h"

namespace fusedsc::reference {

/// activation(scale[c]*x + shift[c]); an empty vector stands for 1 or 0.
struct Affine {
  Vector scale, shift;
  Activation activation = Activation::identity;
};

/// scale[c]*x + shift[c]
Array affine(const Precision& precision, const Array& x, const Affine& map);

/// activation(scale[c]*x + shift[c])
Array apply(const Precision& precision, const Array& x, const Affine& map);

/// grad * activation'(scale[c]*x + shift[c])
Array apply_backward(const Precision& precision, const Array& grad, const Array& x, const Affine& map);

Array add(const Precision& precision, const Array& a, const Array& b);

/// Every element rounded to the tensors' type.
Array stored(const Precision& precision, const Array& x);

struct Moments {
  Vector mean, m2;
};
Moments moments(const Precision& precision, const Array& x);

/// scale[c]*grad + output_scale[c]*output + offset[c]
struct GradientAffine {
  Vector scale, output_scale, offset;
};
Array apply(const Precision& precision, const Array& grad, const Array& output, const GradientAffine& map);

/// Per channel, sum of g and of g*(x - mean).
struct Sums {
  Vector grad, grad_times_centered;
};
Sums gradient_sums(const Precision& precision, const Array& grad, const Array& x, const Vector& mean);

}  // namespace fusedsc::reference
