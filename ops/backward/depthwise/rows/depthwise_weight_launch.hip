#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/rows/depthwise_gradient_arguments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {
namespace {

using WeightInstance = DepthwiseWeightPass::Instance;

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks, bool kFused>
FUSEDSC_KERNEL(kItemThreads, kBlocks)
weight_rows_kernel(DepthwiseWeightGradientParameters parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kFused>::run(parameters);
}

constexpr int kTapGroup = 4;

template <class T, int kChannels>
FUSEDSC_KERNEL(kItemThreads, 4)
weight_taps_kernel(DepthwiseWeightGradientParameters parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  depthwise_weight_gradient_taps<T, kChannels, kTapGroup>(parameters);
}

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kFusedBlocks = 2>
constexpr WeightInstance weight_rows(DataType dtype) {
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : forward_period(kKernel, kStride, kRows);
  constexpr int kLeastWidth = kColumns > 4 ? 2 * kColumns : 0;  // narrower ones leave too many columns without work
  WeightInstance instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod, kLeastWidth}};
  instance.plain = weight_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, false>;
  instance.plain_memory = DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, false>::kBytes;
  if constexpr (kFusedBlocks > 0) {
    instance.fused = weight_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kFusedBlocks, true>;
    instance.fused_memory = DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, true>::kBytes;
  }
  return instance;
}

template <class T, int kChannels>
constexpr WeightInstance weight_taps(DataType dtype) {
  constexpr auto kernel = weight_taps_kernel<T, kChannels>;
  return {dtype, 0, 0, {kChannels, 1, 1}, kernel, kernel};
}

const WeightInstance kWeightInstances[] = {
    // kernel, stride, channels, columns, ahead
    weight_rows<Float16, 3, 1, 4, 4, 2, 4, kWideFusedBlocks>(DataType::float16),
    weight_rows<Float16, 3, 1, 2, 4, 2>(DataType::float16),
    weight_rows<Float16, 3, 1, 1, 2, 2, 3>(DataType::float16),
    weight_rows<Float16, 3, 2, 4, 2, 3, 4, kWideFusedBlocks>(DataType::float16),
    weight_rows<Float16, 3, 2, 2, 2, 3>(DataType::float16),
    weight_rows<Float16, 3, 2, 1, 2, 1, 3>(DataType::float16),
    weight_rows<Float16, 5, 1, 2, 6, 4, 3, 0>(DataType::float16),
    weight_rows<Float16, 5, 1, 2, 4, 4, 3, kWideFusedBlocks>(DataType::float16),
    weight_rows<Float16, 5, 1, 1, 4, 0, 2>(DataType::float16),
    weight_rows<Float16, 5, 2, 2, 2, 5>(DataType::float16),
    weight_rows<Float16, 5, 2, 1, 2, 1, 2>(DataType::float16),
    weight_rows<Float16, 7, 2, 1, 1, 1, 2>(DataType::float16),
    weight_taps<Float16, 1>(DataType::float16),
    weight_rows<BFloat16, 3, 1, 4, 4, 2, 4, kWideFusedBlocks>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 1, 2, 4, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 1, 1, 2, 2, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 4, 2, 3, 4, kWideFusedBlocks>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 2, 2, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 1, 2, 1, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 2, 6, 4, 3, 0>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 2, 4, 4, 3, kWideFusedBlocks>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 1, 4, 0, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 2, 2, 2, 5>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 2, 1, 2, 1, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 7, 2, 1, 1, 1, 2>(DataType::bfloat16),
    weight_taps<BFloat16, 1>(DataType::bfloat16),
    weight_rows<float, 3, 1, 2, 4, 5, 4, kWideFusedBlocks>(DataType::float32),
    weight_rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    weight_rows<float, 3, 2, 4, 1, 3>(DataType::float32),
    weight_rows<float, 3, 2, 1, 2, 1>(DataType::float32),
    weight_rows<float, 5, 1, 2, 2, 4>(DataType::float32),
    weight_rows<float, 5, 1, 1, 4, 4>(DataType::float32),
    weight_rows<float, 5, 2, 1, 4, 5, 6>(DataType::float32),
    weight_rows<float, 7, 1, 1, 2, 6, 2>(DataType::float32),
    weight_rows<float, 7, 2, 1, 1, 3, 2>(DataType::float32),
    weight_taps<float, 1>(DataType::float32),
    weight_rows<double, 3, 1, 1, 2, 1, 3>(DataType::float64),
    weight_rows<double, 3, 2, 1, 1, 1, 3>(DataType::float64),
    weight_taps<double, 1>(DataType::float64),
};

