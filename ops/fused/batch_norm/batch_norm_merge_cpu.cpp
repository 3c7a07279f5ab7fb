#include "fusedsc/fused/batch_norm/batch_norm_merge_cpu.h"

#include "fusedsc/common/normaliser.h"

namespace fusedsc {
namespace {

template <class T>
T* elements_of(const ChannelVector& vector) {
  return static_cast<T*>(vector.data);
}
template <class T>
const T* elements_of(const ConstChannelVector& vector) {
  return static_cast<const T*>(vector.data);
}

template <class T>
void merge(const BatchNormMergeArguments& a) {
  const std::int64_t channels = a.mean.size, pitch = 2 * channels + 1;
  const T* parts = elements_of<T>(a.parts);
  double total = 0;
  for (std::int64_t part = 0; part < a.count; ++part) total += parts[part * pitch + 2 * channels];
  T *mean = elements_of<T>(a.mean), *m2 = elements_of<T>(a.invstd);  // where invstd will be
  for (std::int64_t c = 0; c < channels; ++c) {
    double merged_mean = 0, merged_m2 = 0, merged = 0;
    for (std::int64_t part = 0; part < a.count; ++part) {
      const T* own = parts + part * pitch;
      const double count = own[2 * channels];
      if (count == 0) continue;
      const double delta = own[c] - merged_mean, both = merged + count;
      merged_mean += delta * (count / both);
      merged_m2 += own[channels + c] + delta * delta * (merged * count / both);
      merged = both;
    }
    mean[c] = static_cast<T>(merged_mean);
    m2[c] = static_cast<T>(merged_m2);
  }
  normalise({a.weight, a.bias, a.eps, a.invstd, a.variance, a.scale, a.shift}, a.mean, a.invstd,
            static_cast<std::int64_t>(total));
}

template <class T>
void merge(const BatchNormMergeGradientArguments& a) {
  const std::int64_t channels = a.mean.size;
  T* sums = const_cast<T*>(elements_of<T>(a.sums));  // only read
  const auto part = [&](std::int64_t first) { return ChannelVector(sums + first, a.mean.dtype, channels); };
  normalise(
      {a.mean, part(0), part(channels), {a.weight, a.invstd, true, a.grad_scale, a.output_scale, a.offset, {}, {}}},
      static_cast<std::int64_t>(sums[2 * channels]));
}

template <class Arguments>
void run(const Arguments& a, const Execution&) {
  a.mean.dtype == DataType::float64 ? merge<double>(a) : merge<float>(a);
}

template <class Arguments>
std::string why_not(const Arguments& a) {
  return needs_device(Device::cpu, a.mean.device);
}

}  // namespace

Implementation<BatchNormMergeArguments> batch_norm_merge_cpu() {
  return {"cpu", why_not<BatchNormMergeArguments>,
          plan_of_nothing<BatchNormMergeArguments, run<BatchNormMergeArguments>>};
}

Implementation<BatchNormMergeGradientArguments> batch_norm_merge_gradient_cpu() {
  return {"cpu", why_not<BatchNormMergeGradientArguments>,
          plan_of_nothing<BatchNormMergeGradientArguments, run<BatchNormMergeGradientArguments>>};
}

}  // namespace fusedsc
