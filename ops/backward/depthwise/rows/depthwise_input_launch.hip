#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/rows/depthwise_gradient_arguments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {
namespace {

using InputInstance = DepthwiseInputPass::Instance;

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks, bool kFused>
FUSEDSC_KERNEL(kItemThreads, kBlocks)
input_rows_kernel(DepthwiseInputGradientParameters parameters) {
  wait_for_previous_kernel();
  if (parameters.work.is_short()) let_next_kernel_start();
  DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kFused>::run(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 4)
input_taps_kernel(DepthwiseInputGradientParameters parameters) {
  wait_for_previous_kernel();
  depthwise_input_gradient_taps<T, kChannels, kColumns>(parameters);
}

/// Whole periods must be as long with fusion, where fewer rows ahead may have to do.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kFusedAhead = kAhead, int kFusedBlocks = 2>
constexpr InputInstance input_rows(DataType dtype) {
  constexpr int kLive = (kKernel - 1) / kStride + 1;
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kFusedRows = rows_ahead<T, kChannels, kKernel>(kStride, kFusedAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : common_multiple(kLive, kRows + 1);
  InputInstance instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod}};
  instance.plain = input_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, false>;
  instance.plain_memory = DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, false>::kBytes;
  if constexpr (kFusedBlocks > 0) {
    instance.fused = input_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kFusedRows, kFusedBlocks, true>;
    instance.fused_memory =
        DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kFusedRows, true>::kBytes;
  }
  return instance;
}

template <class T, int kChannels, int kColumns>
constexpr InputInstance input_taps(DataType dtype) {
  constexpr auto kernel = input_taps_kernel<T, kChannels, kColumns>;
  return {dtype, 0, 0, {kChannels, kColumns, 1}, kernel, kernel};
}

/// As in the forward pass; columns and rows of the input gradient are counted in strides. The plain ones of stride 1
/// serve paddings that as_forward() does not.
const InputInstance kInputInstances[] = {
    // kernel, stride, channels, columns, ahead
    input_rows<Float16, 3, 1, 2, 4, 2>(DataType::float16),
    input_rows<Float16, 3, 1, 1, 2, 2>(DataType::float16),
    input_rows<Float16, 3, 2, 4, 1, 3, 5, 3, kWideFusedBlocks>(DataType::float16),
    input_rows<Float16, 3, 2, 2, 2, 3, 4, 3, kWideFusedBlocks>(DataType::float16),
    input_rows<Float16, 3, 2, 1, 1, 1>(DataType::float16),
    input_rows<Float16, 5, 1, 2, 4, 4, 3, 4, kWideFusedBlocks>(DataType::float16),
    input_rows<Float16, 5, 1, 1, 2, 0>(DataType::float16),
    input_rows<Float16, 5, 2, 2, 2, 2>(DataType::float16),
    input_rows<Float16, 5, 2, 1, 1, 2>(DataType::float16),
    input_rows<Float16, 7, 2, 1, 1, 1, 3>(DataType::float16),
    input_taps<Float16, 1, 4>(DataType::float16),
    input_rows<BFloat16, 3, 1, 2, 4, 2>(DataType::bfloat16),
    input_rows<BFloat16, 3, 1, 1, 2, 2>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 4, 1, 3, 5, 3, kWideFusedBlocks>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 2, 2, 3, 4, 3, kWideFusedBlocks>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 1, 1, 1>(DataType::bfloat16),
    input_rows<BFloat16, 5, 1, 2, 4, 4, 3, 4, kWideFusedBlocks>(DataType::bfloat16),
    input_rows<BFloat16, 5, 1, 1, 2, 0>(DataType::bfloat16),
    input_rows<BFloat16, 5, 2, 2, 2, 2>(DataType::bfloat16),
    input_rows<BFloat16, 5, 2, 1, 1, 2>(DataType::bfloat16),
    input_rows<BFloat16, 7, 2, 1, 1, 1, 3>(DataType::bfloat16),
    input_taps<BFloat16, 1, 4>(DataType::bfloat16),
    input_rows<float, 3, 1, 2, 4, 2, 4, 2, kWideFusedBlocks>(DataType::float32),
    input_rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    input_rows<float, 3, 2, 4, 1, 1, 4, 1, kWideFusedBlocks>(DataType::float32),
    input_rows<float, 3, 2, 1, 1, 1>(DataType::float32),
    input_rows<float, 5, 1, 2, 2, 4>(DataType::float32),
    input_rows<float, 5, 1, 1, 2, 4>(DataType::float32),
    input_rows<float, 5, 2, 2, 2, 2, 4, 2, kWideFusedBlocks>(DataType::float32),
    input_rows<float, 5, 2, 1, 1, 2>(DataType::float32),
    input_rows<float, 7, 1, 1, 2, 6, 3>(DataType::float32),
    input_rows<float, 7, 2, 1, 1, 3, 3>(DataType::float32),
    input_taps<float, 1, 4>(DataType::float32),
    input_rows<double, 3, 1, 1, 2, 1, 4, 0>(DataType::float64),
    input_rows<double, 3, 2, 1, 1, 1>(DataType::float64),
    input_taps<double, 1, 2>(DataType::float64),
};

InputInstance::Kernel InputInstance::*kernel_for(const DepthwiseBackwardArguments& a) {
  return a.prologue || a.gradient_prologue || a.grad_add ? &InputInstance::fused : &InputInstance::plain;
}

DepthwiseWanted<DepthwiseInputGradientParameters> wanted_of(const DepthwiseBackwardArguments& a) {
  return {kernel_for(a), a.x.dtype, a.window, multiplier_of(a),
          joined_channels({a.x, a.grad_y, a.gradient_prologue.output, a.grad_x, a.grad_add})};
}

std::string taps_unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  return a.grad_x ? "" : "grad_x is not wanted";
}

