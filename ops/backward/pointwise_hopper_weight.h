/// Pointwise convolution on Hopper GPUs, weight and bias gradients: from the arguments to launches.
#pragma once

#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise_hopper_weight_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

struct PointwiseWeightInstance {
  using Kernel = void (*)(PointwiseWeightParameters);
  using Memory = int (*)(int stages);

  DataType dtype;
  PointwiseWeightKind kind;
  int rows, columns, groups, depth;  ///< of a tile of the weight; of four warps; positions that come at a time
  Kernel kernel;
  Memory memory;
};

class PointwiseWeightPass {
 public:
  /// Whether the copy engine can go over the tensors. The device must be Hopper.
  static bool suits(const PointwiseBackwardArguments& arguments);

  /// Plans, and takes from the workspace what it needs.
  PointwiseWeightPass(const PointwiseBackwardArguments& arguments, Arena& arena);

  void run(const PointwiseBackwardArguments& arguments, void* stream) const;

 private:
  const PointwiseWeightInstance* instance_ = nullptr;
  PointwiseWeightParameters p_;
};

}  // namespace fusedsc::gpu::hopper
