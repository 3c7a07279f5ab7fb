/// Launches of a sliding-channel product (sliding_product.h): its weight is laid out, then multiplied.
#pragma once

#include <string>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/forward/sliding_channel/product/sliding_product.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {

/// Why tensors of these sizes are not for these kernels, forward or backward; or empty.
std::string why_not_sliding_planes(const ConstTensorView& x, const ConstTensorView& y, const SlidingChannels& windows,
                                   bool allow_tf32);

/// A kernel that was compiled.
struct SlidingProductInstance {
  using Kernel = void (*)(SlidingProductParameters);
  using Memory = int (*)(int depth, int steps);

  int rows, pieces, threads, stages;
  Kernel kernel;
  Memory memory;
};

/// Forward, or the input gradient.
class SlidingProductPass {
 public:
  /// `from` and `to` have the same images.
  SlidingProductPass(const SlidingBands& bands, const ConstTensorView& from, const ConstTensorView& weight,
                     const TensorView& to, Arena& arena);

  /// It waits for what was launched before.
  void lay_out(const char* name, void* stream) const;
  /// May come to the stream later, if whatever comes between waits as well.
  void multiply(const char* name, void* stream) const;

 private:
  const SlidingProductInstance* instance_;
  SlidingFragments weight_;
  SlidingProductParameters p_;
};

}  // namespace fusedsc::gpu
