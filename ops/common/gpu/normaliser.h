/// A Normaliser on GPUs, and vectors of which any may be missing.
#pragma once

#include "fusedsc/common/gpu/gpu.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu {

/// vector[channel], or `otherwise` where there is no vector.
template <class A>
FUSEDSC_DEVICE A value_or(const void* vector, int channel, A otherwise) {
  return vector != nullptr ? static_cast<const A*>(vector)[channel] : otherwise;
}

template <class A>
FUSEDSC_DEVICE void put(void* vector, int channel, A value) {
  if (vector != nullptr) static_cast<A*>(vector)[channel] = value;
}

struct NormaliserParameters {
  const void *weight = nullptr, *bias = nullptr;
  double count = 1, eps = 0;
  void *invstd = nullptr, *variance = nullptr, *scale = nullptr, *shift = nullptr;

  NormaliserParameters() = default;
  NormaliserParameters(const Normaliser& by, std::int64_t count_)
      : weight(by.weight.data),
        bias(by.bias.data),
        count(count_ > 1 ? static_cast<double>(count_) : 1),
        eps(by.eps),
        invstd(by.invstd.data),
        variance(by.variance.data),
        scale(by.scale.data),
        shift(by.shift.data) {}
};

template <class A>
FUSEDSC_DEVICE void normalise(const NormaliserParameters& p, int channel, A mean, A m2) {
  const A invstd = static_cast<A>(1 / sqrt(static_cast<double>(m2) / p.count + p.eps));
  const A scale = value_or(p.weight, channel, A(1)) * invstd;
  put(p.variance, channel, static_cast<A>(m2 / (p.count > 1 ? p.count - 1 : 1)));
  put(p.invstd, channel, invstd);
  put(p.shift, channel, value_or(p.bias, channel, A(0)) - mean * scale);
  put(p.scale, channel, scale);
}

}  // namespace fusedsc::gpu
