#include "fusedsc/fused/batch_norm_seam.h"

#include <cmath>
#include <type_traits>

#include "fusedsc/common/checks.h"

namespace fusedsc {
namespace {

/// Calls body with a value of the type that the vectors have.
template <class Body>
void with_type_of(const ConstChannelVector& vector, const Body& body) {
  vector.dtype == DataType::float64 ? body(double()) : body(float());
}

template <class T>
T value_or(const ConstChannelVector& vector, std::int64_t channel, T missing) {
  return vector ? static_cast<const T*>(vector.data)[channel] : missing;
}

template <class T>
void put(const ChannelVector& vector, std::int64_t channel, T value) {
  if (vector) static_cast<T*>(vector.data)[channel] = value;
}

}  // namespace

void batch_norm_affine(ConstChannelVector weight, ConstChannelVector bias, ConstChannelVector mean,
                       ConstChannelVector invstd, ChannelVector scale, ChannelVector shift) {
  check_channels("weight", weight, mean.size, mean.dtype);
  check_channels("bias", bias, mean.size, mean.dtype);
  check_channels_given("invstd", invstd, mean.size, mean.dtype);
  check_channels_given("scale", scale, mean.size, mean.dtype);
  check_channels_given("shift", shift, mean.size, mean.dtype);
  with_type_of(mean, [&]<class T>(T) {
    for (std::int64_t c = 0; c < mean.size; ++c) {
      const T factor = value_or(weight, c, T(1)) * value_or(invstd, c, T(1));
      put(shift, c, value_or(bias, c, T(0)) - value_or(mean, c, T(0)) * factor);
      put(scale, c, factor);
    }
  });
}

void batch_norm_invstd(ConstChannelVector m2, std::int64_t count, double eps, ChannelVector invstd) {
  check_channels_given("invstd", invstd, m2.size, m2.dtype);
  check(count > 0, "count: it is ", count, "; BatchNorm needs at least one value per channel");
  with_type_of(m2, [&]<class T>(T) {
    for (std::int64_t c = 0; c < m2.size; ++c) {
      const double variance = static_cast<double>(value_or(m2, c, T(0))) / static_cast<double>(count);
      put(invstd, c, static_cast<T>(1 / std::sqrt(variance + eps)));
    }
  });
}

void batch_norm_backward_coefficients(const BatchNormBackward& arguments) {
  const BatchNormBackward& a = arguments;
  const std::int64_t channels = a.mean.size;
  check(a.count > 0, "count: it is ", a.count, "; BatchNorm needs at least one value per channel");
  check_channels("weight", a.weight, channels, a.mean.dtype);
  check_channels_given("invstd", a.invstd, channels, a.mean.dtype);
  check_channels_given("sum_grad", a.sum_grad, channels, a.mean.dtype);
  check_channels_given("sum_grad_times_centered", a.sum_grad_times_centered, channels, a.mean.dtype);
  check_channels_given("grad_scale", a.grad_scale, channels, a.mean.dtype);
  check_channels_given("output_scale", a.output_scale, channels, a.mean.dtype);
  check_channels_given("offset", a.offset, channels, a.mean.dtype);
  check_channels("grad_weight", a.grad_weight, channels, a.mean.dtype);
  check_channels("grad_bias", a.grad_bias, channels, a.mean.dtype);
  with_type_of(a.mean, [&]<class T>(T) {
    const double inverse_count = 1 / static_cast<double>(a.count);
    for (std::int64_t c = 0; c < channels; ++c) {
      const double invstd = value_or(a.invstd, c, T(1)), scale = invstd * value_or(a.weight, c, T(1));
      const double sum = value_or(a.sum_grad, c, T(0)), centered = value_or(a.sum_grad_times_centered, c, T(0));
      // dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean))
      const double output_scale = a.training ? -scale * invstd * invstd * centered * inverse_count : 0;
      const double offset = a.training ? -scale * sum * inverse_count - output_scale * value_or(a.mean, c, T(0)) : 0;
      put(a.grad_scale, c, static_cast<T>(scale));
      put(a.output_scale, c, static_cast<T>(output_scale));
      put(a.offset, c, static_cast<T>(offset));
      put(a.grad_weight, c, static_cast<T>(centered * invstd));
      put(a.grad_bias, c, static_cast<T>(sum));
    }
  });
}

}  // namespace fusedsc
