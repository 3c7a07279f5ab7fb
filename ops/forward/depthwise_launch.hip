#include "fusedsc/common/gpu/depthwise_plan.h"
#include "fusedsc/common/gpu/launch.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "fusedsc/forward/depthwise_kernel.h"
#include "fusedsc/forward/depthwise_matrix_launch.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks,
          DepthwiseSeams kSeams>
FUSEDSC_KERNEL(kDepthwiseThreads, kBlocks)
depthwise_rows_kernel(DepthwiseParameters parameters) {
  DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kSeams>::run(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kDepthwiseThreads, 4)
depthwise_taps_kernel(DepthwiseParameters parameters) {
  depthwise_taps<T, kChannels, kColumns>(parameters);
}

/// kSeamsBlocks 0: without seams only, where another tile does better with them.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kSeamsBlocks = 3>
constexpr DepthwiseInstance<DepthwiseParameters> rows(DataType dtype) {
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : forward_period(kKernel, kStride, kRows);
  using enum DepthwiseSeams;
  DepthwiseInstance<DepthwiseParameters> instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod}};
  instance.plain = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, none>;
  instance.plain_memory = DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kRows, none>::Rows::kBytes;
  if constexpr (kSeamsBlocks > 0) {
    instance.seams = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, 2, all>;
    instance.training = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kSeamsBlocks, training>;
    instance.seams_memory = DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kRows, all>::Rows::kBytes;
  }
  return instance;
}

template <class T, int kChannels, int kColumns>
constexpr DepthwiseInstance<DepthwiseParameters> taps(DataType dtype) {
  constexpr auto kernel = depthwise_taps_kernel<T, kChannels, kColumns>;
  return {dtype, 0, 0, {kChannels, kColumns, 1}, kernel, kernel, kernel};
}

/// Every kernel there is. Of those that fit a problem the first is taken: vectors of channels before single ones, a
/// known window before any. Per thread: channels, columns, and rows loaded
/// ahead; then how many blocks shall fit a multiprocessor, which limits the registers, if not 4.
const DepthwiseInstance<DepthwiseParameters> kInstances[] = {
    // kernel, stride, channels, columns, ahead
    rows<Float16, 3, 1, 4, 2, 2, 4, 0>(DataType::float16),
    rows<Float16, 3, 1, 2, 4, 2, 4, 4>(DataType::float16),
    rows<Float16, 3, 1, 1, 2, 2>(DataType::float16),
    rows<Float16, 3, 2, 4, 2, 3, 4, 0>(DataType::float16),
    rows<Float16, 3, 2, 2, 4, 3, 4, 4>(DataType::float16),
    rows<Float16, 3, 2, 1, 1, 3>(DataType::float16),
    rows<Float16, 5, 1, 2, 4, 4>(DataType::float16),
    rows<Float16, 5, 1, 1, 4, 0>(DataType::float16),
    rows<Float16, 5, 2, 2, 2, 5>(DataType::float16),
    rows<Float16, 5, 2, 1, 2, 2, 3>(DataType::float16),
    rows<Float16, 7, 1, 1, 2, 0, 3>(DataType::float16),
    rows<Float16, 7, 2, 1, 2, 1, 2>(DataType::float16),
    taps<Float16, 4, 2>(DataType::float16),
    taps<Float16, 1, 4>(DataType::float16),
    rows<BFloat16, 3, 1, 4, 2, 2, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 3, 1, 2, 4, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 3, 1, 1, 2, 2>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 4, 2, 3, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 2, 4, 3, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 1, 1, 3>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 1, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 2, 2, 5>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 1, 2, 2, 3>(DataType::bfloat16),
    rows<BFloat16, 7, 1, 1, 2, 0, 3>(DataType::bfloat16),
    rows<BFloat16, 7, 2, 1, 2, 1, 2>(DataType::bfloat16),
    taps<BFloat16, 4, 2>(DataType::bfloat16),
    taps<BFloat16, 1, 4>(DataType::bfloat16),
    rows<float, 3, 1, 2, 4, 2, 5>(DataType::float32),
    rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    rows<float, 3, 2, 4, 2, 3, 4, 0>(DataType::float32),
    rows<float, 3, 2, 2, 4, 3>(DataType::float32),
    rows<float, 3, 2, 1, 1, 3>(DataType::float32),
    rows<float, 5, 1, 2, 4, 4, 3>(DataType::float32),
    rows<float, 5, 1, 1, 4, 4>(DataType::float32),
    rows<float, 5, 2, 2, 2, 5>(DataType::float32),
    rows<float, 5, 2, 1, 2, 2, 3>(DataType::float32),
    rows<float, 7, 1, 1, 2, 6, 3>(DataType::float32),
    rows<float, 7, 2, 1, 2, 3, 2>(DataType::float32),
    taps<float, 4, 2>(DataType::float32),
    taps<float, 1, 4>(DataType::float32),
    rows<double, 3, 1, 1, 2, 1>(DataType::float64),
    rows<double, 3, 2, 1, 1, 1>(DataType::float64),
    taps<double, 1, 2>(DataType::float64),
};

