/// BatchNorm over several processes, on GPUs: a thread for each channel.
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/vendor/launch.h"
#include "fusedsc/fused/batch_norm/batch_norm_merge_gpu.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr int kMergeThreads = 128;

FUSEDSC_DEVICE int own_channel() { return static_cast<int>(block_index()) * kMergeThreads + thread_index(); }

struct MergeParameters {
  int channels = 0, count = 0;
  const void* parts = nullptr;
  void* mean = nullptr;
  NormaliserParameters normaliser;  ///< its count is that of all parts together
};

template <class A>
FUSEDSC_KERNEL(kMergeThreads, 1)
merge_kernel(MergeParameters p) {
  const int c = own_channel();
  if (c >= p.channels) return;
  const OwnNormaliser<A> own(p.normaliser, c);
  const A* part = static_cast<const A*>(p.parts);
  double mean = 0, m2 = 0, merged = 0;
  for (int i = 0; i < p.count; ++i, part += 2 * p.channels + 1) {
    const double count = part[2 * p.channels];
    if (count == 0) continue;
    const double delta = part[c] - mean, both = merged + count;
    mean += delta * (count / both);
    m2 += part[p.channels + c] + delta * delta * (merged * count / both);
    merged = both;
  }
  p.normaliser.count = merged > 1 ? merged : 1;
  put(p.mean, c, static_cast<A>(mean));
  normalise(p.normaliser, own, c, static_cast<A>(mean), static_cast<A>(m2));
}

struct MergeGradientParameters {
  int channels = 0;
  const void* sums = nullptr;
  GradientNormaliserParameters normaliser;  ///< its count is that behind the sums
};

template <class A>
FUSEDSC_KERNEL(kMergeThreads, 1)
merge_gradient_kernel(MergeGradientParameters p) {
  const int c = own_channel();
  if (c >= p.channels) return;
  const A* sums = static_cast<const A*>(p.sums);
  const double count = sums[2 * p.channels];
  p.normaliser.inverse_count = 1 / (count > 1 ? count : 1);
  normalise(p.normaliser, OwnGradientNormaliser<A>(p.normaliser, c), c, sums[c], sums[p.channels + c]);
}

template <class Parameters>
void launch_per_channel(const char* name, void (*kernel)(Parameters), void* stream, const Parameters& parameters) {
  const std::int64_t blocks = (std::int64_t{parameters.channels} + kMergeThreads - 1) / kMergeThreads;
  launch(name, kernel, blocks, kMergeThreads, 0, stream, parameters);
}

void run(const BatchNormMergeArguments& a, const Execution& execution) {
  MergeParameters p;
  p.channels = static_cast<int>(a.mean.size);
  p.count = static_cast<int>(a.count);
  p.parts = a.parts.data;
  p.mean = a.mean.data;
  p.normaliser = NormaliserParameters({a.weight, a.bias, a.eps, a.invstd, a.variance, a.scale, a.shift}, 1);
  launch_per_channel("batch_norm_merge", a.mean.dtype == DataType::float64 ? merge_kernel<double> : merge_kernel<float>,
                     execution.stream, p);
}

void run_gradient(const BatchNormMergeGradientArguments& a, const Execution& execution) {
  MergeGradientParameters p;
  p.channels = static_cast<int>(a.mean.size);
  p.sums = a.sums.data;
  p.normaliser.weight = a.weight.data;
  p.normaliser.mean = a.mean.data;
  p.normaliser.invstd = a.invstd.data;
  p.normaliser.grad_scale = a.grad_scale.data;
  p.normaliser.output_scale = a.output_scale.data;
  p.normaliser.offset = a.offset.data;
  const bool is_double = a.mean.dtype == DataType::float64;
  launch_per_channel("batch_norm_merge_gradient",
                     is_double ? merge_gradient_kernel<double> : merge_gradient_kernel<float>, execution.stream, p);
}

template <class Arguments>
std::string why_not(const Arguments& a) {
  return needs_device(Device::gpu, a.mean.device);
}

}  // namespace
}  // namespace gpu

Implementation<BatchNormMergeArguments> batch_norm_merge_gpu() {
  return {"gpu", gpu::why_not<BatchNormMergeArguments>, plan_of_nothing<BatchNormMergeArguments, gpu::run>};
}

Implementation<BatchNormMergeGradientArguments> batch_norm_merge_gradient_gpu() {
  return {"gpu", gpu::why_not<BatchNormMergeGradientArguments>,
          plan_of_nothing<BatchNormMergeGradientArguments, gpu::run_gradient>};
}

}  // namespace fusedsc
