#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_arguments.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_element_sink.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
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

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr Instance instance(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          forward_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          forward_kernel<T, Tile, kChannelsInner, FUSEDSC_FUSED_PRODUCT_BLOCKS, true>,
          forward_memory_bytes<T, Tile, kChannelsInner, false>,
          forward_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Of products of TensorFloat-32.
template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance tf32_instance() {
  return instance<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

/// Of tensors with elements that are no runs.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false>
constexpr Instance elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr int kBlocks = sizeof(T) == 8 ? 2 : 3;  // doubles take two registers each
  constexpr auto kKernel = forward_elements_kernel<T, Tile, kChannelsInner, kBlocks, true>;
  constexpr auto kMemory = forward_elements_memory_bytes<T, Tile, kChannelsInner, true>;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without fusion.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance plain_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          forward_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          forward_elements_kernel<T, Tile, kChannelsInner, FUSEDSC_FUSED_PRODUCT_BLOCKS, true>,
          forward_elements_memory_bytes<T, Tile, kChannelsInner, false>,
          forward_elements_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Every kernel there is; a problem gets the cheapest. Rows are positions where channels are neighbours, else channels.
const Instance kInstances[] = {
    // channels inner; rows, columns, depth, parts; blocks that shall fit a multiprocessor
    instance<Float16, true, 128, 32, 32>(DataType::float16),
    instance<Float16, true, 64, 64, 64>(DataType::float16),
    instance<Float16, true, 32, 32, 128, 4>(DataType::float16),
    instance<Float16, false, 64, 64, 32>(DataType::float16),
    instance<Float16, false, 32, 128, 32>(DataType::float16),
    instance<Float16, false, 32, 32, 128, 4>(DataType::float16),
    instance<BFloat16, true, 128, 32, 32>(DataType::bfloat16),
    instance<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    instance<BFloat16, true, 32, 32, 128, 4>(DataType::bfloat16),
    instance<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    instance<BFloat16, false, 32, 128, 32>(DataType::bfloat16),
    instance<BFloat16, false, 32, 32, 128, 4>(DataType::bfloat16),
    instance<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    instance<float, true, 128, 32, 16, 1, 4>(DataType::float32),
    instance<float, true, 64, 32, 32, 2, 4>(DataType::float32),
    instance<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    instance<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    instance<float, false, 32, 128, 16>(DataType::float32),
    instance<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    instance<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    tf32_instance<true, 128, 64, 32, 1, 2>(),
    tf32_instance<true, 64, 64, 32>(),
    tf32_instance<true, 128, 32, 32>(),
    tf32_instance<true, 32, 32, 32, 4>(),
    tf32_instance<false, 64, 128, 32>(),
    tf32_instance<false, 64, 64, 32>(),
    tf32_instance<false, 32, 128, 32>(),
    tf32_instance<false, 32, 32, 32, 4>(),
#endif
    instance<double, true, 32, 32, 16>(DataType::float64),
    instance<double, false, 32, 32, 16>(DataType::float64),
    // of elements
    elements<Float16, true, 64, 64, 64>(DataType::float16),
    elements<Float16, true, 128, 32, 32>(DataType::float16),
    elements<Float16, true, 32, 32, 128, 4>(DataType::float16),
    elements<Float16, false, 64, 64, 32>(DataType::float16),
    elements<Float16, false, 32, 128, 32>(DataType::float16),
    elements<Float16, false, 32, 32, 128, 4>(DataType::float16),
    elements<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    elements<BFloat16, true, 128, 32, 32>(DataType::bfloat16),
    elements<BFloat16, true, 32, 32, 128, 4>(DataType::bfloat16),
    elements<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    elements<BFloat16, false, 32, 128, 32>(DataType::bfloat16),
    elements<BFloat16, false, 32, 32, 128, 4>(DataType::bfloat16),
    plain_elements<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    plain_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    plain_elements<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    plain_elements<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    plain_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    elements<float, true, 64, 64, 32, 1, true>(DataType::float32),
    elements<float, true, 128, 32, 32, 1, true>(DataType::float32),
    elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    elements<float, false, 32, 128, 32, 1, true>(DataType::float32),
    elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    elements<double, true, 32, 32, 16>(DataType::float64),
    elements<double, false, 32, 32, 16>(DataType::float64),
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
