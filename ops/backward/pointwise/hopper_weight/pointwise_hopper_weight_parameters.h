/// What the kernel of pointwise weight gradients on Hopper GPUs is told.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_tiles.h"
#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

enum class PointwiseWeightKind {
  plain,
  fused,  ///< both: `output` is there, and if need be has a scale of 0
  bias,   ///< fusion and the bias gradient
};

struct PointwiseWeightParameters {
  TensorMap grad_y, output, x;
  int pixels = 0, pixel_tiles = 0;
  int stages = 2;               ///< tiles of positions that each group has under way
  int cluster = 1, splits = 1;  ///< blocks of a cluster, and clusters, that share a tile's positions
  // Of grad_y: grad_scale*grad_y + output_scale*output + offset. Of x: activation(scale*x + shift).
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const float *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
  bool has_prologue = false;
  /// Rows of the weight begin at multiples of 16 bytes, and nothing is left for a second kernel.
  bool stores_runs = false;
  GroupTiles tiles;
};

}  // namespace fusedsc::gpu::hopper
