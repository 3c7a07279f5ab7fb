#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"

#include <algorithm>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {

std::string why_no_fragments(std::initializer_list<ConstTensorView> tensors, std::int64_t groups) {
  if (!kWaveProducts) return "this build's GPUs have no products of matrices by 32 threads";
  for (const ConstTensorView& tensor : tensors) {
    if (!tensor) continue;
    if (size_of(tensor.dtype) != 2) return "elements have no 16 bits";
    if (tensor.sizes[1] / groups % 8 != 0) {
      return "a group has " + std::to_string(tensor.sizes[1] / groups) + " channels, not a multiple of 8";
    }
    const PointwiseMatrix matrix = activation_matrix(tensor, groups, true);
    if (!matrix.is_linear) return "positions of an image do not lie at equal distances in memory";
    if (matrix.run_bytes != 16) {
      return "8 channels of a position are not together in memory, at an address that is a multiple of 16";
    }
  }
  return {};
}

std::string why_no_fragments_of(const ConstTensorView& weight) {
  if (weight_matrix(weight, 1).run_bytes == 16) return {};
  return "8 channels of an output's weight are not together in memory, at an address that is a multiple of 16";
}

double plan_fragments(const PointwiseProblem& problem, const tuning::Config& config, int resident, int multiprocessors,
                      PointwiseProductParameters& product) {
  using enum tuning::Knob;
  const PointwiseTile tile{config[rows], config[columns], 32 * config[groups], config[groups], false};
  return plan_product(problem, tile, resident, multiprocessors, product);
}

}  // namespace fusedsc::gpu
