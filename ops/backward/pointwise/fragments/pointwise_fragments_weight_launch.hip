#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_weight_kernel.h"
#include "fusedsc/backward/pointwise/fragments/pointwise_packed_weight_kernel.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {
namespace {

using Instance = FragmentInstance<PointwiseWeightGradientParameters>;

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(kMatrixThreads, kBlocks)
weight_fragments_kernel(PointwiseWeightGradientParameters parameters) {
  WeightFragments<T, Tile, kFusion>::run(parameters);
}

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_kernel(Instance& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = weight_fragments_kernel<T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = [](const FragmentShape& shape) {
    return WeightFragments<T, Tile, kFusion>::memory_bytes(shape.has_other);
  };
}

template <class Tile>
Config config_of_weight_fragments() {
  using enum tuning::Knob;
  return {{rows, Tile::kRows},
          {columns, Tile::kColumns},
          {depth, Tile::kDepth},
          {groups, Tile::kParts},
          {stages, Tile::kStages}};
}

/// kAll: there is a kernel for anything fused, too.
template <class T, int kRowRun, int kColumnRun, int kWarpRows, int kWarpColumns, int kSteps, int kStages, int kBlocks,
          int kFusedBlocks, bool kAll = false>
Instance instance(DataType dtype) {
  using Tile = WeightFragmentTile<kRowRun, kColumnRun, kWarpRows, kWarpColumns, kSteps, kStages>;
  Instance result{dtype, config_of_weight_fragments<Tile>()};
  add_kernel<T, Tile, kBlocks, FragmentFusion::none>(result);
  add_kernel<T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_kernel<T, Tile, kFusedBlocks, FragmentFusion::all>(result);
  return result;
}

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(Tile::kThreads, kBlocks)
packed_weight_fragments_kernel(PointwiseWeightGradientParameters parameters) {
  PackedWeightFragments<T, Tile, kFusion>::run(parameters);
}

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_packed_kernel(Instance& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = packed_weight_fragments_kernel<T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = PackedWeightFragments<T, Tile, kFusion>::memory_bytes;
}

template <class T, int kRowRun, int kColumnRun, int kWarpRows, int kWarpColumns, int kSteps, int kStages, int kBlocks,
          bool kAll = true>
Instance packed_instance(DataType dtype) {
  using Tile = WeightFragmentTile<kRowRun, kColumnRun, kWarpRows, kWarpColumns, kSteps, kStages, 256, true>;
  Instance result{dtype, config_of_weight_fragments<Tile>(), true, Tile::kThreads};
  add_packed_kernel<T, Tile, kBlocks, FragmentFusion::none>(result);
  add_packed_kernel<T, Tile, kBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_packed_kernel<T, Tile, kBlocks, FragmentFusion::all>(result);
  return result;
}

/// Rows are outputs, columns channels; depth counts positions.
const Instance kInstances[] = {
// runs of rows and of columns of a lane; warps along both; steps of 16 positions, stages; blocks that shall fit a
// multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                                                 \
  instance<T, 2, 8, 1, 1, 1, 4, 4, 4>(dtype), instance<T, 8, 2, 1, 1, 1, 4, 4, 4>(dtype),           \
      instance<T, 4, 8, 1, 1, 1, 4, 4, 3>(dtype), instance<T, 8, 4, 1, 1, 1, 4, 4, 3, true>(dtype), \
      instance<T, 4, 4, 1, 1, 1, 4, 5, 4, true>(dtype), instance<T, 8, 8, 1, 1, 1, 4, 2, 2, true>(dtype)
// Likewise of floats, which take twice the memory and registers.
#define FUSEDSC_FLOAT_FRAGMENTS(T, dtype)                                                           \
  instance<T, 2, 8, 1, 1, 1, 3, 4, 3>(dtype), instance<T, 8, 2, 1, 1, 1, 3, 4, 3>(dtype),           \
      instance<T, 4, 4, 1, 1, 1, 3, 5, 4>(dtype), instance<T, 2, 4, 2, 2, 1, 4, 6, 5, true>(dtype), \
      instance<T, 4, 2, 2, 2, 1, 4, 6, 5>(dtype), instance<T, 4, 4, 2, 2, 1, 4, 5, 3, true>(dtype), \
      instance<T, 4, 4, 2, 2, 2, 3, 4, 3>(dtype), instance<T, 4, 8, 2, 2, 1, 3, 3, 2, true>(dtype), \
      instance<T, 8, 4, 2, 2, 1, 3, 3, 2>(dtype), instance<T, 8, 8, 2, 2, 1, 3, 2, 2>(dtype)
// Likewise of packed rows, with a number of blocks.
#define FUSEDSC_PACKED_FRAGMENTS(T, dtype)                                                            \
  packed_instance<T, 4, 4, 1, 1, 1, 3, 2>(dtype), packed_instance<T, 8, 4, 1, 1, 1, 3, 1>(dtype),     \
      packed_instance<T, 4, 8, 1, 1, 1, 3, 1>(dtype), packed_instance<T, 8, 8, 1, 1, 1, 3, 1>(dtype), \
      packed_instance<T, 8, 8, 2, 1, 1, 3, 1>(dtype), packed_instance<T, 8, 8, 2, 2, 2, 2, 1, false>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),          FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
    FUSEDSC_FLOAT_FRAGMENTS(float, DataType::float32),      FUSEDSC_PACKED_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_PACKED_FRAGMENTS(BFloat16, DataType::bfloat16),
};

