#include "fusedsc/backward/pointwise.h"

#include "fusedsc/backward/pointwise_cpu.h"
#include "fusedsc/backward/pointwise_gpu.h"
#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<PointwiseBackwardArguments>> implementations() {
  static const Implementation<PointwiseBackwardArguments> list[] = {
#ifdef FUSEDSC_GPU
      pointwise_backward_few(),
#endif
#ifdef FUSEDSC_HOPPER
      pointwise_backward_hopper_joint(),
      pointwise_backward_tf32_joint(),
      pointwise_backward_tf32_gradients(),
      pointwise_backward_hopper_transposing(),
      pointwise_backward_hopper_narrow(),
      pointwise_backward_hopper_teams(),
      pointwise_backward_hopper(),
      pointwise_backward_hopper_planes(),
#endif
#ifdef FUSEDSC_GPU
      pointwise_backward_gpu(),
#endif
      pointwise_backward_cpu(),
  };
  return list;
}

void check_problem(const PointwiseBackwardArguments& arguments) {
  check_backward(arguments, pointwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.groups));
}

constexpr Operator<PointwiseBackwardArguments> kOperator{
    .name = "pointwise_conv2d_backward",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<PointwiseBackwardArguments>,
    .is_empty = is_empty_backward<PointwiseBackwardArguments>,
    .clear_results = clear_sums_of<PointwiseBackwardArguments>,
    .finish = normalise_sums_of<PointwiseBackwardArguments>,
};

}  // namespace

void pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments, const Execution& execution) {
  run(kOperator, arguments, execution);
}

std::size_t pointwise_conv2d_backward_workspace_bytes(const PointwiseBackwardArguments& arguments, int threads) {
  return plan(kOperator, arguments, threads).workspace_bytes;
}

Plan<PointwiseBackwardArguments> plan_pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments,
                                                                int threads) {
  return plan(kOperator, arguments, threads);
}

std::vector<Candidate> explain_pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments) {
  return explain(kOperator, arguments);
}

}  // namespace fusedsc
