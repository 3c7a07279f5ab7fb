#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/rows/depthwise_arguments.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks,
          DepthwiseFusion kFusion>
FUSEDSC_KERNEL(kItemThreads, kBlocks)
depthwise_rows_kernel(DepthwiseParameters parameters) {
  wait_for_previous_kernel();
  if (parameters.work.is_short()) let_next_kernel_start();
  DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kFusion>::run(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 4)
depthwise_taps_kernel(DepthwiseParameters parameters) {
  wait_for_previous_kernel();
  depthwise_taps<T, kChannels, kColumns>(parameters);
}

/// kFusedBlocks 0: without fusion only, where another tile does better with it.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kFusedBlocks = 3>
constexpr DepthwiseInstance<DepthwiseParameters> rows(DataType dtype) {
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : forward_period(kKernel, kStride, kRows);
  using enum DepthwiseFusion;
  DepthwiseInstance<DepthwiseParameters> instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod}};
  instance.plain = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, none>;
  instance.plain_memory = DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kRows, none>::Rows::kBytes;
  if constexpr (kFusedBlocks > 0) {
    instance.fused = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, 2, eval>;
    instance.training = depthwise_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kFusedBlocks, training>;
    instance.fused_memory = DepthwiseRows<T, kKernel, kStride, kChannels, kColumns, kRows, eval>::Rows::kBytes;
  }
  return instance;
}

template <class T, int kChannels, int kColumns>
constexpr DepthwiseInstance<DepthwiseParameters> taps(DataType dtype) {
  constexpr auto kernel = depthwise_taps_kernel<T, kChannels, kColumns>;
  return {dtype, 0, 0, {kChannels, kColumns, 1}, kernel, kernel, kernel};
}

/// Every kernel with rows in registers, and of the others those that need no tile in shared memory. Of those that fit a
/// problem the first is taken: vectors of channels before single ones, a known window before any. Per thread: channels,
/// columns, and rows loaded ahead; then how many blocks shall fit a multiprocessor, which limits the registers, if
/// not 4.
const DepthwiseInstance<DepthwiseParameters> kInstances[] = {
    // kernel, stride, channels, columns, ahead
    rows<Float16, 3, 1, 4, 2, 2, 4, 0>(DataType::float16),
    rows<Float16, 3, 1, 2, 4, 2, 4, 4>(DataType::float16),
    rows<Float16, 3, 1, 1, 2, 2>(DataType::float16),
    rows<Float16, 3, 2, 4, 2, 3, 4, 0>(DataType::float16),
    rows<Float16, 3, 2, 2, 4, 3, 4, 4>(DataType::float16),
    rows<Float16, 3, 2, 1, 1, 3>(DataType::float16),
    rows<Float16, 3, 3, 2, 4, 2, 4, 4>(DataType::float16),
    rows<Float16, 3, 3, 1, 1, 2, 4, 4>(DataType::float16),
    rows<Float16, 5, 1, 2, 4, 4>(DataType::float16),
    rows<Float16, 5, 1, 1, 4, 0>(DataType::float16),
    rows<Float16, 5, 2, 2, 2, 5>(DataType::float16),
    rows<Float16, 5, 2, 1, 2, 2, 3>(DataType::float16),
    rows<Float16, 7, 2, 1, 2, 1, 2>(DataType::float16),
    taps<Float16, 1, 4>(DataType::float16),
    rows<BFloat16, 3, 1, 4, 2, 2, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 3, 1, 2, 4, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 3, 1, 1, 2, 2>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 4, 2, 3, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 2, 4, 3, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 3, 2, 1, 1, 3>(DataType::bfloat16),
    rows<BFloat16, 3, 3, 2, 4, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 3, 3, 1, 1, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 2, 4, 4>(DataType::bfloat16),
    rows<BFloat16, 5, 1, 1, 4, 0>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 2, 2, 5>(DataType::bfloat16),
    rows<BFloat16, 5, 2, 1, 2, 2, 3>(DataType::bfloat16),
    rows<BFloat16, 7, 2, 1, 2, 1, 2>(DataType::bfloat16),
    taps<BFloat16, 1, 4>(DataType::bfloat16),
    rows<float, 3, 1, 2, 4, 2, 5>(DataType::float32),
    rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    rows<float, 3, 2, 4, 2, 3, 4, 0>(DataType::float32),
    rows<float, 3, 2, 2, 4, 3>(DataType::float32),
    rows<float, 3, 2, 1, 1, 3>(DataType::float32),
    rows<float, 3, 3, 2, 2, 2, 4, 4>(DataType::float32),
    rows<float, 3, 3, 1, 1, 2, 4, 4>(DataType::float32),
    rows<float, 5, 1, 2, 4, 4, 3>(DataType::float32),
    rows<float, 5, 1, 1, 4, 4>(DataType::float32),
    rows<float, 5, 2, 2, 2, 5>(DataType::float32),
    rows<float, 5, 2, 1, 2, 2, 3>(DataType::float32),
    rows<float, 7, 1, 1, 2, 6, 3>(DataType::float32),
    rows<float, 7, 2, 1, 2, 3, 2>(DataType::float32),
    taps<float, 1, 4>(DataType::float32),
    rows<double, 3, 1, 1, 2, 1>(DataType::float64),
    rows<double, 3, 2, 1, 1, 1>(DataType::float64),
    taps<double, 1, 2>(DataType::float64),
};

