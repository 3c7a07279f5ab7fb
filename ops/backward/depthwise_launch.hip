#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_input_kernel.h"
#include "fusedsc/backward/depthwise_weight_kernel.h"
#include "fusedsc/common/gpu/depthwise_plan.h"
#include "fusedsc/common/gpu/launch.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

using InputInstance = DepthwiseInstance<DepthwiseInputGradientParameters>;
using WeightInstance = DepthwiseInstance<DepthwiseWeightGradientParameters>;

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks, bool kSeams>
FUSEDSC_KERNEL(kDepthwiseThreads, kBlocks)
input_rows_kernel(DepthwiseInputGradientParameters parameters) {
  DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kSeams>::run(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kDepthwiseThreads, 4)
input_taps_kernel(DepthwiseInputGradientParameters parameters) {
  depthwise_input_gradient_taps<T, kChannels, kColumns>(parameters);
}

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks, bool kSeams>
FUSEDSC_KERNEL(kDepthwiseThreads, kBlocks)
weight_rows_kernel(DepthwiseWeightGradientParameters parameters) {
  DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kAhead, kSeams>::run(parameters);
}

constexpr int kTapGroup = 4;

template <class T, int kChannels>
FUSEDSC_KERNEL(kDepthwiseThreads, 4)
weight_taps_kernel(DepthwiseWeightGradientParameters parameters) {
  depthwise_weight_gradient_taps<T, kChannels, kTapGroup>(parameters);
}

/// Whole periods must be as long with seams, where fewer rows ahead may have to do.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kSeamsAhead = kAhead, int kSeamsBlocks = 2>
constexpr InputInstance input_rows(DataType dtype) {
  constexpr int kLive = (kKernel - 1) / kStride + 1;
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kSeamsRows = rows_ahead<T, kChannels, kKernel>(kStride, kSeamsAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : common_multiple(kLive, kRows + 1);
  InputInstance instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod}};
  instance.plain = input_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, false>;
  instance.seams = input_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kSeamsRows, kSeamsBlocks, true>;
  instance.plain_memory = DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, false>::kBytes;
  instance.seams_memory =
      DepthwiseInputGradientRows<T, kKernel, kStride, kChannels, kColumns, kSeamsRows, true>::kBytes;
  return instance;
}

template <class T, int kChannels, int kColumns>
constexpr InputInstance input_taps(DataType dtype) {
  constexpr auto kernel = input_taps_kernel<T, kChannels, kColumns>;
  return {dtype, 0, 0, {kChannels, kColumns, 1}, kernel, kernel};
}

template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, int kBlocks = 4,
          int kSeamsBlocks = 2>
constexpr WeightInstance weight_rows(DataType dtype) {
  constexpr int kRows = rows_ahead<T, kChannels, kKernel>(kStride, kAhead);
  constexpr int kPeriod = kRowsInMemory<T, kChannels, kKernel> ? 1 : forward_period(kKernel, kStride, kRows);
  constexpr int kLeastWidth = kColumns > 4 ? 2 * kColumns : 0;  // narrower ones leave too many columns without work
  WeightInstance instance{dtype, kKernel, kStride, {kChannels, kColumns, kPeriod, kLeastWidth}};
  instance.plain = weight_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kBlocks, false>;
  instance.plain_memory = DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, false>::kBytes;
  if constexpr (kSeamsBlocks > 0) {
    instance.seams = weight_rows_kernel<T, kKernel, kStride, kChannels, kColumns, kRows, kSeamsBlocks, true>;
    instance.seams_memory = DepthwiseWeightGradientRows<T, kKernel, kStride, kChannels, kColumns, kRows, true>::kBytes;
  }
  return instance;
}

template <class T, int kChannels>
constexpr WeightInstance weight_taps(DataType dtype) {
  constexpr auto kernel = weight_taps_kernel<T, kChannels>;
  return {dtype, 0, 0, {kChannels, 1, 1}, kernel, kernel};
}

