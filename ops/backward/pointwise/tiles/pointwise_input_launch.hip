#include "fusedsc/backward/pointwise/tiles/pointwise_element_sink.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"

namespace fusedsc::gpu {
namespace {

using Instance = PointwiseInstance<PointwiseInputGradientParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
input_kernel(PointwiseInputGradientParameters parameters) {
  pointwise_input_gradient<T, Tile, kChannelsInner, kFused>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
input_elements_kernel(PointwiseInputGradientParameters parameters) {
  pointwise_input_gradient_elements<T, Tile, kChannelsInner, kFused>(parameters);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr Instance input(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          input_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          input_kernel<T, Tile, kChannelsInner, FUSEDSC_FUSED_PRODUCT_BLOCKS, true>,
          input_gradient_memory_bytes<T, Tile, kChannelsInner, false>,
          input_gradient_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Of products of TensorFloat-32.
template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance tf32_input() {
  return input<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

/// Of tensors with elements that are no runs.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false,
          int kBlocks = 3>
constexpr Instance input_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr auto kKernel = input_elements_kernel<T, Tile, kChannelsInner, kBlocks, true>;
  constexpr auto kMemory = input_elements_memory_bytes<T, Tile, kChannelsInner, true>;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without fusion.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          int kFusedBlocks = FUSEDSC_FUSED_PRODUCT_BLOCKS>
constexpr Instance plain_input_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          input_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          input_elements_kernel<T, Tile, kChannelsInner, kFusedBlocks, true>,
          input_elements_memory_bytes<T, Tile, kChannelsInner, false>,
          input_elements_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// As in the forward pass.
const Instance kInstances[] = {
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
    plain_input_elements<float, false, 32, 64, 32, 2, 4, 2>(DataType::float32),  // spills on gfx942 otherwise
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

/// Sets everything about the tiles, and returns the kernel's cost.
double plan_tiles(const PointwiseGradientProblem& problem, const Instance& instance,
                  PointwiseProductParameters& parameters) {
  const PointwiseMemoryUse& use = problem.needs.use;
  const int resident = resident_blocks(kernel_of(instance, use), kMatrixThreads, memory_of(instance, use));
  return plan_product(problem.product, instance.tile, resident, multiprocessors(), parameters);
}

class Pass {
 public:
  Pass(const PointwiseBackwardArguments& a, const Instance& instance, Arena& arena) : instance_(&instance) {
    const PointwiseGradientProblem problem = input_problem_of(a);
    use_ = problem.needs.use;
    PointwiseProductParameters planned;
    plan_tiles(problem, instance, planned);
    p_ = input_parameters_of(a, problem.needs.channels_inner, planned, arena);
  }

  void run(const PointwiseBackwardArguments& a, void* stream) const {
    launch_following(kPointwiseBackward, kernel_of(*instance_, use_), p_.product.blocks(), kMatrixThreads, stream, p_,
                     memory_of(*instance_, use_));
    launch_sums(a, p_, stream);
  }

 private:
  const Instance* instance_;
  PointwiseMemoryUse use_;
  PointwiseInputGradientParameters p_;
};

}  // namespace

Configs pointwise_input_tiles(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, input_problem_of(a).needs);
}

Config cheapest_pointwise_input_tile(const PointwiseBackwardArguments& a) {
  const PointwiseGradientProblem problem = input_problem_of(a);
  return cheapest_tile(kInstances, problem.needs, [&](const Instance& instance) {
    PointwiseProductParameters product;
    return plan_tiles(problem, instance, product);
  });
}

Plan<PointwiseBackwardArguments> plan_pointwise_input_tiles(const PointwiseBackwardArguments& a, const Config& config) {
  const Instance& instance = instance_with(kInstances, input_problem_of(a).needs, config);
  Arena arena(nullptr);
  Pass(a, instance, arena);
  return {arena.used(), [&instance](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena memory(execution.workspace);
            Pass(like, instance, memory).run(like, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
