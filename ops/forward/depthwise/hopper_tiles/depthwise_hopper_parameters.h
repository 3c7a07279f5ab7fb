/// What the depthwise forward kernel for Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseTilesParameters : DepthwiseTilesShape {
  TensorMap x, y;
  ConstDeviceTensor raw_x, weight, residual;  ///< raw_x: x again, where single elements are read
  const void* bias = nullptr;
  const float *scale = nullptr, *shift = nullptr;                    ///< of the prologue
  const float *epilogue_scale = nullptr, *epilogue_shift = nullptr;  ///< null: 1 and 0
  Activation activation = Activation::identity, epilogue_activation = Activation::identity;
  bool has_prologue = false, has_y = true;
  float* partials = nullptr;  ///< of the statistics, [split][mean, m2, count][channel], where they are wanted
  int out_bytes = 0;          ///< of a tile of y: [box of channels][row][image][column][channel of the box]
  int out_half_bytes = 0, out_product_bytes = 0;  ///< as half_bytes and product_bytes, of y

  FUSEDSC_HOST_DEVICE int memory_bytes() const {
    return 1024 + stages * tile_bytes + 2 * out_bytes + 48 * stages + 16 + warps() * 64;
  }
};

}  // namespace fusedsc::gpu::hopper