/// A launch, worked out.
struct Pass {
  using Instance = DepthwiseInstance<DepthwiseParameters>;

  const Instance& instance;
  Instance::Kernel kernel;
  DepthwiseParameters parameters;
  std::size_t memory = 0;  ///< of a block
  std::size_t workspace_bytes;

  Pass(const DepthwiseArguments& a, void* workspace)
      : instance(choose_instance(kInstances, kernel_for(a), a.x.dtype, a.window, a.y.sizes[3],
                                 a.x.sizes[1] > 0 ? a.y.sizes[1] / a.x.sizes[1] : 1, {a.x, a.y, a.epilogue.residual})),
        kernel(instance.*kernel_for(a)) {
    parameters.x = a.x;
    parameters.weight = a.weight;
    parameters.bias = a.bias.data;
    parameters.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
    parameters.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
    parameters.residual = a.epilogue.residual;
    parameters.y = a.y;
    parameters.shape = depthwise_shape(a.x.sizes, a.y.sizes, a.window);
    parameters.join_columns = columns_join(instance.tile.columns, a.y);
    const DepthwiseGrid grid{a.y.sizes[0],
                             a.y.sizes[1],
                             a.y.sizes[2],
                             a.y.sizes[3],
                             static_cast<std::int64_t>(size_of(a.x.dtype)),
                             a.x.strides[1] < a.x.strides[3],
                             overlap_of(instance)};
    memory = kernel == instance.plain ? instance.plain_memory : instance.seams_memory;
    if (a.statistics) {
      memory = std::max(memory, a.x.dtype == DataType::float64 ? block_moments_bytes<double>(instance.tile.channels)
                                                               : block_moments_bytes<float>(instance.tile.channels));
    }
    parameters.work = plan_depthwise_work(grid, instance.tile, resident_blocks(kernel, kDepthwiseThreads, memory));
    Arena arena(workspace);
    if (a.statistics) {
      const std::int64_t size = std::int64_t{3} * parameters.work.splits * a.y.sizes[1];
      parameters.partials = arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
    }
    workspace_bytes = arena.used();
  }

  static Instance::Kernel Instance::*kernel_for(const DepthwiseArguments& a) {
    if (a.epilogue) return &Instance::seams;
    return a.prologue || a.statistics ? &Instance::training : &Instance::plain;
  }

  void run(const DepthwiseArguments& a, void* stream) const {
    launch("depthwise_conv2d", kernel, parameters.work.blocks(), kDepthwiseThreads, memory, stream, parameters);
    if (!a.statistics) return;
    launch_merge_moments("depthwise_conv2d: statistics", accumulation_type(a.x.dtype), parameters.partials,
                         parameters.work.splits, a.statistics, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], stream);
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
      .run =
          [](const DepthwiseArguments& a, const Execution& execution) {
            if (gpu::run_depthwise_matrix(a, execution.stream)) return;
            gpu::Pass(a, execution.workspace).run(a, execution.stream);
          },
  };
}

}  // namespace fusedsc
