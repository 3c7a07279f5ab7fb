#include "fusedsc/backward/pointwise_element_sink.h"
#include "fusedsc/backward/pointwise_kernels.h"
#include "fusedsc/backward/pointwise_weight_kernel.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/common/gpu/pointwise_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

using InputInstance = PointwiseInstance<PointwiseInputGradientParameters>;
using WeightInstance = PointwiseInstance<PointwiseWeightGradientParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
input_kernel(PointwiseInputGradientParameters parameters) {
  pointwise_input_gradient<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
input_elements_kernel(PointwiseInputGradientParameters parameters) {
  pointwise_input_gradient_elements<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_elements_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kSeams, true>(parameters);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr InputInstance input(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          input_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          input_kernel<T, Tile, kChannelsInner, 2, true>,
          input_gradient_memory_bytes<T, Tile, kChannelsInner, false>,
          input_gradient_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Of products of TensorFloat-32.
template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr InputInstance tf32_input() {
  return input<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr WeightInstance weight(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          weight_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          weight_kernel<T, Tile, kChannelsInner, 2, true>,
          WeightGradientProduct<T, Tile, kChannelsInner, false>::Loop::memory_bytes,
          WeightGradientProduct<T, Tile, kChannelsInner, true>::Loop::memory_bytes};
}

/// Of products of TensorFloat-32.
template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr WeightInstance tf32_weight() {
  return weight<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

/// Of tensors with elements that are no runs.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false,
          int kBlocks = 3>
constexpr InputInstance input_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr auto kKernel = input_elements_kernel<T, Tile, kChannelsInner, kBlocks, true>;
  constexpr auto kMemory = input_elements_memory_bytes<T, Tile, kChannelsInner, true>;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without seams.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr InputInstance plain_input_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          input_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          input_elements_kernel<T, Tile, kChannelsInner, 2, true>,
          input_elements_memory_bytes<T, Tile, kChannelsInner, false>,
          input_elements_memory_bytes<T, Tile, kChannelsInner, true>};
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false>
constexpr WeightInstance weight_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr auto kKernel = weight_elements_kernel<T, Tile, kChannelsInner, 2, true>;
  constexpr auto kMemory = WeightGradientProduct<T, Tile, kChannelsInner, true, true>::Loop::memory_bytes;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without seams.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr WeightInstance plain_weight_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          weight_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          weight_elements_kernel<T, Tile, kChannelsInner, 2, true>,
          WeightGradientProduct<T, Tile, kChannelsInner, false, true>::Loop::memory_bytes,
          WeightGradientProduct<T, Tile, kChannelsInner, true, true>::Loop::memory_bytes};
}

/// As in the forward pass.
const InputInstance kInputInstances[] = {
    // channels inner; rows, columns, depth, parts; blocks that shall fit a multiprocessor
    input<Float16, true, 128, 32, 32>(DataType::float16),
    input<Float16, true, 64, 64, 64>(DataType::float16),
    input<Float16, true, 32, 32, 128, 4>(DataType::float16),
    input<Float16, false, 64, 64, 32>(DataType::float16),
    input<Float16, false, 32, 128, 32>(DataType::float16),
    input<Float16, false, 32, 32, 128, 4>(DataType::float16),
    input<BFloat16, true, 128, 32, 32>(DataType::bfloat16),
    input<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    input<BFloat16, true, 32, 32, 128, 4>(DataType::bfloat16),
    input<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    input<BFloat16, false, 32, 128, 32>(DataType::bfloat16),
    input<BFloat16, false, 32, 32, 128, 4>(DataType::bfloat16),
    input<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    input<float, true, 128, 32, 16, 1, 4>(DataType::float32),
    input<float, true, 64, 32, 32, 2, 4>(DataType::float32),
    input<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    input<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    input<float, false, 32, 128, 16>(DataType::float32),
    input<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    input<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    tf32_input<true, 128, 64, 32>(),
    tf32_input<true, 64, 64, 32>(),
    tf32_input<true, 128, 32, 32>(),
    tf32_input<true, 32, 32, 32, 4>(),
    tf32_input<false, 64, 128, 32>(),
    tf32_input<false, 64, 64, 32>(),
    tf32_input<false, 32, 128, 32>(),
    tf32_input<false, 32, 32, 32, 4>(),
#endif
    input<double, true, 32, 32, 16>(DataType::float64),
    input<double, false, 32, 32, 16>(DataType::float64),
    // of elements
    input_elements<Float16, true, 64, 32, 64>(DataType::float16),
    input_elements<Float16, true, 32, 32, 64, 4>(DataType::float16),
    input_elements<Float16, false, 64, 64, 32>(DataType::float16),
    input_elements<Float16, false, 32, 32, 64, 4>(DataType::float16),
    input_elements<BFloat16, true, 64, 32, 64>(DataType::bfloat16),
    input_elements<BFloat16, true, 32, 32, 64, 4>(DataType::bfloat16),
    input_elements<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    input_elements<BFloat16, false, 32, 32, 64, 4>(DataType::bfloat16),
    plain_input_elements<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    plain_input_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    plain_input_elements<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    plain_input_elements<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    plain_input_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    input_elements<float, true, 64, 64, 32, 1, true, 2>(DataType::float32),
    input_elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    input_elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    input_elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    input_elements<double, true, 32, 32, 16>(DataType::float64),
    input_elements<double, false, 32, 32, 16>(DataType::float64),
};

/// Rows are outputs, columns channels; depth counts positions.
const WeightInstance kWeightInstances[] = {
    // channels inner; rows, columns, depth, parts; blocks that shall fit a multiprocessor
    weight<Float16, true, 128, 32, 64>(DataType::float16),
    weight<Float16, true, 64, 64, 64>(DataType::float16),
    weight<Float16, true, 32, 32, 64, 4>(DataType::float16),
    weight<Float16, false, 64, 64, 64>(DataType::float16),
    weight<Float16, false, 32, 32, 64, 4>(DataType::float16),
    weight<BFloat16, true, 128, 32, 64>(DataType::bfloat16),
    weight<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    weight<BFloat16, true, 32, 32, 64, 4>(DataType::bfloat16),
    weight<BFloat16, false, 64, 64, 64>(DataType::bfloat16),
    weight<BFloat16, false, 32, 32, 64, 4>(DataType::bfloat16),
    weight<float, true, 64, 64, 16>(DataType::float32),
    weight<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    weight<float, false, 64, 64, 16>(DataType::float32),
    weight<float, false, 32, 32, 32, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    tf32_weight<true, 128, 64, 32>(),
    tf32_weight<true, 64, 64, 32, 1, 2>(),
    tf32_weight<true, 128, 32, 32>(),
    tf32_weight<true, 32, 32, 32, 4>(),
    tf32_weight<false, 128, 64, 32>(),
    tf32_weight<false, 64, 64, 32>(),
    tf32_weight<false, 128, 32, 32, 1, 2>(),
    tf32_weight<false, 32, 32, 32, 4>(),
#endif
    weight<double, true, 32, 32, 16>(DataType::float64),
    weight<double, false, 32, 32, 16>(DataType::float64),
    // of elements
    weight_elements<Float16, true, 64, 64, 64>(DataType::float16),
    weight_elements<Float16, true, 32, 32, 64, 4>(DataType::float16),
    weight_elements<Float16, false, 64, 64, 64>(DataType::float16),
    weight_elements<Float16, false, 32, 32, 64, 4>(DataType::float16),
    weight_elements<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    weight_elements<BFloat16, true, 32, 32, 64, 4>(DataType::bfloat16),
    weight_elements<BFloat16, false, 64, 64, 64>(DataType::bfloat16),
    weight_elements<BFloat16, false, 32, 32, 64, 4>(DataType::bfloat16),
    plain_weight_elements<float, true, 64, 64, 16>(DataType::float32),
    plain_weight_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    plain_weight_elements<float, false, 64, 64, 16>(DataType::float32),
    plain_weight_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    weight_elements<float, true, 64, 64, 32, 1, true>(DataType::float32),
    weight_elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    weight_elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    weight_elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    weight_elements<double, true, 32, 32, 16>(DataType::float64),
    weight_elements<double, false, 32, 32, 16>(DataType::float64),
};

std::int64_t sum_bytes(const PointwiseBackwardArguments& a) {
  return static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
}

class InputPass {
 public:
  InputPass(const PointwiseBackwardArguments& a, Arena& arena) {
    const bool inner = channels_inner(a.grad_y, a.grad_x);
    use_.seams = a.prologue || a.gradient_prologue || a.grad_add;
    (inner ? use_.rows_other : use_.cols_other) = static_cast<bool>(a.gradient_prologue);
    PointwiseProductParameters& product = p_.product;
    product.activations = activation_matrix(a.grad_y, a.groups, inner);
    product.weight = weight_matrix(a.weight, a.groups);
    product.seam = gradient_seam(a, inner);
    if (a.prologue) p_.x = activation_matrix(a.x, a.groups, inner);
    p_.grad_add = activation_matrix(a.grad_add, a.groups, inner);
    p_.grad_x = output_matrix(a.grad_x, a.groups, inner);
    use_.elements = has_elements(p_.grad_x.run_bytes, a.x.sizes[1], product.activations.run_bytes, a.grad_y.sizes[1]);
    const PointwiseProblem problem{a.x.dtype,
                                   inner,
                                   a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                                   a.grad_y.sizes[1] / a.groups,
                                   a.x.sizes[1] / a.groups,
                                   a.groups};
    const int size = multiprocessors();
    const auto plan = [&](const InputInstance& candidate) {
      const int resident = resident_blocks(kernel_of(candidate, use_), kMatrixThreads, memory_of(candidate, use_));
      return plan_product(problem, candidate.tile, resident, size, product);
    };
    instance_ = &cheapest(kInputInstances, a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), inner, use_, plan);
    plan(*instance_);
    p_.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
    p_.mean = a.sums.mean.data;
    if (a.sums) p_.partials = arena.take<char>(2 * product.splits * a.x.sizes[1] * sum_bytes(a));
  }

  static PointwiseSeam gradient_seam(const PointwiseBackwardArguments& a, bool inner) {
    const GradientPrologue& prologue = a.gradient_prologue;
    return {prologue.grad_scale.data, prologue.offset.data, prologue.output_scale.data, Activation::identity,
            activation_matrix(prologue.output, a.groups, inner)};
  }

  void run(const PointwiseBackwardArguments& a, void* stream) const {
    launch_following(kName, kernel_of(*instance_, use_), p_.product.blocks(), kMatrixThreads, stream, p_,
                     memory_of(*instance_, use_));
    if (!a.sums) return;
    launch_gradient_sums(kName, p_.partials, p_.product.splits, a.sums, a.x, stream);
  }

 private:
  const InputInstance* instance_ = nullptr;
  PointwiseMemoryUse use_;
  PointwiseInputGradientParameters p_;
};

