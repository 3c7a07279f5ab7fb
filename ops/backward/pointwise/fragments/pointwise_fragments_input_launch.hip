#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_input.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_instances.h"

namespace fusedsc::gpu {
namespace {

const FragmentInstance<PointwiseInputGradientParameters> kInstances[] = {
// tiles of 8 positions, columns, parts; blocks that shall fit a multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                                         \
  fragments_of<InputGradientFragments, T, 2, 32, 1, 7, 3, false>(dtype),                    \
      fragments_of<InputGradientFragments, T, 4, 32, 1, 5, 3, true>(dtype),                 \
      fragments_of<InputGradientFragments, T, 2, 64, 1, 5, 3, true>(dtype),                 \
      fragments_of<InputGradientFragments, T, 4, 64, 1, 3, 2, false>(dtype),                \
      fragments_of<InputGradientFragments, T, 2, 96, 1, 4, by_type<T>(3, 2), false>(dtype), \
      fragments_of<InputGradientFragments, T, 4, 96, 1, 2, 2, false>(dtype),                \
      fragments_of<InputGradientFragments, T, 2, 128, 1, 3, 2, false>(dtype),               \
      fragments_of<InputGradientFragments, T, 2, 32, 2, 7, 3, false>(dtype),                \
      fragments_of<InputGradientFragments, T, 2, 32, 4, 7, 3, true>(dtype),                 \
      fragments_of<InputGradientFragments, T, 2, 64, 4, 5, by_type<T>(3, 2), false>(dtype)
// with a weight that comes in stages: tiles of 8 positions of a warp, columns of a block, warps along positions, chunks
// of a stage, stages; blocks, of which 0 with fusion: there is none
#define FUSEDSC_STREAMED_FRAGMENTS(T, dtype)                                                                \
  streamed_fragments_of<InputGradientFragments, T, 2, 64, 2, 2, 4, 4, by_type<T>(3, 2), false>(dtype),      \
      streamed_fragments_of<InputGradientFragments, T, 4, 64, 2, 2, 3, 3, 2, true>(dtype),                  \
      streamed_fragments_of<InputGradientFragments, T, 2, 96, 4, 2, 3, 3, 2, false>(dtype),                 \
      streamed_fragments_of<InputGradientFragments, T, 4, 128, 2, 2, 3, 2, by_type<T>(0, 2), false>(dtype), \
      streamed_fragments_of<InputGradientFragments, T, 4, 64, 4, 2, 3, by_type<T>(3, 2), 2, false>(dtype),  \
      streamed_fragments_of<InputGradientFragments, T, 4, 96, 4, 2, 3, 2, by_type<T>(2, 0), false>(dtype),  \
      streamed_fragments_of<InputGradientFragments, T, 8, 128, 2, 1, 4, 2, 0, false>(dtype)
// of packed rows: tiles of 8 positions, columns; blocks, without fusion and with it
#define FUSEDSC_PACKED_FRAGMENTS(T, dtype)                                 \
  packed_fragments_of<InputGradientFragments, T, 1, 32, 3, 3>(dtype),      \
      packed_fragments_of<InputGradientFragments, T, 2, 32, 3, 2>(dtype),  \
      packed_fragments_of<InputGradientFragments, T, 2, 64, 2, 2>(dtype),  \
      packed_fragments_of<InputGradientFragments, T, 2, 96, 2, 1>(dtype),  \
      packed_fragments_of<InputGradientFragments, T, 1, 96, 2, 1>(dtype),  \
      packed_fragments_of<InputGradientFragments, T, 1, 128, 2, 1>(dtype), \
      packed_fragments_of<InputGradientFragments, T, 2, 128, 2, 1>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
    FUSEDSC_FRAGMENTS(float, DataType::float32),
    FUSEDSC_STREAMED_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_STREAMED_FRAGMENTS(BFloat16, DataType::bfloat16),
    FUSEDSC_STREAMED_FRAGMENTS(float, DataType::float32),
    FUSEDSC_PACKED_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_PACKED_FRAGMENTS(BFloat16, DataType::bfloat16),
};

}  // namespace

FragmentProblem input_fragment_problem_of(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const std::int64_t outputs = a.grad_y.sizes[1] / a.groups, channels = a.x.sizes[1] / a.groups;
  return {{a.x.dtype,
           fusion_of(a.prologue || a.gradient_prologue || a.grad_add, {a.prologue.activation}),
           !why_no_whole_fragments(a).empty(),
           {static_cast<int>(outputs), static_cast<bool>(a.gradient_prologue), static_cast<int>(channels),
            (a.prologue ? 1 : 0) + (a.grad_add ? 1 : 0)}},
          {a.x.dtype, true, pixels, outputs, channels, a.groups}};
}

Configs pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, input_fragment_problem_of(a).needs);
}

Config cheapest_pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  return cheapest(input_fragment_problem_of(a), kInstances);
}

Plan<PointwiseBackwardArguments> plan_pointwise_input_fragments(const PointwiseBackwardArguments& a,
                                                                const Config& config) {
  const FragmentProblem problem = input_fragment_problem_of(a);
  const auto& instance = instance_with(kInstances, problem.needs, config);
  PointwiseProductParameters planned;
  plan_instance(problem, instance, planned);
  Arena measured(nullptr);
  input_parameters_of(a, true, planned, measured);
  return {measured.used(), [planned, kernel = kernel_of(instance, problem.needs), threads = instance.threads,
                            memory = memory_of(instance, problem.needs)](const PointwiseBackwardArguments& like,
                                                                         const Execution& execution) {
            Arena arena(execution.workspace);
            const PointwiseInputGradientParameters p = input_parameters_of(like, true, planned, arena);
            launch_following(kPointwiseBackward, kernel, p.product.blocks(), threads, execution.stream, p, memory);
            launch_sums(like, p, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
