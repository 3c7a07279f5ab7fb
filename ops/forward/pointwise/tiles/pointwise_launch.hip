#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_arguments.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_element_sink.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_tile_instances.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

using Instance = PointwiseInstance<PointwiseParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
forward_kernel(PointwiseParameters parameters) {
  pointwise_forward<T, Tile, kChannelsInner, kFused>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
forward_elements_kernel(PointwiseParameters parameters) {
  pointwise_forward_elements<T, Tile, kChannelsInner, kFused>(parameters);
}

struct Forward {
  using Parameters = PointwiseParameters;
  /// Of a kernel for elements, with fusion and without it.
  template <class T>
  static constexpr int blocks_of_elements = sizeof(T) == 8 ? 2 : 3;  // doubles take two registers each

  template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kFused, bool kElements>
  static constexpr auto kernel() {
    if constexpr (kElements) return forward_elements_kernel<T, Tile, kChannelsInner, kBlocks, kFused>;
    else return forward_kernel<T, Tile, kChannelsInner, kBlocks, kFused>;
  }
  template <class T, class Tile, bool kChannelsInner, bool kFused, bool kElements>
  static constexpr auto memory() {
    if constexpr (kElements) return forward_elements_memory_bytes<T, Tile, kChannelsInner, kFused>;
    else return forward_memory_bytes<T, Tile, kChannelsInner, kFused>;
  }
};
using Instances = TileInstances<Forward>;

/// Every kernel there is; a problem gets the cheapest. Rows are positions where channels are neighbours, else channels.
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
    Instances::tf32<true, 128, 64, 32, 1, 2>(),
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
    FUSEDSC_HALVES(elements, true, 64, 64, 64),
    FUSEDSC_HALVES(elements, true, 128, 32, 32),
    FUSEDSC_HALVES(elements, true, 32, 32, 128, 4),
    FUSEDSC_HALVES(elements, false, 64, 64, 32),
    FUSEDSC_HALVES(elements, false, 32, 128, 32),
    FUSEDSC_HALVES(elements, false, 32, 32, 128, 4),
    Instances::plain_elements<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::plain_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    Instances::plain_elements<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    Instances::plain_elements<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    Instances::plain_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    Instances::elements<float, true, 64, 64, 32, 1, true>(DataType::float32),
    Instances::elements<float, true, 128, 32, 32, 1, true>(DataType::float32),
    Instances::elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    Instances::elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    Instances::elements<float, false, 32, 128, 32, 1, true>(DataType::float32),
    Instances::elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    Instances::elements<double, true, 32, 32, 16>(DataType::float64),
    Instances::elements<double, false, 32, 32, 16>(DataType::float64),
};

struct Problem {
  PointwiseNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseArguments& a)
      : needs{a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), gpu::channels_inner(a.x, a.y), {}},
        product{a.x.dtype,
                needs.channels_inner,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.x.sizes[1] / a.groups,
                a.y.sizes[1] / a.groups,
                a.groups} {
    const bool inner = needs.channels_inner;
    needs.use.fused = a.prologue || a.epilogue || a.statistics;
    needs.use.elements = has_elements(activation_matrix(a.x, a.groups, inner).run_bytes, a.x.sizes[1],
                                      output_matrix(a.y, a.groups, inner).run_bytes, a.y.sizes[1]);
  }

  /// Sets everything about the tiles, and returns the kernel's cost.
  double plan(const Instance& instance, PointwiseProductParameters& parameters) const {
    const PointwiseMemoryUse& use = needs.use;
    const int resident = resident_blocks(kernel_of(instance, use), kMatrixThreads, memory_of(instance, use));
    return plan_product(product, instance.tile, resident, multiprocessors(), parameters);
  }
};

/// A launch, worked out but for addresses.
class Pass {
 public:
  Pass(const PointwiseArguments& a, const Instance& instance) : problem_(a), instance_(&instance) {
    problem_.plan(instance, planned_.product);
  }

  std::size_t workspace_bytes(const PointwiseArguments& a) const {
    Arena arena(nullptr);
    take_partials(a, arena);
    return arena.used();
  }

  void run(const PointwiseArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    PointwiseParameters p = planned_;
    aim(p, a, problem_.needs.channels_inner, take_partials(a, arena));
    launch_following(kName, kernel_of(*instance_, problem_.needs.use), p.product.blocks(), kMatrixThreads,
                     execution.stream, p, memory_of(*instance_, problem_.needs.use));
    if (!a.statistics) return;
    launch_merge_moments(kName, accumulation_type(a.x.dtype), p.partials, p.product.splits, a.statistics,
                         a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
  }

 private:
  void* take_partials(const PointwiseArguments& a, Arena& arena) const {
    const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
    return a.statistics ? arena.take<char>(3 * planned_.product.splits * a.y.sizes[1] * bytes) : nullptr;
  }

  Problem problem_;
  const Instance* instance_;
  PointwiseParameters planned_;
};

std::string unsupported(const PointwiseArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_pointwise(a.x.sizes, a.y.sizes);
}

Configs configs(const PointwiseArguments& a) { return configs_of(kInstances, Problem(a).needs); }

Plan<PointwiseArguments> plan(const PointwiseArguments& a, const Config& config, int /*threads*/) {
  const Pass pass(a, instance_with(kInstances, Problem(a).needs, config));
  return {pass.workspace_bytes(a),
          [pass](const PointwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<PointwiseArguments> pointwise_tiles() { return {"gpu_tiles", unsupported, configs, plan}; }

Config pointwise_tiles_prior(const PointwiseArguments& a) {
  const Problem problem(a);
  return cheapest_tile(kInstances, problem.needs, [&](const Instance& instance) {
    PointwiseProductParameters product;
    return problem.plan(instance, product);
  });
}

}  // namespace gpu
}  // namespace fusedsc
