#include "fusedsc/backward/pointwise.h"

#include "fusedsc/backward/pointwise_cpu.h"
#include "fusedsc/backward/pointwise_gpu.h"
#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/runtime/convolution.h"

namespace fusedsc {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

std::span<const Implementation<PointwiseBackwardArguments>> implementations() {
  static const Implementation<PointwiseBackwardArguments> list[] = {
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

}  // namespace

void pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments, const Execution& execution) {
  check_problem(arguments);
  check_backward_memory(arguments);
  run_convolution(kName, implementations(), arguments, execution);
}

std::size_t pointwise_conv2d_backward_workspace_bytes(const PointwiseBackwardArguments& arguments, int threads) {
  check_problem(arguments);
  return convolution_workspace_bytes(kName, implementations(), arguments, threads);
}

std::vector<Candidate> explain_pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments) {
  check_problem(arguments);
  return explain(implementations(), arguments);
}

}  // namespace fusedsc
