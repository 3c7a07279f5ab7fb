#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

using Instance = FragmentInstance<PointwiseParameters>;

template <class T, class Tile, FragmentFusion kFusion>
struct Forward {
  using Product = FragmentProduct<T, Tile, false, kFusion>;
  using Sink =
      PointwiseSink<T, FragmentSweep<Tile>, kFusion != FragmentFusion::none, kFusion == FragmentFusion::clamps>;

  static std::size_t memory_bytes(int depth, bool has_other) {
    return Product::template memory_bytes<Sink>(depth, has_other);
  }
};

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(kMatrixThreads, kBlocks)
forward_fragments_kernel(PointwiseParameters parameters) {
  using Kernel = Forward<T, Tile, kFusion>;
  Kernel::Product::template run<typename Kernel::Sink>(parameters);
}

template <class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_kernel(Instance& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = forward_fragments_kernel<T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = Forward<T, Tile, kFusion>::memory_bytes;
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
  instance<T, 2, 32, 1, 8, 6, false>(dtype), instance<T, 4, 32, 1, 5, 4, true>(dtype),       \
      instance<T, 2, 64, 1, 6, 4, true>(dtype), instance<T, 4, 64, 1, 4, 3, false>(dtype),   \
      instance<T, 2, 96, 1, 4, 3, false>(dtype), instance<T, 4, 96, 1, 2, 2, false>(dtype),  \
      instance<T, 2, 128, 1, 3, 2, false>(dtype), instance<T, 2, 32, 2, 8, 5, false>(dtype), \
      instance<T, 2, 32, 4, 7, 5, true>(dtype), instance<T, 2, 64, 4, 5, 4, false>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
};

struct Problem {
  FragmentNeeds needs;
  PointwiseProblem product;

  explicit Problem(const PointwiseArguments& a)
      : needs{a.x.dtype,
              fusion_of(a.prologue || a.epilogue || a.statistics, {a.prologue.activation, a.epilogue.activation}),
              false, static_cast<int>(a.x.sizes[1] / a.groups)},
        product{a.x.dtype,
                true,
                a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                a.x.sizes[1] / a.groups,
                a.y.sizes[1] / a.groups,
                a.groups} {}

  double plan(const Instance& instance, PointwiseProductParameters& parameters) const {
    const int resident = resident_blocks(kernel_of(instance, needs), kMatrixThreads, memory_of(instance, needs));
    return plan_fragments(product, instance.config, resident, multiprocessors(), parameters);
  }
};

std::string unsupported(const PointwiseArguments& a) {
  if (const std::string why = needs_device(Device::gpu, a.x.device); !why.empty()) return why;
  if (a.windows.channels > 0) return "the weight has channel windows";
  if (const std::string why = too_large_for_pointwise(a.x.sizes, a.y.sizes); !why.empty()) return why;
  if (const std::string why = why_no_fragments({a.x, a.y, a.epilogue.residual}, a.groups); !why.empty()) return why;
  if (const std::string why = why_no_fragments_of(a.weight); !why.empty()) return why;
  if (configs_of(kInstances, Problem(a).needs).empty()) return "the weight does not fit shared memory";
  return {};
}

Configs configs(const PointwiseArguments& a) { return configs_of(kInstances, Problem(a).needs); }

void* take_partials(const PointwiseArguments& a, int splits, Arena& arena) {
  return a.statistics ? arena.take<char>(3 * splits * a.y.sizes[1] * std::int64_t{sizeof(float)}) : nullptr;
}

Plan<PointwiseArguments> plan(const PointwiseArguments& a, const Config& config, int /*threads*/) {
  const Problem problem(a);
  const Instance& instance = instance_with(kInstances, problem.needs, config);
  PointwiseParameters planned;
  problem.plan(instance, planned.product);
  Arena measured(nullptr);
  take_partials(a, planned.product.splits, measured);
  return {measured.used(),
          [planned, kernel = kernel_of(instance, problem.needs), memory = memory_of(instance, problem.needs)](
              const PointwiseArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            PointwiseParameters p = planned;
            p.product.activations = activation_matrix(like.x, like.groups, true);
            p.product.weight = weight_matrix(like.weight, like.groups);
            p.product.prologue = {
                like.prologue.scale.data, like.prologue.shift.data, nullptr, like.prologue.activation, {}};
            p.residual = activation_matrix(like.epilogue.residual, like.groups, true);
            p.y = output_matrix(like.y, like.groups, true);
            p.bias = like.bias.data;
            p.epilogue = {like.epilogue.scale.data, like.epilogue.shift.data, like.epilogue.activation};
            p.partials = take_partials(like, p.product.splits, arena);
            launch_following(kName, kernel, p.product.blocks(), kMatrixThreads, execution.stream, p, memory);
            if (!like.statistics) return;
            launch_merge_moments(kName, accumulation_type(like.x.dtype), p.partials, p.product.splits, like.statistics,
                                 like.x.sizes[0] * like.x.sizes[2] * like.x.sizes[3], execution.stream);
          }};
}

}  // namespace

Kernel<PointwiseArguments> pointwise_fragments() { return {"gpu_fragments", unsupported, configs, plan}; }

Config pointwise_fragments_prior(const PointwiseArguments& a) {
  const Problem problem(a);
  return cheapest_of(kInstances, problem.needs, [&](const Instance& instance) {
    PointwiseProductParameters product;
    return problem.plan(instance, product);
  });
}

}  // namespace gpu
}  // namespace fusedsc
