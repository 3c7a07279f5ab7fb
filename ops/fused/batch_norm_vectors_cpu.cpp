#include "fusedsc/common/channel_values.h"
#include "fusedsc/common/normaliser.h"
#include "fusedsc/fused/batch_norm_seam_cpu.h"

namespace fusedsc {
namespace {

/// Calls body with a value of the type that the vectors have.
template <class Body>
void with_type_of(const ConstChannelVector& vector, const Body& body) {
  vector.dtype == DataType::float64 ? body(double()) : body(float());
}

void finalize(const BatchNormFinalizeArguments& a, const Execution&) {
  if (a.m2) return normalise(normaliser_of(a), a.mean, a.m2, a.count);
  with_type_of(a.mean, [&]<class T>(T) {
    for (std::int64_t c = 0; c < a.mean.size; ++c) {
      const T scale = value_or(a.weight, c, T(1)) * value_or(a.invstd, c, T(1));
      put(a.shift, c, value_or(a.bias, c, T(0)) - value_or(a.mean, c, T(0)) * scale);
      put(a.scale, c, scale);
    }
  });
}

void coefficients(const BatchNormCoefficientsArguments& a, const Execution&) {
  with_type_of(a.mean, [&]<class T>(T) {
    const double inverse_count = a.training ? 1 / static_cast<double>(a.count) : 0;
    for (std::int64_t c = 0; c < a.mean.size; ++c) {
      const double invstd = value_or(a.invstd, c, T(1)), scale = invstd * value_or(a.weight, c, T(1));
      const double sum = value_or(a.sum_grad, c, T(0)), centered = value_or(a.sum_grad_times_centered, c, T(0));
      // dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean))
      const double output_scale = -scale * invstd * invstd * centered * inverse_count;
      const double offset = -scale * sum * inverse_count - output_scale * value_or(a.mean, c, T(0));
      put(a.grad_scale, c, static_cast<T>(scale));
      put(a.output_scale, c, static_cast<T>(output_scale));
      put(a.offset, c, static_cast<T>(offset));
      put(a.grad_weight, c, static_cast<T>(centered * invstd));
      put(a.grad_bias, c, static_cast<T>(sum));
    }
  });
}

template <class Arguments>
std::string why_not(const Arguments& a) {
  return needs_device(Device::cpu, a.mean.device);
}

}  // namespace

Implementation<BatchNormFinalizeArguments> batch_norm_finalize_cpu() {
  return {"cpu", why_not<BatchNormFinalizeArguments>, plan_of_nothing<BatchNormFinalizeArguments, finalize>};
}

Implementation<BatchNormCoefficientsArguments> batch_norm_coefficients_cpu() {
  return {"cpu", why_not<BatchNormCoefficientsArguments>,
          plan_of_nothing<BatchNormCoefficientsArguments, coefficients>};
}

}  // namespace fusedsc
