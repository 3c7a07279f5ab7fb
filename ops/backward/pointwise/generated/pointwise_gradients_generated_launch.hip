#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"
#include "fusedsc/backward/pointwise/generated/pointwise_gradients_generated.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_gradient_arguments.h"
#include "fusedsc/forward/pointwise/generated/pointwise_generated_order.h"
#include "fusedsc/tuning/compiler/generated_kernel.h"

namespace fusedsc {
namespace gpu {
namespace {

using tuning::Direction;
using tuning::Knob;
using BackwardPlan = Plan<PointwiseBackwardArguments>;

Direction direction_of(const PointwiseBackwardArguments& a) {
  return a.grad_x ? Direction::grad_input : Direction::grad_weight;
}

PointwiseGradientProblem problem_of(const PointwiseBackwardArguments& a) {
  return a.grad_x ? input_problem_of(a) : weight_problem_of(a);
}

generated::PointwiseTarget target_of(const PointwiseBackwardArguments& a) {
  const PointwiseNeeds needs = problem_of(a).needs;
  const auto fragments = [&] {
    if (!a.grad_x) return tuning::FragmentRows::none;
    return fragment_rows_of(pointwise_backward_fragments().unsupported(a), input_fragment_problem_of(a).needs.packed);
  };
  return {architecture(),       multiprocessors(),  kCopyStages, uses_tf32(DataType::float32, true),
          needs.channels_inner, needs.use.elements, fragments()};
}

generated::GeneratedText text_of(const PointwiseBackwardArguments& a, const Config& config) {
  return generated::pointwise_gradient_text(a, target_of(a), direction_of(a), config);
}

Configs configs(const PointwiseBackwardArguments& a) {
  // The weight's gradient has no kernels by fragments.
  return laid_out(generated::pointwise_gradient_configs(a, target_of(a), direction_of(a)),
                  input_fragment_problem_of(a));
}

/// A launch, worked out but for addresses.
class Pass {
 public:
  Pass(const PointwiseBackwardArguments& a, const Config& config) : Pass(problem_of(a), text_of(a, config)) {
    const PointwiseNeeds& needs = problem_.needs;
    // Fragments whose weight stays have no depth of their own.
    const int groups = config[Knob::groups],
              depth = tuning::is_fragment_tiling(config) ? 32 * groups : config[Knob::depth];
    const PointwiseTile tile{config[Knob::rows], config[Knob::columns], depth, groups, needs.tf32, needs.use.elements};
    const int resident = kernel_.resident_blocks(threads_);
    if (a.grad_x) plan_product(problem_.product, tile, resident, multiprocessors(), product_);
    else weight_ = plan_weight_gradient(problem_.product, tile, resident, multiprocessors());
  }

  std::size_t workspace_bytes(const PointwiseBackwardArguments& a) const {
    Arena arena(nullptr);
    if (a.grad_x) input_parameters(a, arena);
    else weight_parameters(a, arena);
    return arena.used();
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    if (a.grad_x) {
      const PointwiseInputGradientParameters p = input_parameters(a, arena);
      launch(a, p, p.product.blocks(), execution.stream);
    } else {
      const PointwiseWeightGradientParameters p = weight_parameters(a, arena);
      launch(a, p, p.blocks(), execution.stream);
    }
  }

 private:
  Pass(const PointwiseGradientProblem& problem, const generated::GeneratedText& text)
      : problem_(problem), threads_(text.threads), kernel_(text.text, text.shared_memory_bytes) {}

  PointwiseInputGradientParameters input_parameters(const PointwiseBackwardArguments& a, Arena& arena) const {
    return input_parameters_of(a, problem_.needs.channels_inner, product_, arena);
  }
  PointwiseWeightGradientParameters weight_parameters(const PointwiseBackwardArguments& a, Arena& arena) const {
    return weight_parameters_of(a, problem_.product, weight_, arena);
  }

  template <class Parameters>
  void launch(const PointwiseBackwardArguments& a, const Parameters& p, std::int64_t blocks, void* stream) const {
    kernel_.launch(kPointwiseBackward, blocks, threads_, stream, p);
    launch_sums(a, p, stream);
  }

  PointwiseGradientProblem problem_;
  int threads_;
  GeneratedKernel kernel_;
  PointwiseProductParameters product_;  ///< of the input's gradient
  WeightGradientPlan weight_{};         ///< of the weight's
};

std::string unsupported(const PointwiseBackwardArguments& a) {
  if (std::string elsewhere = needs_device(Device::gpu, a.x.device); !elsewhere.empty()) return elsewhere;
  if (std::string both = why_not_one_gradient(a); !both.empty()) return both;
  return why_not_generated(too_large_for_pointwise(a.x.sizes, a.grad_y.sizes), configs, a);
}

BackwardPlan plan(const PointwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const Pass pass(a, config);
  return {pass.workspace_bytes(a),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

std::string source(const PointwiseBackwardArguments& a, const Config& config) { return text_of(a, config).text; }

}  // namespace
}  // namespace gpu

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_generated() {
  return {"generated", gpu::unsupported, gpu::configs, gpu::plan, gpu::source};
}

}  // namespace fusedsc
