/// Activations and their derivatives on arrays in registers, as PyTorch defines them.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/normal_tail.h"
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

template <class A>
struct Normal {
  A exponential;   ///< exp(-z^2/2)
  A distribution;  ///< up to z
};

template <class A>
FUSEDSC_DEVICE Normal<A> normal(A z) {
  constexpr NormalTail<A> kTail{};
  A t = z < A(0) ? -z : z;
  if constexpr (sizeof(A) == 8) t = t > kTail.most ? kTail.most : t;  // whose square is a number
  const A w = quotient(A(1), A(1) + kTail.rate * t), v = w - kTail.centre;
  A polynomial = kTail.polynomial[0];
#pragma unroll
  for (int i = 1; i < static_cast<int>(sizeof kTail.polynomial / sizeof(A)); ++i) {
    polynomial = polynomial * v + kTail.polynomial[i];
  }
  const A square = t * t;
  A exponential = gpu::exponential(A(-0.5) * square);
  // Which amplifies the rounding of t^2; in single precision less than its own error.
  if constexpr (sizeof(A) == 8) exponential -= exponential * (A(0.5) * fma(t, t, -square));
  const A tail = exponential * w * polynomial;
  return {exponential, z < A(0) ? tail : A(1) - tail};
}

/// z = gelu(z)
template <int kCount, class A>
FUSEDSC_DEVICE void gelu(A (&z)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] *= normal(z[i]).distribution;
}

/// z = activation(z), all of them: one branch for the lot. Not GELU, which takes more registers than others.
template <int kCount, class A>
FUSEDSC_DEVICE void activate_but_gelu(Activation activation, A (&z)[kCount]) {
  if (activation == Activation::identity) return;
  if (activation == Activation::relu || activation == Activation::relu6) {
    const float infinity = __builtin_bit_cast(float, 0x7f800000);
    const A high = activation == Activation::relu6 ? A(6) : A(infinity);
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

/// z = activation(z), whichever.
template <int kCount, class A>
FUSEDSC_DEVICE void activate(Activation activation, A (&z)[kCount]) {
  if (activation == Activation::gelu) gelu(z);
  else activate_but_gelu(activation, z);
}

/// z = activation(z); kClamps: it is one that only clamps, and there is no branch.
template <bool kClamps, int kCount, class A>
FUSEDSC_DEVICE void activate_by(Activation activation, A (&z)[kCount]) {
  if constexpr (kClamps) {
    const float infinity = __builtin_bit_cast(float, 0x7f800000);
    const A low = activation == Activation::identity ? -A(infinity) : A(0);
    const A high = activation == Activation::relu6 ? A(6) : A(infinity);
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = clamped(z[i], low, high);
  } else {
    activate(activation, z);
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
  } else if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Normal<A> at = normal(z[i]);
      g[i] *= z[i] * (at.exponential * A(kNormalPeak)) + at.distribution;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A slope = z[i] * A(1.0 / 3) + A(0.5);
      g[i] *= z[i] <= A(-3) ? A(0) : z[i] >= A(3) ? A(1) : slope;
    }
  }
}

/// Likewise.
template <bool kClamps, int kCount, class A>
FUSEDSC_DEVICE void activate_backward_by(Activation activation, const A (&z)[kCount], A (&g)[kCount]) {
  if constexpr (kClamps) {
    const bool is_identity = activation == Activation::identity;
    const float infinity = __builtin_bit_cast(float, 0x7f800000);
    const A high = activation == Activation::relu6 ? A(6) : A(infinity);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // An infinite z is beyond 6, but not beyond what clamps from below alone.
      const bool passes = z[i] > A(0) && (z[i] < high || activation == Activation::relu);
      g[i] = passes || is_identity ? g[i] : A(0);
    }
  } else {
    activate_backward(activation, z, g);
  }
}

}  // namespace fusedsc::gpu