WeightInstance::Kernel WeightInstance::*kernel_for(const DepthwiseBackwardArguments& a) {
  return a.prologue || a.gradient_prologue ? &WeightInstance::fused : &WeightInstance::plain;
}

DepthwiseWanted<DepthwiseWeightGradientParameters> wanted_of(const DepthwiseBackwardArguments& a) {
  return {kernel_for(a), a.x.dtype, a.window, multiplier_of(a),
          joined_channels({a.x, a.grad_y, a.gradient_prologue.output})};
}

std::string taps_unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  return a.grad_weight || a.grad_bias ? "" : "neither grad_weight nor grad_bias is wanted";
}

std::string rows_unsupported(const DepthwiseBackwardArguments& a) {
  const std::string reason = taps_unsupported(a);
  if (!reason.empty()) return reason;
  return instance_configs(kWeightInstances, wanted_of(a), false).empty()
             ? "there is no kernel for such a window, not dilated, of that type and without a channel multiplier"
             : "";
}

template <bool kAnyWindow>
Configs configs(const DepthwiseBackwardArguments& a) {
  return instance_configs(kWeightInstances, wanted_of(a), kAnyWindow);
}

template <bool kAnyWindow>
Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  return plan_of_pass(a, DepthwiseWeightPass(a, choose_instance(kWeightInstances, wanted_of(a), kAnyWindow, config)));
}

}  // namespace

tuning::Kernel<DepthwiseBackwardArguments> depthwise_rows_weight() {
  return {"gpu_rows", rows_unsupported, configs<false>, plan<false>};
}
tuning::Kernel<DepthwiseBackwardArguments> depthwise_taps_weight() {
  return {"gpu_taps", taps_unsupported, configs<true>, plan<true>};
}

Config depthwise_rows_weight_prior(const DepthwiseBackwardArguments& a) {
  return instance_prior_config(kWeightInstances, wanted_of(a), false, a.grad_y.sizes[3]);
}

DepthwiseWeightPass::DepthwiseWeightPass(const DepthwiseBackwardArguments& a, const Instance& instance)
    : instance_(&instance), kernel_(instance_->*kernel_for(a)) {
  if (instance_->kernel == 0) {
    tap_groups_ = a.window.kernel[0] * ((a.window.kernel[1] + kTapGroup - 1) / kTapGroup);
  }
  const DepthwiseGrid grid = weight_grid_of(a, overlap_of(*instance_));
  const int values = instance_->tile.channels * (instance_->kernel * instance_->kernel + 1);
  memory_ = std::max(kernel_ == instance_->plain ? instance_->plain_memory : instance_->fused_memory,
                     bytes_of_block_sums(a.x.dtype, values));
  work_ = plan_depthwise_work(grid, instance_->tile, resident_blocks(kernel_, kItemThreads, memory_));
}

void* DepthwiseWeightPass::take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
  return take_weight_partials(a, work_, arena);
}

void DepthwiseWeightPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  const DepthwiseWeightGradientParameters p = weight_parameters_of(a, work_, tap_groups_, take_partials(a, arena));
  launch_following(kDepthwiseBackward, kernel_, work_.blocks() * tap_groups_, kItemThreads, execution.stream, p,
                   memory_);
  if (p.partials == nullptr) return;
  launch_sum_of_weight_gradient(a, p.shape, p.partials, work_.splits, execution);
}

}  // namespace fusedsc::gpu
