#include "fusedsc/backward/pointwise/tiles/pointwise_tiles.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_weight_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

using Instance = PointwiseInstance<PointwiseWeightGradientParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_elements_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kSeams, true>(parameters);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr Instance weight(DataType dtype) {
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
constexpr Instance tf32_weight() {
  return weight<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

/// Of tensors with elements that are no runs.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false>
constexpr Instance weight_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr auto kKernel = weight_elements_kernel<T, Tile, kChannelsInner, 2, true>;
  constexpr auto kMemory = WeightGradientProduct<T, Tile, kChannelsInner, true, true>::Loop::memory_bytes;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without seams.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance plain_weight_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          weight_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          weight_elements_kernel<T, Tile, kChannelsInner, 2, true>,
          WeightGradientProduct<T, Tile, kChannelsInner, false, true>::Loop::memory_bytes,
          WeightGradientProduct<T, Tile, kChannelsInner, true, true>::Loop::memory_bytes};
}

/// Rows are outputs, columns channels; depth counts positions.
const Instance kInstances[] = {
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

struct Problem {
  PointwiseNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseBackwardArguments& a)
      : needs{a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), gpu::channels_inner(a.x, a.grad_y), {}},
        product{a.x.dtype,
                needs.channels_inner,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.x.sizes[1] / a.groups,
                a.grad_y.sizes[1] / a.groups,
                a.groups} {
    const bool inner = needs.channels_inner;
    needs.use.seams = a.prologue || a.gradient_prologue;
    needs.use.rows_other = static_cast<bool>(a.gradient_prologue);
    needs.use.elements = has_elements(activation_matrix(a.x, a.groups, inner).run_bytes, a.x.sizes[1],
                                      activation_matrix(a.grad_y, a.groups, inner).run_bytes, a.grad_y.sizes[1]);
  }

  WeightGradientPlan plan(const Instance& instance) const {
    const PointwiseMemoryUse& use = needs.use;
    const int resident = resident_blocks(kernel_of(instance, use), kMatrixThreads, memory_of(instance, use));
    return plan_weight_gradient(product, instance.tile, resident, multiprocessors());
  }
};

class Pass {
 public:
  Pass(const PointwiseBackwardArguments& a, const Instance& instance, Arena& arena) : instance_(&instance) {
    const Problem problem(a);
    const bool inner = problem.needs.channels_inner;
    use_ = problem.needs.use;
    p_.grad_y = activation_matrix(a.grad_y, a.groups, inner);
    p_.x = activation_matrix(a.x, a.groups, inner);
    p_.grad_y_seam = gradient_seam(a, inner);
    set_plan(problem.product, problem.plan(instance));
    p_.x_seam = {a.prologue.scale.data, a.prologue.shift.data, nullptr, a.prologue.activation, {}};
    if (a.grad_weight && p_.splits == 1) p_.weight = weight_output_matrix(a.grad_weight, a.groups);
    else if (a.grad_weight) p_.partials = arena.take<char>(p_.splits * a.weight.elements() * sum_bytes(a));
    if (a.grad_bias) p_.bias_partials = arena.take<char>(p_.splits * a.grad_y.sizes[1] * sum_bytes(a));
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

  const Instance* instance_;
  PointwiseMemoryUse use_;
  PointwiseWeightGradientParameters p_;
};

}  // namespace

Configs pointwise_weight_tiles(const PointwiseBackwardArguments& a) { return configs_of(kInstances, Problem(a).needs); }

Config cheapest_pointwise_weight_tile(const PointwiseBackwardArguments& a) {
  const Problem problem(a);
  return cheapest_tile(kInstances, problem.needs,
                       [&](const Instance& instance) { return problem.plan(instance).cost; });
}

Plan<PointwiseBackwardArguments> plan_pointwise_weight_tiles(const PointwiseBackwardArguments& a,
                                                             const Config& config) {
  const Instance& instance = instance_with(kInstances, Problem(a).needs, config);
  Arena arena(nullptr);
  Pass(a, instance, arena);
  return {arena.used(), [&instance](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena memory(execution.workspace);
            Pass(like, instance, memory).run(like, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
