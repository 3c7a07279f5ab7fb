#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"

namespace fusedsc::gpu {
namespace {

using Instance = PointwiseInstance<PointwiseWeightGradientParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kFused>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
weight_elements_kernel(PointwiseWeightGradientParameters parameters) {
  pointwise_weight_gradient<T, Tile, kChannelsInner, kFused, true>(parameters);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr Instance weight(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          weight_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          weight_kernel<T, Tile, kChannelsInner, FUSEDSC_FUSED_PRODUCT_BLOCKS, true>,
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

/// Likewise, with a kernel of their own for products without fusion.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance plain_weight_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          weight_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          weight_elements_kernel<T, Tile, kChannelsInner, FUSEDSC_FUSED_PRODUCT_BLOCKS, true>,
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

WeightGradientPlan plan_tiles(const PointwiseGradientProblem& problem, const Instance& instance) {
  const PointwiseMemoryUse& use = problem.needs.use;
  const int resident = resident_blocks(kernel_of(instance, use), kMatrixThreads, memory_of(instance, use));
  return plan_weight_gradient(problem.product, instance.tile, resident, multiprocessors());
}

class Pass {
 public:
  Pass(const PointwiseBackwardArguments& a, const Instance& instance, Arena& arena) : instance_(&instance) {
    const PointwiseGradientProblem problem = weight_problem_of(a);
    use_ = problem.needs.use;
    p_ = weight_parameters_of(a, problem.product, plan_tiles(problem, instance), arena);
  }

  void run(const PointwiseBackwardArguments& a, void* stream) const {
    launch_following(kPointwiseBackward, kernel_of(*instance_, use_), p_.blocks(), kMatrixThreads, stream, p_,
                     memory_of(*instance_, use_));
    launch_sums(a, p_, stream);
  }

 private:
  const Instance* instance_;
  PointwiseMemoryUse use_;
  PointwiseWeightGradientParameters p_;
};

}  // namespace

Configs pointwise_weight_tiles(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, weight_problem_of(a).needs);
}

Config cheapest_pointwise_weight_tile(const PointwiseBackwardArguments& a) {
  const PointwiseGradientProblem problem = weight_problem_of(a);
  return cheapest_tile(kInstances, problem.needs,
                       [&](const Instance& instance) { return plan_tiles(problem, instance).cost; });
}

Plan<PointwiseBackwardArguments> plan_pointwise_weight_tiles(const PointwiseBackwardArguments& a,
                                                             const Config& config) {
  const Instance& instance = instance_with(kInstances, weight_problem_of(a).needs, config);
  Arena arena(nullptr);
  Pass(a, instance, arena);
  return {arena.used(), [&instance](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena memory(execution.workspace);
            Pass(like, instance, memory).run(like, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
