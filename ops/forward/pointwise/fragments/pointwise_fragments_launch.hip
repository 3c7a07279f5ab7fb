#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_instances.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

const FragmentInstance<PointwiseParameters> kInstances[] = {
// tiles of 8 positions, columns, parts; blocks that shall fit a multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                                  \
  fragments_of<ForwardFragments, T, 2, 32, 1, 8, by_type<T>(6, 5), false>(dtype),    \
      fragments_of<ForwardFragments, T, 4, 32, 1, 5, 4, true>(dtype),                \
      fragments_of<ForwardFragments, T, 2, 64, 1, 5, by_type<T>(4, 3), true>(dtype), \
      fragments_of<ForwardFragments, T, 4, 64, 1, 3, 3, false>(dtype),               \
      fragments_of<ForwardFragments, T, 2, 96, 1, 4, 3, false>(dtype),               \
      fragments_of<ForwardFragments, T, 4, 96, 1, 2, 2, false>(dtype),               \
      fragments_of<ForwardFragments, T, 2, 128, 1, 3, 2, false>(dtype),              \
      fragments_of<ForwardFragments, T, 2, 32, 2, 8, 5, false>(dtype),               \
      fragments_of<ForwardFragments, T, 2, 32, 4, 7, 5, true>(dtype),                \
      fragments_of<ForwardFragments, T, 2, 64, 4, 5, 4, false>(dtype)
// with a weight that comes in stages: tiles of 8 positions of a warp, columns of a block, warps along positions, chunks
// of a stage, stages; blocks, of which 0 with fusion: there is none
#define FUSEDSC_STREAMED_FRAGMENTS(T, dtype)                                                         \
  streamed_fragments_of<ForwardFragments, T, 2, 64, 2, 2, 4, 4, 3, false>(dtype),                    \
      streamed_fragments_of<ForwardFragments, T, 4, 64, 2, 2, 3, 3, 3, true>(dtype),                 \
      streamed_fragments_of<ForwardFragments, T, 2, 96, 4, 2, 3, 3, 2, false>(dtype),                \
      streamed_fragments_of<ForwardFragments, T, 4, 128, 2, 2, 3, 2, 2, true>(dtype),                \
      streamed_fragments_of<ForwardFragments, T, 4, 64, 4, 2, 3, by_type<T>(3, 2), 2, false>(dtype), \
      streamed_fragments_of<ForwardFragments, T, 4, 96, 4, 2, 3, 2, by_type<T>(2, 0), false>(dtype), \
      streamed_fragments_of<ForwardFragments, T, 8, 128, 2, 1, 4, 2, 0, false>(dtype)
// of packed rows: tiles of 8 positions, columns; blocks, without fusion and with it
#define FUSEDSC_PACKED_FRAGMENTS(T, dtype)                           \
  packed_fragments_of<ForwardFragments, T, 1, 32, 3, 3>(dtype),      \
      packed_fragments_of<ForwardFragments, T, 2, 32, 3, 3>(dtype),  \
      packed_fragments_of<ForwardFragments, T, 2, 64, 3, 2>(dtype),  \
      packed_fragments_of<ForwardFragments, T, 2, 96, 2, 1>(dtype),  \
      packed_fragments_of<ForwardFragments, T, 1, 96, 2, 1>(dtype),  \
      packed_fragments_of<ForwardFragments, T, 1, 128, 2, 1>(dtype), \
      packed_fragments_of<ForwardFragments, T, 2, 128, 2, 1>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
    FUSEDSC_FRAGMENTS(float, DataType::float32),
    FUSEDSC_STREAMED_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_STREAMED_FRAGMENTS(BFloat16, DataType::bfloat16),
    FUSEDSC_STREAMED_FRAGMENTS(float, DataType::float32),
    FUSEDSC_PACKED_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_PACKED_FRAGMENTS(BFloat16, DataType::bfloat16),
};

std::string why_no_whole_runs(const PointwiseArguments& a) {
  const std::string why = why_no_fragments({a.x, a.y, a.epilogue.residual}, a.groups, a.allow_tf32);
  return why.empty() ? why_no_fragments_of(a.weight) : why;
}

std::string unsupported(const PointwiseArguments& a) {
  if (const std::string why = needs_device(Device::gpu, a.x.device); !why.empty()) return why;
  if (a.windows.channels > 0) return "the weight has channel windows";
  if (const std::string why = too_large_for_pointwise(a.x.sizes, a.y.sizes); !why.empty()) return why;
  if (std::string why = why_no_whole_runs(a); !why.empty()) {
    if (size_of(a.x.dtype) != 2) return why;
    why = why_no_packed_fragments({a.x, a.y, a.epilogue.residual}, a.weight, a.groups);
    if (!why.empty()) return why;
  }
  if (configs_of(kInstances, fragment_problem_of(a).needs).empty())
    return "the weight and rows do not fit shared memory";
  return {};
}

Configs configs(const PointwiseArguments& a) { return configs_of(kInstances, fragment_problem_of(a).needs); }

void* take_partials(const PointwiseArguments& a, int splits, Arena& arena) {
  return a.statistics ? arena.take<char>(3 * splits * a.y.sizes[1] * std::int64_t{sizeof(float)}) : nullptr;
}

Plan<PointwiseArguments> plan(const PointwiseArguments& a, const Config& config, int /*threads*/) {
  const FragmentProblem problem = fragment_problem_of(a);
  const auto& instance = instance_with(kInstances, problem.needs, config);
  PointwiseParameters planned;
  plan_instance(problem, instance, planned.product);
  Arena measured(nullptr);
  take_partials(a, planned.product.splits, measured);
  return {measured.used(),
          [planned, kernel = kernel_of(instance, problem.needs), threads = instance.threads,
           memory = memory_of(instance, problem.needs)](const PointwiseArguments& like, const Execution& execution) {
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
            launch_following(kName, kernel, p.product.blocks(), threads, execution.stream, p, memory);
            if (!like.statistics) return;
            launch_merge_moments(kName, accumulation_type(like.x.dtype), p.partials, p.product.splits, like.statistics,
                                 like.x.sizes[0] * like.x.sizes[2] * like.x.sizes[3], execution.stream);
          }};
}

}  // namespace

FragmentProblem fragment_problem_of(const PointwiseArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const std::int64_t channels = a.x.sizes[1] / a.groups, outputs = a.y.sizes[1] / a.groups;
  return {{a.x.dtype,
           fusion_of(a.prologue || a.epilogue || a.statistics, {a.prologue.activation, a.epilogue.activation}),
           !why_no_whole_runs(a).empty(),
           {static_cast<int>(channels), false, static_cast<int>(outputs), a.epilogue.residual ? 1 : 0}},
          {a.x.dtype, true, pixels, channels, outputs, a.groups}};
}

Kernel<PointwiseArguments> pointwise_fragments() { return {"gpu_fragments", unsupported, configs, plan}; }

Config pointwise_fragments_prior(const PointwiseArguments& a) { return cheapest(fragment_problem_of(a), kInstances); }

}  // namespace gpu
}  // namespace fusedsc
