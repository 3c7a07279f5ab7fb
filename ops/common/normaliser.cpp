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

}  // namespace

void normalise(const Normaliser& by, const ConstChannelVector& mean, const ConstChannelVector& m2, std::int64_t count) {
  if (mean.dtype == DataType::float64) normalise_as<double>(by, mean, m2, count);
  else normalise_as<float>(by, mean, m2, count);
}

}  // namespace fusedsc
