#include "fusedsc/common/gpu/depthwise_plan.h"
#include "fusedsc/common/gpu/launch.h"
#include "fusedsc/common/gpu/partials_kernel.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "fusedsc/forward/depthwise_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kRows, int kAhead, bool kSeams>
FUSEDSC_KERNEL(kDepthwiseThreads) depthwise_rows_kernel(DepthwiseParameters parameters) {
  depthwise_rows<T, kKernel, kStride, kChannels, kColumns, kRows, kAhead, kSeams>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kDepthwiseThreads) depthwise_taps_kernel(DepthwiseParameters parameters) {
  depthwise_taps<T, kChannels, kColumns>(parameters);
}

template <class A>
FUSEDSC_KERNEL(kPartialsThreads) merge_moments_kernel(MergeMomentsParameters parameters) {
  merge_moments_of_splits<A>(parameters);
}

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kRows, int kAhead>
constexpr DepthwiseInstance<DepthwiseParameters> rows(DataType dtype) {
  return {dtype, kKernel, kStride, {kChannels, kColumns, kRows},
          depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kAhead, false>,
          depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kAhead, true>};
}

template <class T, int kChannels, int kColumns>
constexpr DepthwiseInstance<DepthwiseParameters> taps(DataType dtype) {
  constexpr auto kernel = depthwise_taps_kernel<T, kChannels, kColumns>;
  return {dtype, 0, 0, {kChannels, kColumns, 1}, kernel, kernel};
}

/// Every kernel there is. Of those that fit a problem the first is taken: vectors of channels before single ones, a
/// known window before any. Per thread: channels, columns, rows, rows loaded ahead.
const DepthwiseInstance<DepthwiseParameters> kInstances[] = {
    // kernel, stride, channels, columns, rows, ahead
    rows<Float16, 3, 1, 4, 2, 7, 2>(DataType::float16),
    rows<Float16, 3, 1, 1, 4, 7, 2>(DataType::float16),
    rows<Float16, 3, 2, 4, 1, 7, 2>(DataType::float16),
    rows<Float16, 3, 2, 1, 2, 7, 2>(DataType::float16),
    rows<Float16, 5, 1, 2, 2, 7, 1>(DataType::float16),
    rows<Float16, 5, 1, 1, 4, 7, 1>(DataType::float16),
    rows<Float16, 5, 2, 2, 1, 7, 1>(DataType::float16),
    rows<Float16, 5, 2, 1, 2, 7, 1>(DataType::float16),
    taps<Float16, 4, 2>(DataType::float16),
    taps<Float16, 1, 4>(DataType::float16),
    rows<BFloat16, 3, 1, 4, 2, 7, 2>(DataType::bfloat16),
    rows<BFloat16, 3, 1, 1, 4, 7, 2>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 4, 1, 7, 2>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 1, 2, 7, 2>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 2, 2, 7, 1>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 1, 4, 7, 1>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 2, 1, 7, 1>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 1, 2, 7, 1>(DataType::bfloat16),
    taps<BFloat16, 4, 2>(DataType::bfloat16),
    taps<BFloat16, 1, 4>(DataType::bfloat16),
    rows<float, 3, 1, 4, 1, 7, 2>(DataType::float32),
    rows<float, 3, 1, 1, 4, 7, 2>(DataType::float32),
    rows<float, 3, 2, 4, 1, 7, 1>(DataType::float32),
    rows<float, 3, 2, 1, 2, 7, 2>(DataType::float32),
    rows<float, 5, 1, 2, 2, 7, 1>(DataType::float32),
    rows<float, 5, 1, 1, 4, 7, 1>(DataType::float32),
    rows<float, 5, 2, 2, 1, 7, 1>(DataType::float32),
    rows<float, 5, 2, 1, 2, 7, 1>(DataType::float32),
    taps<float, 4, 2>(DataType::float32),
    taps<float, 1, 4>(DataType::float32),
    rows<double, 3, 1, 1, 2, 4, 1>(DataType::float64),
    rows<double, 3, 2, 1, 1, 4, 1>(DataType::float64),
    taps<double, 1, 2>(DataType::float64),
};

/// A launch, worked out.
struct Pass {
  const DepthwiseInstance<DepthwiseParameters>& instance;
  DepthwiseParameters parameters;
  std::size_t workspace_bytes;

  Pass(const DepthwiseArguments& a, void* workspace)
      : instance(choose_instance(kInstances, a.x.dtype, a.window, a.x.sizes[1] > 0 ? a.y.sizes[1] / a.x.sizes[1] : 1,
                                 {a.x, a.y, a.epilogue.residual})) {
    parameters.x = a.x;
    parameters.weight = a.weight;
    parameters.bias = a.bias.data;
    parameters.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
    parameters.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
    parameters.residual = a.epilogue.residual;
    parameters.y = a.y;
    parameters.shape = depthwise_shape(a.x.sizes, a.y.sizes, a.window);
    parameters.join_columns = columns_join(instance.tile.columns, a.y);
    const DepthwiseGrid grid{a.y.sizes[0], a.y.sizes[1], a.y.sizes[2], a.y.sizes[3],
                             a.x.strides[1] < a.x.strides[3], 4};
    parameters.work = plan_depthwise_work(grid, instance.tile, multiprocessors());
    Arena arena(workspace);
    if (a.statistics) {
      const std::int64_t size = std::int64_t{3} * parameters.work.splits * a.y.sizes[1];
      parameters.partials = arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
    }
    workspace_bytes = arena.used();
  }

  template <class A>
  void merge_statistics(const DepthwiseArguments& a, void* stream) const {
    const int splits = parameters.work.splits, channels = parameters.shape.channels, lanes = partials_lanes(splits);
    const MergeMomentsParameters merge{parameters.partials,     splits, channels, lanes, Divisor(static_cast<std::uint32_t>(lanes)),
                                       a.statistics.mean.data, a.statistics.m2.data};
    const std::int64_t blocks = (std::int64_t{channels} * lanes + kPartialsThreads - 1) / kPartialsThreads;
    launch("depthwise_conv2d: statistics", merge_moments_kernel<A>, blocks, kPartialsThreads, 0, stream, merge);
  }

  void run(const DepthwiseArguments& a, void* stream) const {
    const bool has_seams = a.prologue || a.epilogue || a.statistics;
    const bool is_double = a.x.dtype == DataType::float64;
    std::size_t memory = 0;
    if (a.statistics) {
      memory = is_double ? block_moments_bytes<double>(instance.tile.channels)
                         : block_moments_bytes<float>(instance.tile.channels);
    }
    launch("depthwise_conv2d", has_seams ? instance.seams : instance.plain, parameters.work.blocks(),
           kDepthwiseThreads, memory, stream, parameters);
    if (!a.statistics) return;
    if (is_double) merge_statistics<double>(a, stream);
    else merge_statistics<float>(a, stream);
  }
};

}  // namespace
}  // namespace gpu

Implementation<DepthwiseArguments> depthwise_gpu() {
  return {
      .name = "gpu",
      .why_not =
          [](const DepthwiseArguments& a) {
            const std::string elsewhere = needs_device(Device::gpu, a.x.device);
            return !elsewhere.empty() ? elsewhere : gpu::too_large_for_gpu(a.x.sizes, a.y.sizes, a.window);
          },
      .workspace_bytes = [](const DepthwiseArguments& a, int) { return gpu::Pass(a, nullptr).workspace_bytes; },
      .run = [](const DepthwiseArguments& a,
                const Execution& execution) { gpu::Pass(a, execution.workspace).run(a, execution.stream); },
  };
}

}  // namespace fusedsc