/// As in the forward pass; columns and rows of the input gradient are counted in strides. The plain ones of stride 1
/// serve paddings that as_forward() does not.
const InputInstance kInputInstances[] = {
    // kernel, stride, channels, columns, ahead
    input_rows<Float16, 3, 1, 2, 4, 2>(DataType::float16),
    input_rows<Float16, 3, 1, 1, 2, 2>(DataType::float16),
    input_rows<Float16, 3, 2, 4, 1, 3, 5>(DataType::float16),
    input_rows<Float16, 3, 2, 2, 2, 3>(DataType::float16),
    input_rows<Float16, 3, 2, 1, 1, 1>(DataType::float16),
    input_rows<Float16, 5, 1, 2, 4, 4, 3>(DataType::float16),
    input_rows<Float16, 5, 1, 1, 2, 0>(DataType::float16),
    input_rows<Float16, 5, 2, 2, 2, 2>(DataType::float16),
    input_rows<Float16, 5, 2, 1, 1, 2>(DataType::float16),
    input_rows<Float16, 7, 1, 1, 2, 0, 3>(DataType::float16),
    input_rows<Float16, 7, 2, 1, 1, 1, 3>(DataType::float16),
    input_taps<Float16, 4, 2>(DataType::float16),
    input_taps<Float16, 1, 4>(DataType::float16),
    input_rows<BFloat16, 3, 1, 2, 4, 2>(DataType::bfloat16),
    input_rows<BFloat16, 3, 1, 1, 2, 2>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 4, 1, 3, 5>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 2, 2, 3>(DataType::bfloat16),
    input_rows<BFloat16, 3, 2, 1, 1, 1>(DataType::bfloat16),
    input_rows<BFloat16, 5, 1, 2, 4, 4, 3>(DataType::bfloat16),
    input_rows<BFloat16, 5, 1, 1, 2, 0>(DataType::bfloat16),
    input_rows<BFloat16, 5, 2, 2, 2, 2>(DataType::bfloat16),
    input_rows<BFloat16, 5, 2, 1, 1, 2>(DataType::bfloat16),
    input_rows<BFloat16, 7, 1, 1, 2, 0, 3>(DataType::bfloat16),
    input_rows<BFloat16, 7, 2, 1, 1, 1, 3>(DataType::bfloat16),
    input_taps<BFloat16, 4, 2>(DataType::bfloat16),
    input_taps<BFloat16, 1, 4>(DataType::bfloat16),
    input_rows<float, 3, 1, 2, 4, 2>(DataType::float32),
    input_rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    input_rows<float, 3, 2, 4, 1, 1>(DataType::float32),
    input_rows<float, 3, 2, 1, 1, 1>(DataType::float32),
    input_rows<float, 5, 1, 2, 2, 4>(DataType::float32),
    input_rows<float, 5, 1, 1, 2, 4>(DataType::float32),
    input_rows<float, 5, 2, 2, 2, 2>(DataType::float32),
    input_rows<float, 5, 2, 1, 1, 2>(DataType::float32),
    input_rows<float, 7, 1, 1, 2, 6, 3>(DataType::float32),
    input_rows<float, 7, 2, 1, 1, 3, 3>(DataType::float32),
    input_taps<float, 4, 2>(DataType::float32),
    input_taps<float, 1, 4>(DataType::float32),
    input_rows<double, 3, 1, 1, 2, 1>(DataType::float64),
    input_rows<double, 3, 2, 1, 1, 1>(DataType::float64),
    input_taps<double, 1, 2>(DataType::float64),
};