struct Problem {
  FragmentNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseBackwardArguments& a)
      : needs{a.x.dtype,
              fusion_of(a.prologue || a.gradient_prologue, {a.prologue.activation}),
              !why_no_whole_fragments(a).empty(),
              {static_cast<int>(a.grad_y.sizes[1] / a.groups), static_cast<bool>(a.gradient_prologue),
               static_cast<int>(a.x.sizes[1] / a.groups), 0}},
        product{a.x.dtype,
                true,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.x.sizes[1] / a.groups,
                a.grad_y.sizes[1] / a.groups,
                a.groups} {}

  WeightGradientPlan plan(const Instance& instance) const {
    using enum tuning::Knob;
    const Config& config = instance.config;
    PointwiseTile tile{config[rows], config[columns], config[depth], config[groups], needs.dtype == DataType::float32};
    tile.wait = 350;  // by count: steps are under way while one waits
    const int resident = resident_blocks(kernel_of(instance, needs), instance.threads, memory_of(instance, needs));
    return plan_weight_gradient(product, tile, resident, multiprocessors());
  }
};

}  // namespace

Configs pointwise_weight_fragments(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, Problem(a).needs);
}

Config cheapest_pointwise_weight_fragments(const PointwiseBackwardArguments& a) {
  const Problem problem(a);
  return cheapest_of(kInstances, problem.needs, [&](const Instance& instance) { return problem.plan(instance).cost; });
}

Plan<PointwiseBackwardArguments> plan_pointwise_weight_fragments(const PointwiseBackwardArguments& a,
                                                                 const Config& config) {
  const Problem problem(a);
  const Instance& instance = instance_with(kInstances, problem.needs, config);
  const WeightGradientPlan planned = problem.plan(instance);
  Arena measured(nullptr);
  weight_parameters_of(a, problem.product, planned, measured);
  return {measured.used(), [planned, product = problem.product, kernel = kernel_of(instance, problem.needs),
                            threads = instance.threads, memory = memory_of(instance, problem.needs)](
                               const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            const PointwiseWeightGradientParameters p = weight_parameters_of(like, product, planned, arena);
            launch_following(kPointwiseBackward, kernel, p.blocks(), threads, execution.stream, p, memory);
            launch_sums(like, p, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
