#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_rows_launch.h"

#include <limits>

#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_rows_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"

namespace fusedsc::gpu::hopper {
namespace {

template <class T>
FUSEDSC_KERNEL(kWeightRowsThreads, 1)
sum_weight_rows_kernel(DepthwiseWeightRowsParameters p) {
  sum_weight_rows<T>(p);
}

/// Whether places of sums and of gradients are numbers that the kernel knows.
bool suits(std::int64_t row_bytes, const DepthwiseBackwardArguments& a) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (2 * kWeightRowsThreads * row_bytes > kMost) return false;
  if (a.grad_weight.data == nullptr) return true;
  std::int64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    if (a.grad_weight.strides[i] < 0) return false;
    last += (a.grad_weight.sizes[i] - 1) * a.grad_weight.strides[i];
  }
  return last <= kMost;
}

void launch_with_any_places(const char* name, const DepthwiseWeightRowsParameters& p, int row_taps,
                            const DepthwiseBackwardArguments& a, void* stream) {
  SumPartialsParameters sum;
  sum.partials = p.partials;
  sum.splits = p.rows;
  sum.taps = p.kernel * p.kernel;
  sum.kernel_width = p.kernel;
  sum.rows = row_taps;
  sum.channels = p.channels;
  sum.weight = p.grad_weight;
  sum.bias = p.grad_bias;
  sum.lets_next_start = true;
  launch_sum_partials(name, a.x.dtype, sum, stream);
}

}  // namespace

void launch_sum_weight_rows(const char* name, const float* partials, int rows, int row_taps,
                            const DepthwiseBackwardArguments& a, void* stream) {
  DepthwiseWeightRowsParameters p;
  p.partials = partials;
  p.rows = rows;
  p.channels = static_cast<int>(a.x.sizes[1]);
  const std::int64_t row_bytes = std::int64_t{row_taps} * p.channels * static_cast<std::int64_t>(sizeof(float));
  p.kernel = static_cast<int>(a.window.kernel[0]);
  p.taps = p.kernel * p.kernel + (a.grad_bias ? 1 : 0);
  p.grad_weight = a.grad_weight;
  p.grad_bias = a.grad_bias.data;
  if (!suits(row_bytes, a)) return launch_with_any_places(name, p, row_taps, a, stream);
  p.row_bytes = static_cast<int>(row_bytes);
  // As many taps to a block as there are, but no fewer blocks than multiprocessors while threads have more than one
  // row.
  const auto tap_groups = [&] { return ((p.taps - 1) >> p.block_taps_log) + 1; };
  const std::int64_t eights = p.channels / 8;
  while (tap_groups() > 1 && p.block_taps_log < 4) ++p.block_taps_log;
  while (p.block_taps_log > 0 && kWeightRowsThreads / p.block_fours() < rows) {
    --p.block_taps_log;
    if (eights * tap_groups() <= multiprocessors()) continue;
    ++p.block_taps_log;
    break;
  }
  p.by_tap_groups = Divisor(static_cast<std::uint32_t>(tap_groups()));
  const auto run = [&](auto kernel) {
    launch_following(name, kernel, eights * tap_groups(), kWeightRowsThreads, stream, p,
                     static_cast<std::size_t>(p.memory_bytes()));
  };
  if (a.x.dtype == DataType::bfloat16) run(sum_weight_rows_kernel<BFloat16>);
  else run(sum_weight_rows_kernel<Float16>);
}

}  // namespace fusedsc::gpu::hopper
#endif