const WeightInstance kWeightInstances[] = {
    // kernel, stride, channels, columns, ahead
    weight_rows<Float16, 3, 1, 4, 4, 2>(DataType::float16),
    weight_rows<Float16, 3, 1, 2, 4, 2>(DataType::float16),
    weight_rows<Float16, 3, 1, 1, 2, 2, 3>(DataType::float16),
    weight_rows<Float16, 3, 2, 4, 2, 3>(DataType::float16),
    weight_rows<Float16, 3, 2, 2, 2, 3>(DataType::float16),
    weight_rows<Float16, 3, 2, 1, 2, 1, 3>(DataType::float16),
    weight_rows<Float16, 5, 1, 2, 6, 4, 3, 0>(DataType::float16),
    weight_rows<Float16, 5, 1, 2, 4, 4, 3>(DataType::float16),
    weight_rows<Float16, 5, 1, 1, 4, 0, 2>(DataType::float16),
    weight_rows<Float16, 5, 2, 2, 2, 5>(DataType::float16),
    weight_rows<Float16, 5, 2, 1, 2, 1, 2>(DataType::float16),
    weight_rows<Float16, 7, 1, 1, 2, 0, 2>(DataType::float16),
    weight_rows<Float16, 7, 2, 1, 1, 1, 2>(DataType::float16),
    weight_taps<Float16, 4>(DataType::float16),
    weight_taps<Float16, 1>(DataType::float16),
    weight_rows<BFloat16, 3, 1, 4, 4, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 1, 2, 4, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 1, 1, 2, 2, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 4, 2, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 2, 2, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 3, 2, 1, 2, 1, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 2, 6, 4, 3, 0>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 2, 4, 4, 3>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 1, 1, 4, 0, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 2, 2, 2, 5>(DataType::bfloat16),
    weight_rows<BFloat16, 5, 2, 1, 2, 1, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 7, 1, 1, 2, 0, 2>(DataType::bfloat16),
    weight_rows<BFloat16, 7, 2, 1, 1, 1, 2>(DataType::bfloat16),
    weight_taps<BFloat16, 4>(DataType::bfloat16),
    weight_taps<BFloat16, 1>(DataType::bfloat16),
    weight_rows<float, 3, 1, 2, 4, 5>(DataType::float32),
    weight_rows<float, 3, 1, 1, 2, 2>(DataType::float32),
    weight_rows<float, 3, 2, 4, 1, 3>(DataType::float32),
    weight_rows<float, 3, 2, 1, 2, 1>(DataType::float32),
    weight_rows<float, 5, 1, 2, 2, 4>(DataType::float32),
    weight_rows<float, 5, 1, 1, 4, 4>(DataType::float32),
    weight_rows<float, 5, 2, 1, 4, 5, 6>(DataType::float32),
    weight_rows<float, 7, 1, 1, 2, 6, 2>(DataType::float32),
    weight_rows<float, 7, 2, 1, 1, 3, 2>(DataType::float32),
    weight_taps<float, 4>(DataType::float32),
    weight_taps<float, 1>(DataType::float32),
    weight_rows<double, 3, 1, 1, 2, 1, 3>(DataType::float64),
    weight_rows<double, 3, 2, 1, 1, 1, 3>(DataType::float64),
    weight_taps<double, 1>(DataType::float64),
};

constexpr const char* kName = "depthwise_conv2d_backward";

DevicePrologue prologue_of(const Prologue& prologue) {
  return {prologue.scale.data, prologue.shift.data, prologue.activation};
}

DeviceGradientPrologue prologue_of(const GradientPrologue& prologue) {
  return {prologue.grad_scale.data, prologue.output_scale.data, prologue.offset.data, prologue.output};
}

std::int64_t multiplier_of(const DepthwiseBackwardArguments& a) {
  return a.x.sizes[1] > 0 ? a.grad_y.sizes[1] / a.x.sizes[1] : 1;
}

bool is_double(const DepthwiseBackwardArguments& a) { return a.x.dtype == DataType::float64; }

/// Memory for `rows` partial sums per split and channel.
void* take_partials(Arena& arena, const DepthwiseBackwardArguments& a, const DepthwiseWork& work, std::int64_t rows,
                    std::int64_t channels) {
  const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
  return arena.take<char>(work.splits * rows * channels * bytes);
}

