#include "fusedsc/common/channel_values.h"
#include "fusedsc/common/normaliser.h"
#include "fusedsc/fused/batch_norm/batch_norm_affine_cpu.h"

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

std::string why_not(const BatchNormFinalizeArguments& a) { return needs_device(Device::cpu, a.mean.device); }

}  // namespace

Implementation<BatchNormFinalizeArguments> batch_norm_finalize_cpu() {
  return {"cpu", why_not, plan_of_nothing<BatchNormFinalizeArguments, finalize>};
}

}  // namespace fusedsc