std::string rows_unsupported(const DepthwiseBackwardArguments& a) {
  const std::string reason = taps_unsupported(a);
  if (!reason.empty()) return reason;
  return instance_configs(kInputInstances, wanted_of(a), false).empty()
             ? "there is no kernel for such a window, not dilated, of that type and without a channel multiplier"
             : "";
}

template <bool kAnyWindow>
Configs configs(const DepthwiseBackwardArguments& a) {
  return instance_configs(kInputInstances, wanted_of(a), kAnyWindow);
}

template <bool kAnyWindow>
Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  return plan_of_pass(a, DepthwiseInputPass(a, choose_instance(kInputInstances, wanted_of(a), kAnyWindow, config)));
}

}  // namespace

tuning::Kernel<DepthwiseBackwardArguments> depthwise_rows_input() {
  return {"gpu_rows", rows_unsupported, configs<false>, plan<false>};
}
tuning::Kernel<DepthwiseBackwardArguments> depthwise_taps_input() {
  return {"gpu_taps", taps_unsupported, configs<true>, plan<true>};
}

Config depthwise_rows_input_prior(const DepthwiseBackwardArguments& a) {
  return instance_prior_config(kInputInstances, wanted_of(a), false, a.x.sizes[3]);
}

DepthwiseInputPass::DepthwiseInputPass(const DepthwiseBackwardArguments& a, const Instance& instance)
    : instance_(&instance), kernel_(instance_->*kernel_for(a)) {
  join_columns_ = input_columns_join(a, std::int64_t{instance_->tile.columns} * std::max(instance_->stride, 1));
  const DepthwiseGrid grid = input_grid_of(a, instance_->stride, overlap_of(*instance_));
  memory_ = kernel_ == instance_->plain ? instance_->plain_memory : instance_->fused_memory;
  if (a.sums) memory_ = std::max(memory_, bytes_of_block_sums(a.x.dtype, 2 * instance_->tile.channels));
  work_ = plan_depthwise_work(grid, instance_->tile, resident_blocks(kernel_, kItemThreads, memory_));
}

void* DepthwiseInputPass::take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
  return take_input_partials(a, work_, arena);
}

void DepthwiseInputPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  const DepthwiseInputGradientParameters p = input_parameters_of(a, work_, join_columns_, take_partials(a, arena));
  launch_following(kDepthwiseBackward, kernel_, work_.blocks(), kItemThreads, execution.stream, p, memory_);
  if (!a.sums) return;
  launch_gradient_sums(kDepthwiseBackward, p.partials, work_.splits, a.sums, a.x, execution.stream);
}

}  // namespace fusedsc::gpu