class InputPass {
 public:
  InputPass(const DepthwiseBackwardArguments& a, Arena& arena)
      : instance_(choose_instance(kInputInstances, kernel_for(a), a.x.dtype, a.window, a.x.sizes[3], multiplier_of(a),
                                  {a.x, a.grad_y, a.gradient_prologue.output, a.grad_x, a.grad_add})),
        kernel_(instance_.*kernel_for(a)) {
    p_.grad_y = a.grad_y;
    p_.weight = a.weight;
    if (a.prologue) p_.x = a.x;
    p_.grad_add = a.grad_add;
    p_.gradient_prologue = prologue_of(a.gradient_prologue);
    p_.prologue = prologue_of(a.prologue);
    p_.mean = a.sums.mean.data;
    p_.grad_x = a.grad_x;
    p_.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, a.window);
    p_.shape.channels = static_cast<int>(a.x.sizes[1]);
    p_.stride_height = Divisor(static_cast<std::uint32_t>(a.window.stride[0]));
    p_.stride_width = Divisor(static_cast<std::uint32_t>(a.window.stride[1]));
    const bool whole_strides = a.window.padding.left % a.window.stride[1] == 0;
    p_.join_columns = whole_strides && columns_join(instance_.tile.columns * std::max(instance_.stride, 1), a.grad_x);
    // A specialised kernel's items are made of whole strides of the padded input.
    const std::int64_t stride = std::max(instance_.stride, 1);
    const auto blocks = [&](std::int64_t size, std::int64_t padding) {
      return instance_.stride == 0 || size == 0 ? size : (size + padding - 1) / stride + 1 - padding / stride;
    };
    const DepthwiseGrid grid{a.x.sizes[0],
                             a.x.sizes[1],
                             blocks(a.x.sizes[2], a.window.padding.top),
                             blocks(a.x.sizes[3], a.window.padding.left),
                             static_cast<std::int64_t>(size_of(a.x.dtype)),
                             a.grad_y.strides[1] < a.grad_y.strides[3],
                             overlap_of(instance_)};
    memory_ = kernel_ == instance_.plain ? instance_.plain_memory : instance_.seams_memory;
    if (a.sums) {
      memory_ = std::max(memory_, is_double(a) ? block_sums_bytes<double>(2 * instance_.tile.channels)
                                               : block_sums_bytes<float>(2 * instance_.tile.channels));
    }
    p_.work = plan_depthwise_work(grid, instance_.tile, resident_blocks(kernel_, kDepthwiseThreads, memory_));
    if (a.sums) p_.partials = take_partials(arena, a, p_.work, 2, a.x.sizes[1]);
  }

  void run(const DepthwiseBackwardArguments& a, void* stream) const {
    launch(kName, kernel_, p_.work.blocks(), kDepthwiseThreads, memory_, stream, p_);
    if (!a.sums) return;
    SumPartialsParameters sum;
    sum.partials = p_.partials;
    sum.splits = p_.work.splits;
    sum.rows = 2;
    sum.channels = p_.shape.channels;
    sum.vectors[0] = a.sums.grad.data;
    sum.vectors[1] = a.sums.grad_times_centered.data;
    launch_sum_partials(kName, accumulation_type(a.x.dtype), sum, stream);
  }

 private:
  static InputInstance::Kernel InputInstance::*kernel_for(const DepthwiseBackwardArguments& a) {
    return a.prologue || a.gradient_prologue || a.grad_add ? &InputInstance::seams : &InputInstance::plain;
  }

  const InputInstance& instance_;
  InputInstance::Kernel kernel_;
  DepthwiseInputGradientParameters p_;
  std::size_t memory_ = 0;  ///< of a block
};

class WeightPass {
 public:
  WeightPass(const DepthwiseBackwardArguments& a, Arena& arena)
      : instance_(choose_instance(kWeightInstances, kernel_for(a), a.x.dtype, a.window, a.grad_y.sizes[3],
                                  multiplier_of(a), {a.x, a.grad_y, a.gradient_prologue.output})),
        kernel_(instance_.*kernel_for(a)) {
    p_.x = a.x;
    p_.grad_y = a.grad_y;
    p_.prologue = prologue_of(a.prologue);
    p_.gradient_prologue = prologue_of(a.gradient_prologue);
    p_.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, a.window);
    taps_ = p_.shape.kernel_height * p_.shape.kernel_width;
    if (instance_.kernel == 0) {
      tap_groups_ = std::int64_t{p_.shape.kernel_height} * ((p_.shape.kernel_width + kTapGroup - 1) / kTapGroup);
    }
    p_.by_tap_groups = Divisor(static_cast<std::uint32_t>(tap_groups_));
    const DepthwiseGrid grid{a.grad_y.sizes[0],
                             a.grad_y.sizes[1],
                             a.grad_y.sizes[2],
                             a.grad_y.sizes[3],
                             static_cast<std::int64_t>(size_of(a.x.dtype)),
                             a.grad_y.strides[1] < a.grad_y.strides[3],
                             overlap_of(instance_),
                             true};
    const int values = instance_.tile.channels * (instance_.kernel * instance_.kernel + 1);
    memory_ = std::max(kernel_ == instance_.plain ? instance_.plain_memory : instance_.seams_memory,
                       is_double(a) ? block_sums_bytes<double>(values) : block_sums_bytes<float>(values));
    p_.work = plan_depthwise_work(grid, instance_.tile, resident_blocks(kernel_, kDepthwiseThreads, memory_));
    p_.partials = take_partials(arena, a, p_.work, taps_ + 1, a.grad_y.sizes[1]);
  }

  void run(const DepthwiseBackwardArguments& a, void* stream) const {
    launch(kName, kernel_, p_.work.blocks() * tap_groups_, kDepthwiseThreads, memory_, stream, p_);
    SumPartialsParameters sum;
    sum.partials = p_.partials;
    sum.splits = p_.work.splits;
    sum.taps = taps_;
    sum.kernel_width = p_.shape.kernel_width;
    sum.rows = taps_ + 1;
    sum.channels = p_.shape.channels;
    sum.weight = a.grad_weight;
    sum.vectors[0] = a.grad_bias.data;
    launch_sum_partials(kName, a.x.dtype, sum, stream);
  }

 private:
  static WeightInstance::Kernel WeightInstance::*kernel_for(const DepthwiseBackwardArguments& a) {
    return a.prologue || a.gradient_prologue ? &WeightInstance::seams : &WeightInstance::plain;
  }

  const WeightInstance& instance_;
  WeightInstance::Kernel kernel_;
  DepthwiseWeightGradientParameters p_;
  std::size_t memory_ = 0;  ///< of a block
  int taps_ = 0;
  std::int64_t tap_groups_ = 1;
};