class WeightPass {
 public:
  WeightPass(const PointwiseBackwardArguments& a, Arena& arena) {
    const bool inner = channels_inner(a.x, a.grad_y);
    use_.seams = a.prologue || a.gradient_prologue;
    use_.rows_other = static_cast<bool>(a.gradient_prologue);
    p_.grad_y = activation_matrix(a.grad_y, a.groups, inner);
    p_.x = activation_matrix(a.x, a.groups, inner);
    p_.grad_y_seam = InputPass::gradient_seam(a, inner);
    use_.elements = has_elements(p_.x.run_bytes, a.x.sizes[1], p_.grad_y.run_bytes, a.grad_y.sizes[1]);
    const PointwiseProblem problem{a.x.dtype,
                                   inner,
                                   a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                                   a.x.sizes[1] / a.groups,
                                   a.grad_y.sizes[1] / a.groups,
                                   a.groups};
    const int size = multiprocessors();
    const auto plan = [&](const WeightInstance& candidate) {
      const int resident = resident_blocks(kernel_of(candidate, use_), kMatrixThreads, memory_of(candidate, use_));
      return plan_weight_gradient(problem, candidate.tile, resident, size);
    };
    instance_ = &cheapest(kWeightInstances, a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), inner, use_,
                          [&](const WeightInstance& candidate) { return plan(candidate).cost; });
    set_plan(problem, plan(*instance_));
    p_.x_seam = {a.prologue.scale.data, a.prologue.shift.data, nullptr, a.prologue.activation, {}};
    if (a.grad_weight && p_.splits == 1) p_.weight = weight_output_matrix(a.grad_weight, a.groups);
    else if (a.grad_weight) p_.partials = arena.take<char>(p_.splits * a.weight.elements() * sum_bytes(a));
    if (a.grad_bias) p_.bias_partials = arena.take<char>(p_.splits * a.grad_y.sizes[1] * sum_bytes(a));
  }

  void set_plan(const PointwiseProblem& problem, const WeightGradientPlan& plan) {
    p_.pixels = static_cast<int>(problem.pixels);
    p_.outputs = static_cast<int>(problem.channels);
    p_.channels = static_cast<int>(problem.depth);
    p_.groups = static_cast<int>(problem.groups);
    p_.output_tiles = plan.output_tiles;
    p_.channel_tiles = plan.channel_tiles;
    p_.splits = plan.splits;
    p_.split_steps = plan.split_steps;
    p_.by_channel_tiles = Divisor(static_cast<std::uint32_t>(plan.channel_tiles));
    p_.by_output_tiles = Divisor(static_cast<std::uint32_t>(plan.output_tiles));
    p_.by_splits = Divisor(static_cast<std::uint32_t>(plan.splits));
  }

  void run(const PointwiseBackwardArguments& a, void* stream) const {
    launch_following(kName, kernel_of(*instance_, use_), p_.blocks(), kMatrixThreads, stream, p_,
                     memory_of(*instance_, use_));
    const auto outputs = static_cast<int>(a.grad_y.sizes[1]);
    if (p_.partials != nullptr) {
      SumPartialsParameters sum;
      sum.partials = p_.partials;
      sum.splits = p_.splits;
      sum.taps = sum.rows = outputs;
      sum.channels = p_.channels;
      sum.weight.data = a.grad_weight.data;  // rows are outputs
      sum.weight.image = a.grad_weight.strides[1];
      sum.weight.row = a.grad_weight.strides[0];
      launch_sum_partials(kName, a.x.dtype, sum, stream);
    }
    if (p_.bias_partials != nullptr) {
      SumPartialsParameters sum;
      sum.partials = p_.bias_partials;
      sum.splits = p_.splits;
      sum.rows = 1;
      sum.channels = outputs;
      sum.bias = a.grad_bias.data;
      launch_sum_partials(kName, a.x.dtype, sum, stream);
    }
  }

 private:
  const WeightInstance* instance_ = nullptr;
  PointwiseMemoryUse use_;
  PointwiseWeightGradientParameters p_;
};

/// Runs what is wanted, or, without execution, only measures the workspace.
std::size_t backward(const PointwiseBackwardArguments& a, const Execution* execution) {
  Arena arena(execution != nullptr ? execution->workspace : nullptr);
  if (a.grad_x) {
    const InputPass pass(a, arena);
    if (execution != nullptr) pass.run(a, execution->stream);
  }
  if (a.grad_weight || a.grad_bias) {
    const WeightPass pass(a, arena);
    if (execution != nullptr) pass.run(a, execution->stream);
  }
  return arena.used();
}

}  // namespace
}  // namespace gpu

Implementation<PointwiseBackwardArguments> pointwise_backward_gpu() {
  return {
      .name = "gpu_tiles",
      .why_not =
          [](const PointwiseBackwardArguments& a) {
            const std::string elsewhere = needs_device(Device::gpu, a.x.device);
            return !elsewhere.empty() ? elsewhere : gpu::too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
          },
      .workspace_bytes = [](const PointwiseBackwardArguments& a, int) { return gpu::backward(a, nullptr); },
      .run = [](const PointwiseBackwardArguments& a, const Execution& execution) { gpu::backward(a, &execution); },
  };
}

}  // namespace fusedsc
