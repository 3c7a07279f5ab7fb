#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_weight_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

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
  to.memory[kPlace] = [](int, bool has_other) { return WeightFragments<T, Tile, kFusion>::memory_bytes(has_other); };
}

/// kAll: there is a kernel for anything fused, too.
template <class T, int kRowRun, int kColumnRun, int kWarpRows, int kWarpColumns, int kSteps, int kStages, int kBlocks,
          int kFusedBlocks, bool kAll = false>
Instance instance(DataType dtype) {
  using Tile = WeightFragmentTile<kRowRun, kColumnRun, kWarpRows, kWarpColumns, kSteps, kStages>;
  using enum tuning::Knob;
  Instance result{dtype,
                  {{rows, Tile::kRows},
                   {columns, Tile::kColumns},
                   {depth, Tile::kDepth},
                   {groups, Tile::kParts},
                   {stages, Tile::kStages}}};
  add_kernel<T, Tile, kBlocks, FragmentFusion::none>(result);
  add_kernel<T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_kernel<T, Tile, kFusedBlocks, FragmentFusion::all>(result);
  return result;
}

/// Rows are outputs, columns channels; depth counts positions.
const Instance kInstances[] = {
// runs of rows and of columns of a lane; warps along both; steps of 16 positions, stages; blocks that shall fit a
// multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                                                       \
  instance<T, 2, 8, 1, 1, 1, 4, 4, 4>(dtype), instance<T, 8, 2, 1, 1, 1, 4, 4, 4>(dtype),                 \
      instance<T, 4, 8, 1, 1, 1, 4, 4, 3>(dtype), instance<T, 8, 4, 1, 1, 1, 4, 4, 3, true>(dtype),       \
      instance<T, 4, 4, 1, 1, 1, 4, 5, 4, true>(dtype), instance<T, 8, 8, 1, 1, 1, 4, 2, 2, true>(dtype), \
      instance<T, 4, 8, 2, 2, 2, 3, 3, 3>(dtype), instance<T, 8, 8, 2, 2, 2, 3, 2, 2>(dtype),             \
      instance<T, 4, 8, 2, 1, 2, 3, 4, 3>(dtype), instance<T, 8, 4, 1, 2, 2, 3, 3, 3>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
};

struct Problem {
  FragmentNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseBackwardArguments& a)
      : needs{a.x.dtype, fusion_of(a.prologue || a.gradient_prologue, {a.prologue.activation}),
              static_cast<bool>(a.gradient_prologue), 0},
        product{a.x.dtype,
                true,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.x.sizes[1] / a.groups,
                a.grad_y.sizes[1] / a.groups,
                a.groups} {}

  WeightGradientPlan plan(const Instance& instance) const {
    using enum tuning::Knob;
    const Config& config = instance.config;
    const PointwiseTile tile{config[rows], config[columns], config[depth], config[groups], false};
    const int resident = resident_blocks(kernel_of(instance, needs), kMatrixThreads, memory_of(instance, needs));
    return plan_weight_gradient(product, tile, resident, multiprocessors());
  }
};

/// Of the splits' sums.
struct Partials {
  void *weight = nullptr, *bias = nullptr;

  Partials(const PointwiseBackwardArguments& a, int splits, Arena& arena) {
    const std::int64_t size = sizeof(float);
    if (a.grad_weight && splits > 1) weight = arena.take<char>(splits * a.weight.elements() * size);
    if (a.grad_bias) bias = arena.take<char>(splits * a.grad_y.sizes[1] * size);
  }
};

void set_plan(const PointwiseProblem& problem, const WeightGradientPlan& plan, PointwiseWeightGradientParameters& p) {
  p.pixels = static_cast<int>(problem.pixels);
  p.outputs = static_cast<int>(problem.channels);
  p.channels = static_cast<int>(problem.depth);
  p.groups = static_cast<int>(problem.groups);
  p.output_tiles = plan.output_tiles;
  p.channel_tiles = plan.channel_tiles;
  p.splits = plan.splits;
  p.split_steps = plan.split_steps;
  p.by_channel_tiles = Divisor(static_cast<std::uint32_t>(plan.channel_tiles));
  p.by_output_tiles = Divisor(static_cast<std::uint32_t>(plan.output_tiles));
  p.by_splits = Divisor(static_cast<std::uint32_t>(plan.splits));
}

void sum_partials_of(const PointwiseBackwardArguments& a, const PointwiseWeightGradientParameters& p, void* stream) {
  const auto outputs = static_cast<int>(a.grad_y.sizes[1]);
  if (p.partials != nullptr) {
    SumPartialsParameters sum;
    sum.partials = p.partials;
    sum.splits = p.splits;
    sum.taps = sum.rows = outputs;
    sum.channels = p.channels;
    sum.weight.data = a.grad_weight.data;  // rows are outputs
    sum.weight.image = a.grad_weight.strides[1];
    sum.weight.row = a.grad_weight.strides[0];
    launch_sum_partials(kName, a.x.dtype, sum, stream);
  }
  if (p.bias_partials != nullptr) {
    SumPartialsParameters sum;
    sum.partials = p.bias_partials;
    sum.splits = p.splits;
    sum.rows = 1;
    sum.channels = outputs;
    sum.bias = a.grad_bias.data;
    launch_sum_partials(kName, a.x.dtype, sum, stream);
  }
}

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
  PointwiseWeightGradientParameters planned;
  set_plan(problem.product, problem.plan(instance), planned);
  Arena measured(nullptr);
  Partials(a, planned.splits, measured);
  return {measured.used(),
          [planned, kernel = kernel_of(instance, problem.needs), memory = memory_of(instance, problem.needs)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            const Partials partials(like, planned.splits, arena);
            PointwiseWeightGradientParameters p = planned;
            p.grad_y = activation_matrix(like.grad_y, like.groups, true);
            p.x = activation_matrix(like.x, like.groups, true);
            p.grad_y_prologue = gradient_prologue_of_operand(like, true);
            p.x_prologue = {like.prologue.scale.data, like.prologue.shift.data, nullptr, like.prologue.activation, {}};
            p.partials = partials.weight;
            p.bias_partials = partials.bias;
            if (like.grad_weight && p.splits == 1) p.weight = weight_output_matrix(like.grad_weight, like.groups);
            launch_following(kName, kernel, p.blocks(), kMatrixThreads, execution.stream, p, memory);
            sum_partials_of(like, p, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
