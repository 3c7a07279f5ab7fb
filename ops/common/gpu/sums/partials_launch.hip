#include "fusedsc/common/gpu/sums/partials_launch.h"

#include <limits>

#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {
namespace {

/// Elements of a tensor up to which a pointwise kernel gains by starting while its statistics are merged.
constexpr std::int64_t kMostOfSmall = 20'000'000;

template <class T, bool kHasPairs>
FUSEDSC_KERNEL(kPartialsThreads, 1)
sum_partials_kernel(SumPartialsParameters parameters) {
  sum_partials<T, kHasPairs>(parameters);
}

template <class A>
FUSEDSC_KERNEL(kMergeThreads, 1)
merge_moments_kernel(MergeMomentsParameters parameters) {
  merge_moments_of_splits<A>(parameters);
}

}  // namespace

void launch_sum_partials(const char* name, DataType dtype, SumPartialsParameters sum, void* stream) {
  sum.lanes = partials_lanes(sum.splits);
  sum.by_elements = Divisor(static_cast<std::uint32_t>(kPartialsThreads / sum.lanes));
  sum.by_channels = Divisor(static_cast<std::uint32_t>(sum.channels));
  const std::int64_t elements = sum.elements();
  if (elements * sum.lanes > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported(std::string(name) + ": a weight of " + std::to_string(elements) + " elements is too large");
  }
  const std::int64_t blocks = (elements * sum.lanes + kPartialsThreads - 1) / kPartialsThreads;
  const std::size_t memory = (sum.has_pairs() ? 2 : 1) * kPartialsThreads * size_of(accumulation_type(dtype));
  const auto run = [&](auto pairs, auto single) {
    launch_following(name, sum.has_pairs() ? pairs : single, blocks, kPartialsThreads, stream, sum, memory);
  };
  switch (dtype) {
    case DataType::float32: return run(sum_partials_kernel<float, true>, sum_partials_kernel<float, false>);
    case DataType::float64: return run(sum_partials_kernel<double, true>, sum_partials_kernel<double, false>);
    case DataType::float16: return run(sum_partials_kernel<Float16, true>, sum_partials_kernel<Float16, false>);
    case DataType::bfloat16: return run(sum_partials_kernel<BFloat16, true>, sum_partials_kernel<BFloat16, false>);
  }
}

void launch_merge_moments(const char* name, DataType dtype, const void* partials, int splits,
                          const Statistics& statistics, std::int64_t count, void* stream) {
  const int channels = static_cast<int>(statistics.mean.size), lanes = merge_lanes(splits),
            block_channels = kMergeThreads / lanes;
  const MergeMomentsParameters merge{
      partials,
      splits,
      channels,
      lanes,
      Divisor(static_cast<std::uint32_t>(block_channels)),
      statistics.mean.data,
      statistics.m2.data,
      statistics.normaliser ? NormaliserParameters(statistics.normaliser, count) : NormaliserParameters(),
      statistics.is_before_pointwise && channels * count <= kMostOfSmall};
  const std::int64_t blocks = (channels + block_channels - 1) / block_channels;
  const std::size_t memory = 3 * kMergeThreads * size_of(accumulation_type(dtype));
  const auto run = [&](auto kernel) { launch_following(name, kernel, blocks, kMergeThreads, stream, merge, memory); };
  if (dtype == DataType::float64) run(merge_moments_kernel<double>);
  else run(merge_moments_kernel<float>);
}

void launch_gradient_sums(const char* name, const void* partials, int splits, const GradientSums& sums,
                          const ConstTensorView& x, void* stream) {
  SumPartialsParameters sum(sums, x);
  sum.partials = partials;
  sum.splits = splits;
  sum.rows = 2;
  sum.channels = static_cast<int>(sums.grad.size);
  launch_sum_partials(name, accumulation_type(x.dtype), sum, stream);
}

}  // namespace fusedsc::gpu
