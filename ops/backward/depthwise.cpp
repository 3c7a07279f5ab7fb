#include "fusedsc/backward/depthwise.h"

#include "fusedsc/backward/depthwise_cpu.h"
#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_planes_cpu.h"
#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<DepthwiseBackwardArguments>> implementations() {
  static const Implementation<DepthwiseBackwardArguments> list[] = {
#ifdef FUSEDSC_HOPPER
      depthwise_backward_hopper(),
#endif
#ifdef FUSEDSC_GPU
      depthwise_backward_gpu(),
#endif
      depthwise_backward_planes_cpu(),
      depthwise_backward_cpu(),
  };
  return list;
}

void check_problem(const DepthwiseBackwardArguments& arguments) {
  check_backward(arguments, depthwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.window));
}

constexpr Operator<DepthwiseBackwardArguments> kOperator{
    .name = "depthwise_conv2d_backward",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<DepthwiseBackwardArguments>,
    .is_empty = is_empty_backward<DepthwiseBackwardArguments>,
    .clear_results = clear_sums_of<DepthwiseBackwardArguments>,
    .finish = normalise_sums_of<DepthwiseBackwardArguments>,
};

}  // namespace

void depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments, const Execution& execution) {
  run(kOperator, arguments, execution);
}

std::size_t depthwise_conv2d_backward_workspace_bytes(const DepthwiseBackwardArguments& arguments, int threads) {
  return plan(kOperator, arguments, threads).workspace_bytes;
}

Plan<DepthwiseBackwardArguments> plan_depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments,
                                                                int threads) {
  return plan(kOperator, arguments, threads);
}

std::vector<Candidate> explain_depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments) {
  return explain(kOperator, arguments);
}

}  // namespace fusedsc
