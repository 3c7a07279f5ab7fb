/// What the kernel of both gradients of a pointwise convolution on Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kMostGradientStages = 8;  ///< with more, all blocks ask for too much at once

struct PointwiseGradientsParameters {
  TensorMap x, grad_y, output, grad_x, weight_tiles;
  WeightSource weight;
  int channels = 0, outputs = 0;
  int fold = 1, rows = 0;  ///< positions of a row, if that is more than 64 channels; rows
  int row_tiles = 0, channel_tiles = 1;
  int splits = 1, last_splits = 1;  ///< blocks that share the rows; those of the last tile of channels, if it is narrow
  int stages = 2;                   ///< tiles that a block has under way, at most kMostGradientStages
  // Of grad_y: grad_scale*grad_y + output_scale*output + offset. Of x: activation(scale*x + shift).
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const float *scale = nullptr, *shift = nullptr, *mean = nullptr;
  Activation activation = Activation::identity;
  /// [split][position of a row][output..., grad, grad_times_centered][channel]; plain: outputs. Of windows:
  /// [tile of channels][split][half of a window][filter of a window][column].
  float* partials = nullptr;
};

}  // namespace fusedsc::gpu::hopper
