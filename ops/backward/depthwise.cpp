#include "fusedsc/backward/depthwise.h"

#include "fusedsc/backward/depthwise_cpu.h"
#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_planes_cpu.h"
#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/runtime/convolution.h"

namespace fusedsc {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

std::span<const Implementation<DepthwiseBackwardArguments>> implementations() {
  static const Implementation<DepthwiseBackwardArguments> list[] = {
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

}  // namespace

void depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments, const Execution& execution) {
  check_problem(arguments);
  check_backward_memory(arguments);
  run_convolution(kName, implementations(), arguments, execution);
}

std::size_t depthwise_conv2d_backward_workspace_bytes(const DepthwiseBackwardArguments& arguments, int threads) {
  check_problem(arguments);
  return convolution_workspace_bytes(kName, implementations(), arguments, threads);
}

std::vector<Candidate> explain_depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments) {
  check_problem(arguments);
  return explain(implementations(), arguments);
}

}  // namespace fusedsc
