#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_input_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

using Instance = FragmentInstance<PointwiseInputGradientParameters>;

template <class T, class Tile, FragmentFusion kFusion>
struct InputGradient {
  using Product = FragmentProduct<T, Tile, true, kFusion>;
  using Sink = PointwiseInputGradientSink<T, FragmentSweep<Tile>, kFusion != FragmentFusion::none,
                                          kFusion == FragmentFusion::clamps>;

  static std::size_t memory_bytes(int depth, bool has_other) {
    return Product::template memory_bytes<Sink>(depth, has_other);
  }
};

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(kMatrixThreads, kBlocks)
input_fragments_kernel(PointwiseInputGradientParameters parameters) {
  using Kernel = InputGradient<T, Tile, kFusion>;
  Kernel::Product::template run<typename Kernel::Sink>(parameters);
}

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_kernel(Instance& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = input_fragments_kernel<T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = InputGradient<T, Tile, kFusion>::memory_bytes;
}

/// kAll: there is a kernel for anything fused, too.
template <class T, int kPositionTiles, int kColumns, int kParts, int kBlocks, int kFusedBlocks, bool kAll>
Instance instance(DataType dtype) {
  using Tile = FragmentTile<kPositionTiles, kColumns, kParts>;
  Instance result{dtype, config_of_fragments<Tile>()};
  add_kernel<T, Tile, kBlocks, FragmentFusion::none>(result);
  add_kernel<T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_kernel<T, Tile, 2, FragmentFusion::all>(result);
  return result;
}

const Instance kInstances[] = {
// tiles of 8 positions, columns, parts; blocks that shall fit a multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                                          \
  instance<T, 2, 32, 1, 7, 5, false>(dtype), instance<T, 4, 32, 1, 5, 3, true>(dtype),       \
      instance<T, 2, 64, 1, 5, 3, true>(dtype), instance<T, 4, 64, 1, 3, 2, false>(dtype),   \
      instance<T, 2, 96, 1, 4, 3, false>(dtype), instance<T, 4, 96, 1, 2, 2, false>(dtype),  \
      instance<T, 2, 128, 1, 3, 2, false>(dtype), instance<T, 2, 32, 2, 7, 5, false>(dtype), \
      instance<T, 2, 32, 4, 7, 5, true>(dtype), instance<T, 2, 64, 4, 5, 3, false>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
};

struct Problem {
  FragmentNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseBackwardArguments& a)
      : needs{a.x.dtype, fusion_of(a.prologue || a.gradient_prologue || a.grad_add, {a.prologue.activation}),
              static_cast<bool>(a.gradient_prologue), static_cast<int>(a.grad_y.sizes[1] / a.groups)},
        product{a.x.dtype,
                true,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.grad_y.sizes[1] / a.groups,
                a.x.sizes[1] / a.groups,
                a.groups} {}

  double plan(const Instance& instance, PointwiseProductParameters& parameters) const {
    const int resident = resident_blocks(kernel_of(instance, needs), kMatrixThreads, memory_of(instance, needs));
    return plan_fragments(product, instance.config, resident, multiprocessors(), parameters);
  }
};

void* take_partials(const PointwiseBackwardArguments& a, int splits, Arena& arena) {
  return a.sums ? arena.take<char>(2 * splits * a.x.sizes[1] * std::int64_t{sizeof(float)}) : nullptr;
}

}  // namespace

Configs pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, Problem(a).needs);
}

Config cheapest_pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  const Problem problem(a);
  return cheapest_of(kInstances, problem.needs, [&](const Instance& instance) {
    PointwiseProductParameters product;
    return problem.plan(instance, product);
  });
}

Plan<PointwiseBackwardArguments> plan_pointwise_input_fragments(const PointwiseBackwardArguments& a,
                                                                const Config& config) {
  const Problem problem(a);
  const Instance& instance = instance_with(kInstances, problem.needs, config);
  PointwiseInputGradientParameters planned;
  problem.plan(instance, planned.product);
  Arena measured(nullptr);
  take_partials(a, planned.product.splits, measured);
  return {measured.used(),
          [planned, kernel = kernel_of(instance, problem.needs), memory = memory_of(instance, problem.needs)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            PointwiseInputGradientParameters p = planned;
            p.product.activations = activation_matrix(like.grad_y, like.groups, true);
            p.product.weight = weight_matrix(like.weight, like.groups);
            p.product.prologue = gradient_prologue_of_operand(like, true);
            if (like.prologue) p.x = activation_matrix(like.x, like.groups, true);
            p.grad_add = activation_matrix(like.grad_add, like.groups, true);
            p.grad_x = output_matrix(like.grad_x, like.groups, true);
            p.prologue = {like.prologue.scale.data, like.prologue.shift.data, like.prologue.activation};
            p.mean = like.sums.mean.data;
            p.partials = take_partials(like, p.product.splits, arena);
            launch_following(kName, kernel, p.product.blocks(), kMatrixThreads, execution.stream, p, memory);
            if (like.sums) {
              launch_gradient_sums(kName, p.partials, p.product.splits, like.sums, like.x, execution.stream);
            }
          }};
}

}  // namespace fusedsc::gpu
