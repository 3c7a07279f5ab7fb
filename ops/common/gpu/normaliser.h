/// Normaliser and GradientNormaliser on GPUs, and vectors of which any may be missing.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"
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

/// What a channel is normalised with, apart from its statistics: to be read before these are known.
template <class A>
struct OwnNormaliser {
  A weight, bias;

  FUSEDSC_DEVICE OwnNormaliser(const NormaliserParameters& p, int channel)
      : weight(value_or(p.weight, channel, A(1))), bias(value_or(p.bias, channel, A(0))) {}
};

template <class A>
FUSEDSC_DEVICE void normalise(const NormaliserParameters& p, const OwnNormaliser<A>& own, int channel, A mean, A m2) {
  const A invstd = static_cast<A>(1 / sqrt(static_cast<double>(m2) / p.count + p.eps));
  const A scale = own.weight * invstd;
  put(p.variance, channel, static_cast<A>(m2 / (p.count > 1 ? p.count - 1 : 1)));
  put(p.invstd, channel, invstd);
  put(p.shift, channel, own.bias - mean * scale);
  put(p.scale, channel, scale);
}

struct GradientNormaliserParameters {
  const void *weight = nullptr, *mean = nullptr, *invstd = nullptr;
  double inverse_count = 0;  ///< of g's values per channel; 0 in eval mode
  void *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr, *grad_weight = nullptr, *grad_bias = nullptr;

  GradientNormaliserParameters() = default;
  GradientNormaliserParameters(const GradientSums& sums, const ConstTensorView& x) {
    const GradientNormaliser& by = sums.normaliser;
    const std::int64_t count = x.sizes[0] * x.sizes[2] * x.sizes[3];
    weight = by.weight.data;
    mean = sums.mean.data;
    invstd = by.invstd.data;
    inverse_count = by.training ? 1 / static_cast<double>(count > 1 ? count : 1) : 0;
    grad_scale = by.grad_scale.data;
    output_scale = by.output_scale.data;
    offset = by.offset.data;
    grad_weight = by.grad_weight.data;
    grad_bias = by.grad_bias.data;
  }
};

/// Likewise.
template <class A>
struct OwnGradientNormaliser {
  A weight = 1, mean = 0, invstd = 1;

  OwnGradientNormaliser() = default;
  FUSEDSC_DEVICE OwnGradientNormaliser(const GradientNormaliserParameters& p, int channel)
      : weight(value_or(p.weight, channel, A(1))),
        mean(value_or(p.mean, channel, A(0))),
        invstd(value_or(p.invstd, channel, A(1))) {}
};

/// dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean)); sum: of g, centered: of g*(x - mean).
/// In eval mode scale * g, in halves: see gradient_prologue_of.
template <class A>
FUSEDSC_DEVICE void normalise(const GradientNormaliserParameters& p, const OwnGradientNormaliser<A>& own, int channel,
                              A sum, A centered) {
  const double invstd = own.invstd, scale = invstd * own.weight;
  const bool training = p.inverse_count > 0;
  const double output_scale = training ? -scale * invstd * invstd * centered * p.inverse_count : scale / 2;
  const double offset = training ? -scale * sum * p.inverse_count - output_scale * own.mean : 0.0;
  put(p.grad_scale, channel, static_cast<A>(training ? scale : scale / 2));
  put(p.output_scale, channel, static_cast<A>(output_scale));
  put(p.offset, channel, static_cast<A>(offset));
  put(p.grad_weight, channel, static_cast<A>(centered * invstd));
  put(p.grad_bias, channel, sum);
}

}  // namespace fusedsc::gpu
