/// Pointwise weight gradients by sliced-K over warps on Hopper GPUs: from the arguments to launches.
#pragma once

#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_warp_sliced_k_kernel.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

struct WarpSlicedKInstance {
  using Kernel = void (*)(WarpSlicedKParameters);
  using Memory = int (*)(int stages);

  DataType dtype;
  WarpSlicedKRows tile_rows;
  bool fused;
  int rows, columns, slices, threads, depth;  ///< of a tile of the weight; of a block; positions that come at a time
  SliceShape shape;
  Kernel kernel;
  Memory memory;
};

/// How TMA goes over a problem's tensors.
struct WarpSlicedKLayout {
  WarpSlicedKRows rows = WarpSlicedKRows::channels;
  int phases = 1;  ///< channels that are a row to it

  /// Throws nothing; empty if the layout is one, else the reason why not.
  static std::string find(const PointwiseBackwardArguments& arguments, WarpSlicedKLayout& layout);
};

/// Instance, cut and stages of a problem.
struct WarpSlicedKPlan {
  const WarpSlicedKInstance* instance = nullptr;  ///< null: none fits
  int splits = 1, stages = 2;
  double cost = 0;
};
/// Whether x and grad_y are small enough, together, for costs of their own.
bool are_small_for_warp_sliced_k(const PointwiseBackwardArguments& arguments);
WarpSlicedKPlan plan_warp_sliced_k(const PointwiseBackwardArguments& arguments, const WarpSlicedKLayout& layout,
                                   int multiprocessors);

/// The launches, worked out but for addresses.
class WarpSlicedKWeightPass {
 public:
  /// Why it cannot compute the weight gradient, or empty. The device must be Hopper.
  static std::string why_not(const PointwiseBackwardArguments& arguments);

  /// Of arguments that it can compute: tiles of the weight, slices, positions that come at a time, and blocks that
  /// share a tile's positions out.
  static tuning::Configs configs(const PointwiseBackwardArguments& arguments);

  /// By the cheapest tile, or one that was chosen. Throws Unsupported where that does not fit.
  explicit WarpSlicedKWeightPass(const PointwiseBackwardArguments& arguments, const tuning::Config& config = {});

  tuning::Config config() const;

  /// What is between the kernels; null: there is one.
  Four* take_partials(Arena& arena) const;

  void run(const PointwiseBackwardArguments& arguments, Arena& arena, void* stream) const;

 private:
  WarpSlicedKLayout layout_;
  WarpSlicedKPlan plan_;
  WarpSlicedKParameters p_;
};

}  // namespace fusedsc::gpu::hopper