using Instance = DepthwiseInstance<DepthwiseParameters>;

Instance::Kernel Instance::*kernel_for(const DepthwiseArguments& a) {
  if (a.epilogue) return &Instance::fused;
  return a.prologue || a.statistics ? &Instance::training : &Instance::plain;
}

DepthwiseWanted<DepthwiseParameters> wanted_of(const DepthwiseArguments& a) {
  return {kernel_for(a), a.x.dtype, a.window, a.x.sizes[1] > 0 ? a.y.sizes[1] / a.x.sizes[1] : 1,
          joined_channels({a.x, a.y, a.epilogue.residual})};
}

/// A launch with the merging of its statistics, worked out but for addresses.
class DepthwisePass {
 public:
  DepthwisePass(const DepthwiseArguments& a, const Instance& instance)
      : instance_(&instance),
        kernel_(instance_->*kernel_for(a)),
        join_columns_(columns_join(instance_->tile.columns, a.y)) {
    memory_ = kernel_ == instance_->plain ? instance_->plain_memory : instance_->fused_memory;
    if (a.statistics) {
      memory_ =
          std::max(memory_, a.x.dtype == DataType::float64 ? block_moments_bytes<double>(instance_->tile.channels)
                                                           : block_moments_bytes<float>(instance_->tile.channels));
    }
    work_ = plan_depthwise_work(grid_of(a, overlap_of(*instance_)), instance_->tile,
                                resident_blocks(kernel_, kItemThreads, memory_));
  }

  std::size_t workspace_bytes(const DepthwiseArguments& a) const {
    Arena measured(nullptr);
    take_partials(a, measured);
    return measured.used();
  }

  void run(const DepthwiseArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const DepthwiseParameters p = parameters_of(a, work_, join_columns_, take_partials(a, arena));
    launch_following("depthwise_conv2d", kernel_, work_.blocks(), kItemThreads, execution.stream, p, memory_);
    if (!a.statistics) return;
    launch_merge_moments("depthwise_conv2d: statistics", accumulation_type(a.x.dtype), p.partials, work_.splits,
                         a.statistics, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
  }

 private:
  void* take_partials(const DepthwiseArguments& a, Arena& arena) const {
    if (!a.statistics) return nullptr;
    const std::int64_t size = std::int64_t{3} * work_.splits * a.y.sizes[1];
    return arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
  }

  const Instance* instance_;
  Instance::Kernel kernel_;
  ItemWork work_;
  std::size_t memory_ = 0;  ///< of a block
  bool join_columns_;
};

std::string rows_unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  return instance_configs(kInstances, wanted_of(a), false).empty()
             ? "there is no kernel for such a window, not dilated, of that type and without a channel multiplier"
             : "";
}

template <bool kAnyWindow>
Configs configs(const DepthwiseArguments& a) {
  return instance_configs(kInstances, wanted_of(a), kAnyWindow);
}

template <bool kAnyWindow>
Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const DepthwisePass pass(a, choose_instance(kInstances, wanted_of(a), kAnyWindow, config));
  return {pass.workspace_bytes(a),
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

std::string why_not_on_gpu(const DepthwiseArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_gpu(a.x.sizes, a.y.sizes, a.window);
}

Kernel<DepthwiseArguments> depthwise_rows() { return {"gpu_rows", rows_unsupported, configs<false>, plan<false>}; }
Kernel<DepthwiseArguments> depthwise_taps() { return {"gpu_taps", why_not_on_gpu, configs<true>, plan<true>}; }

Config depthwise_rows_prior(const DepthwiseArguments& a) {
  return instance_prior_config(kInstances, wanted_of(a), false, a.y.sizes[3]);
}

std::span<const Kernel<DepthwiseArguments>> depthwise_gpu_kernels() {
  static const Kernel<DepthwiseArguments> kernels[] = {
      depthwise_direct(),
#ifdef FUSEDSC_HOPPER
      hopper::depthwise_planes(), hopper::depthwise_columns(),
      hopper::depthwise_tiles(),  hopper::depthwise_patches(),
#endif
      depthwise_matrix(),         depthwise_rows(),
      depthwise_windows(),        depthwise_taps(),
      depthwise_generated(),
  };
  return kernels;
}

}  // namespace fusedsc::gpu
