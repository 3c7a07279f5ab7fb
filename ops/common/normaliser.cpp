#include "fusedsc/common/normaliser.h"

#include <algorithm>
#include <cmath>

#include "fusedsc/common/channel_values.h"

namespace fusedsc {
namespace {

template <class T>
void normalise_as(const Normaliser& by, const ConstChannelVector& mean, const ConstChannelVector& m2s,
                  std::int64_t values) {
  const auto count = static_cast<double>(std::max<std::int64_t>(values, 1));
  for (std::int64_t c = 0; c < mean.size; ++c) {
    const double m2 = value_or(m2s, c, T(0));
    const T invstd = static_cast<T>(1 / std::sqrt(m2 / count + by.eps)), scale = value_or(by.weight, c, T(1)) * invstd;
    put(by.variance, c, static_cast<T>(m2 / std::max(count - 1, 1.0)));
    put(by.invstd, c, invstd);
    put(by.shift, c, value_or(by.bias, c, T(0)) - value_or(mean, c, T(0)) * scale);
    put(by.scale, c, scale);
  }
}

template <class T>
void normalise_as(const GradientSums& sums, std::int64_t values) {
  const GradientNormaliser& by = sums.normaliser;
  const double inverse_count = 1 / static_cast<double>(std::max<std::int64_t>(values, 1));
  for (std::int64_t c = 0; c < sums.mean.size; ++c) {
    const double invstd = value_or(by.invstd, c, T(1)), scale = invstd * value_or(by.weight, c, T(1));
    const double sum = value_or(sums.grad, c, T(0)), centered = value_or(sums.grad_times_centered, c, T(0));
    double output_scale = 0, offset = 0;  // and not sums times zero: one image's NaN is not the others'
    if (by.training) {
      // dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean))
      output_scale = -scale * invstd * invstd * centered * inverse_count;
      offset = -scale * sum * inverse_count - output_scale * value_or(sums.mean, c, T(0));
    }
    put(by.grad_scale, c, static_cast<T>(scale));
    put(by.output_scale, c, static_cast<T>(output_scale));
    put(by.offset, c, static_cast<T>(offset));
    put(by.grad_weight, c, static_cast<T>(centered * invstd));
    put(by.grad_bias, c, static_cast<T>(sum));
  }
}

}  // namespace

void normalise(const Normaliser& by, const ConstChannelVector& mean, const ConstChannelVector& m2, std::int64_t count) {
  if (mean.dtype == DataType::float64) normalise_as<double>(by, mean, m2, count);
  else normalise_as<float>(by, mean, m2, count);
}

void normalise(const GradientSums& sums, std::int64_t count) {
  if (sums.mean.dtype == DataType::float64) normalise_as<double>(sums, count);
  else normalise_as<float>(sums, count);
}

}  // namespace fusedsc