/// The input gradient as a forward pass over grad_y, with the weight turned around; or without x where it is none.
DepthwiseArguments as_forward(const DepthwiseBackwardArguments& a) {
  DepthwiseArguments forward;
  const Window& window = a.window;
  const auto reach = [&](int axis) { return (window.kernel[axis] - 1) * window.dilation[axis]; };
  const bool is_one = window.stride == std::array<std::int64_t, 2>{1, 1} && multiplier_of(a) == 1 && !a.prologue &&
                      !a.gradient_prologue;
  if (!is_one || window.padding.top > reach(0) || window.padding.left > reach(1)) return forward;
  forward.x = a.grad_y;
  forward.weight = a.weight;
  for (const int axis : {2, 3}) {
    const std::int64_t last = a.weight.sizes[axis] - 1;
    forward.weight.data = static_cast<const char*>(forward.weight.data) +
                          last * a.weight.strides[axis] * static_cast<std::int64_t>(size_of(a.weight.dtype));
    forward.weight.strides[axis] = -a.weight.strides[axis];
  }
  forward.window = window;
  forward.window.padding = {.left = reach(1) - window.padding.left, .top = reach(0) - window.padding.top};
  forward.epilogue.residual = a.grad_add;
  forward.y = a.grad_x;
  return forward;
}

/// Runs what is wanted, or, without execution, only measures the workspace.
std::size_t backward(const DepthwiseBackwardArguments& a, const Execution* execution) {
  Arena arena(execution != nullptr ? execution->workspace : nullptr);
  if (a.grad_x) {
    if (const DepthwiseArguments forward = as_forward(a); forward.x) {
      if (execution != nullptr) depthwise_gpu().run(forward, rest_of(*execution, arena));
    } else {
      const InputPass pass(a, arena);
      if (execution != nullptr) pass.run(a, execution->stream);
    }
  }
  if (a.grad_weight || a.grad_bias) {
    const WeightPass pass(a, arena);
    if (execution != nullptr) pass.run(a, execution->stream);
  }
  return arena.used();
}

}  // namespace
}  // namespace gpu

Implementation<DepthwiseBackwardArguments> depthwise_backward_gpu() {
  return {
      .name = "gpu",
      .why_not =
          [](const DepthwiseBackwardArguments& a) {
            const std::string elsewhere = needs_device(Device::gpu, a.x.device);
            return !elsewhere.empty() ? elsewhere : gpu::too_large_for_gpu(a.x.sizes, a.grad_y.sizes, a.window);
          },
      .workspace_bytes = [](const DepthwiseBackwardArguments& a, int) { return gpu::backward(a, nullptr); },
      .run = [](const DepthwiseBackwardArguments& a, const Execution& execution) { gpu::backward(a, &execution); },
  };
}

}  // namespace fusedsc
