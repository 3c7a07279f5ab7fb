#include "fusedsc/common/gpu/partials.h"

#include <limits>

#include "fusedsc/common/gpu/launch.h"

namespace fusedsc::gpu {
namespace {

template <class T>
FUSEDSC_KERNEL(kPartialsThreads, 1)
sum_partials_kernel(SumPartialsParameters parameters) {
  sum_partials<T>(parameters);
}

template <class A>
FUSEDSC_KERNEL(kPartialsThreads, 1)
merge_moments_kernel(MergeMomentsParameters parameters) {
  merge_moments_of_splits<A>(parameters);
}

/// Blocks for `elements` of `lanes` threads each.
std::int64_t blocks_for(const char* name, std::int64_t elements, int lanes) {
  if (elements * lanes > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported(std::string(name) + ": a weight of " + std::to_string(elements) + " elements is too large");
  }
  return (elements * lanes + kPartialsThreads - 1) / kPartialsThreads;
}

}  // namespace

void launch_sum_partials(const char* name, DataType dtype, SumPartialsParameters sum, void* stream) {
  sum.lanes = partials_lanes(sum.splits);
  sum.by_lanes = Divisor(static_cast<std::uint32_t>(sum.lanes));
  sum.by_channels = Divisor(static_cast<std::uint32_t>(sum.channels));
  const std::int64_t blocks = blocks_for(name, std::int64_t{sum.rows} * sum.channels, sum.lanes);
  const auto run = [&](auto kernel) { launch(name, kernel, blocks, kPartialsThreads, 0, stream, sum); };
  switch (dtype) {
    case DataType::float32: return run(sum_partials_kernel<float>);
    case DataType::float64: return run(sum_partials_kernel<double>);
    case DataType::float16: return run(sum_partials_kernel<Float16>);
    case DataType::bfloat16: return run(sum_partials_kernel<BFloat16>);
  }
}

void launch_merge_moments(const char* name, DataType dtype, MergeMomentsParameters merge, void* stream) {
  merge.lanes = partials_lanes(merge.splits);
  merge.by_lanes = Divisor(static_cast<std::uint32_t>(merge.lanes));
  const auto kernel = dtype == DataType::float64 ? merge_moments_kernel<double> : merge_moments_kernel<float>;
  launch(name, kernel, blocks_for(name, merge.channels, merge.lanes), kPartialsThreads, 0, stream, merge);
}

}  // namespace fusedsc::gpu
