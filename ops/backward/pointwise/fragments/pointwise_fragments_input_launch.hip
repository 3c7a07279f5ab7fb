#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_instances.h"

namespace fusedsc::gpu {
namespace {

struct InputGradient {
  using Parameters = PointwiseInputGradientParameters;
  static constexpr bool kInputGradient = true;
  template <class T, class Sweep, bool kFused, bool kClamps>
  using Sink = PointwiseInputGradientSink<T, Sweep, kFused, kClamps>;
};

const FragmentInstance<PointwiseInputGradientParameters> kInstances[] = {
// tiles of 8 positions, columns, parts; blocks that shall fit a multiprocessor, without fusion and with it
#define FUSEDSC_FRAGMENTS(T, dtype)                                  \
  fragments_of<InputGradient, T, 2, 32, 1, 7, 5, false>(dtype),      \
      fragments_of<InputGradient, T, 4, 32, 1, 5, 3, true>(dtype),   \
      fragments_of<InputGradient, T, 2, 64, 1, 5, 3, true>(dtype),   \
      fragments_of<InputGradient, T, 4, 64, 1, 3, 2, false>(dtype),  \
      fragments_of<InputGradient, T, 2, 96, 1, 4, 3, false>(dtype),  \
      fragments_of<InputGradient, T, 4, 96, 1, 2, 2, false>(dtype),  \
      fragments_of<InputGradient, T, 2, 128, 1, 3, 2, false>(dtype), \
      fragments_of<InputGradient, T, 2, 32, 2, 7, 5, false>(dtype),  \
      fragments_of<InputGradient, T, 2, 32, 4, 7, 5, true>(dtype),   \
      fragments_of<InputGradient, T, 2, 64, 4, 5, 3, false>(dtype)
    FUSEDSC_FRAGMENTS(Float16, DataType::float16),
    FUSEDSC_FRAGMENTS(BFloat16, DataType::bfloat16),
};

FragmentProblem problem_of(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const std::int64_t outputs = a.grad_y.sizes[1] / a.groups, channels = a.x.sizes[1] / a.groups;
  return {{a.x.dtype, fusion_of(a.prologue || a.gradient_prologue || a.grad_add, {a.prologue.activation}),
           static_cast<bool>(a.gradient_prologue), static_cast<int>(outputs)},
          {a.x.dtype, true, pixels, outputs, channels, a.groups}};
}

}  // namespace

Configs pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  return configs_of(kInstances, problem_of(a).needs);
}

Config cheapest_pointwise_input_fragments(const PointwiseBackwardArguments& a) {
  return problem_of(a).cheapest(kInstances);
}

Plan<PointwiseBackwardArguments> plan_pointwise_input_fragments(const PointwiseBackwardArguments& a,
                                                                const Config& config) {
  const FragmentProblem problem = problem_of(a);
  const auto& instance = instance_with(kInstances, problem.needs, config);
  PointwiseProductParameters planned;
  problem.plan(instance, planned);
  Arena measured(nullptr);
  input_parameters_of(a, true, planned, measured);
  return {measured.used(),
          [planned, kernel = kernel_of(instance, problem.needs), memory = memory_of(instance, problem.needs)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            const PointwiseInputGradientParameters p = input_parameters_of(like, true, planned, arena);
            launch_following(kPointwiseBackward, kernel, p.product.blocks(), kMatrixThreads, execution.stream, p,
                             memory);
            launch_sums(like, p, execution.stream);
          }};
}

}  // namespace fusedsc::gpu
