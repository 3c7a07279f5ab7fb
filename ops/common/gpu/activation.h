/// Activations and their derivatives on arrays in registers, as PyTorch defines them.
#pragma once

#include "fusedsc/common/gpu/vector.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu {

FUSEDSC_DEVICE float exponential(float x) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __expf(x);  // within 2 units in the last place plus |x| roundings of its argument
#else
  return std::exp(x);
#endif
}
FUSEDSC_DEVICE double exponential(double x) { return exp(x); }

/// Within 2 units in the last place, and 0 for divisors beyond 2^126: a quarter of the instructions, and no branch.
FUSEDSC_DEVICE float quotient(float a, float b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}
FUSEDSC_DEVICE double quotient(double a, double b) { return a / b; }

template <class A>
FUSEDSC_DEVICE A clamped(A z, A low, A high) {
  return propagating_min(propagating_max(z, low), high);
}

template <class A>
FUSEDSC_DEVICE A sigmoid(A z) {
  return quotient(A(1), A(1) + exponential(-z));
}

/// z = activation(z), all of them: one branch for the lot.
template <int kCount, class A>
FUSEDSC_DEVICE void activate(Activation activation, A (&z)[kCount]) {
  if (activation == Activation::identity) return;
  if (activation == Activation::relu || activation == Activation::relu6) {
    const A high = activation == Activation::relu6 ? A(6) : A(__builtin_huge_valf());
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = clamped(z[i], A(0), high);
  } else if (activation == Activation::silu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = quotient(z[i], A(1) + exponential(-z[i]));
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = z[i] * clamped(z[i] + A(3), A(0), A(6)) * A(1.0 / 6);
  }
}

/// g *= activation'(z); at a kink PyTorch's value.
template <int kCount, class A>
FUSEDSC_DEVICE void activate_backward(Activation activation, const A (&z)[kCount], A (&g)[kCount]) {
  if (activation == Activation::identity) return;
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) g[i] = z[i] > A(0) ? g[i] : A(0);
  } else if (activation == Activation::relu6) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) g[i] = z[i] > A(0) && z[i] < A(6) ? g[i] : A(0);
  } else if (activation == Activation::silu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A s = sigmoid(z[i]);
      g[i] *= s * (A(1) + z[i] * (A(1) - s));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A slope = z[i] * A(1.0 / 3) + A(0.5);
      g[i] *= z[i] <= A(-3) ? A(0) : z[i] >= A(3) ? A(1) : slope;
    }
  }
}

}  // namespace fusedsc::gpu
