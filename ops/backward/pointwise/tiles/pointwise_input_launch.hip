#include "fusedsc/backward/pointwise/tiles/pointwise_element_sink.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_tile_instances.h"

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

struct InputGradient {
  using Parameters = PointwiseInputGradientParameters;
  /// Of a kernel for elements, with fusion and without it.
  template <class T>
  static constexpr int blocks_of_elements = 3;

  template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused, bool kElements>
  static constexpr auto kernel() {
    if constexpr (kElements) return input_elements_kernel<T, Tile, kChannelsInner, kBlocks, kFused>;
    else return input_kernel<T, Tile, kChannelsInner, kBlocks, kFused>;
  }
  template <class T, class Tile, bool kChannelsInner, bool kFused, bool kElements>
  static constexpr auto memory() {
    if constexpr (kElements) return input_elements_memory_bytes<T, Tile, kChannelsInner, kFused>;
    else return input_gradient_memory_bytes<T, Tile, kChannelsInner, kFused>;
  }
};
using Instances = TileInstances<InputGradient>;

/// As in the forward pass.
const Instance kInstances[] = {
    // channels inner; rows, columns, depth, parts; blocks that shall fit a multiprocessor
    FUSEDSC_HALVES(of, true, 128, 32, 32),
    FUSEDSC_HALVES(of, true, 64, 64, 64),
    FUSEDSC_HALVES(of, true, 32, 32, 128, 4),
    FUSEDSC_HALVES(of, false, 64, 64, 32),
    FUSEDSC_HALVES(of, false, 32, 128, 32),
    FUSEDSC_HALVES(of, false, 32, 32, 128, 4),
    Instances::of<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::of<float, true, 128, 32, 16, 1, 4>(DataType::float32),
    Instances::of<float, true, 64, 32, 32, 2, 4>(DataType::float32),
    Instances::of<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    Instances::of<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::of<float, false, 32, 128, 16>(DataType::float32),
    Instances::of<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    Instances::of<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    Instances::tf32<true, 128, 64, 32>(),
    Instances::tf32<true, 64, 64, 32>(),
    Instances::tf32<true, 128, 32, 32>(),
    Instances::tf32<true, 32, 32, 32, 4>(),
    Instances::tf32<false, 64, 128, 32>(),
    Instances::tf32<false, 64, 64, 32>(),
    Instances::tf32<false, 32, 128, 32>(),
    Instances::tf32<false, 32, 32, 32, 4>(),
#endif
    Instances::of<double, true, 32, 32, 16>(DataType::float64),
    Instances::of<double, false, 32, 32, 16>(DataType::float64),
    // of elements
    FUSEDSC_HALVES(elements, true, 64, 32, 64),
    FUSEDSC_HALVES(elements, true, 32, 32, 64, 4),
    FUSEDSC_HALVES(elements, false, 64, 64, 32),
    FUSEDSC_HALVES(elements, false, 32, 32, 64, 4),
    Instances::plain_elements<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::plain_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    Instances::plain_elements<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::plain_elements<float, false, 32, 64, 32, 2, 4, 2>(DataType::float32),  // spills on gfx942 otherwise
    Instances::plain_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    Instances::elements<float, true, 64, 64, 32, 1, true, 2>(DataType::float32),
    Instances::elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    Instances::elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    Instances::elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    Instances::elements<double, true, 32, 32, 16>(DataType::float64),
    Instances::elements<double, false, 32, 32, 16>(DataType::float64),
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
