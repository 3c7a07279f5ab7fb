/// What the depthwise forward kernel for Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/depthwise_hopper_tiles.h"
#include "fusedsc/common/gpu/tensor.h"

namespace fusedsc::gpu::hopper {

/// Per warp, in block memory: what belongs to its 8 channels.
struct DepthwiseChannels {
  float scale[8], shift[8], bias[8], epilogue_scale[8], epilogue_shift[8];
};

struct DepthwiseTilesParameters : DepthwiseTilesShape {
  TensorMap x, y;
  ConstDeviceTensor raw_x, weight, residual;  ///< raw_x: x again, where single elements are read
  const void* bias = nullptr;
  const float *scale = nullptr, *shift = nullptr;                    ///< of the prologue
  const float *epilogue_scale = nullptr, *epilogue_shift = nullptr;  ///< null: 1 and 0
  Activation activation = Activation::identity, epilogue_activation = Activation::identity;
  bool has_prologue = false, has_y = true;
  float* partials = nullptr;  ///< of the statistics, [split][mean, m2, count][channel], where they are wanted
  // Tiles of y lie in block memory as [box of channels][row][image][column][channel of the box].
  int out_rows = 1, out_row_bytes = 0, out_bytes = 0;
  int out_half_bytes = 0;  ///< as half_bytes, of y
  bool starts_next_first = false;     ///< the next kernel of the stream may take its places as soon as it can
  std::uint32_t same_order = 0x3210;  ///< of a word's bytes

  FUSEDSC_HOST_DEVICE int threads() const { return (warps() + 2) * 32; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const {
    return 1024 + stages * tile_bytes + 2 * out_bytes +
           stages * static_cast<int>(2 * sizeof(Barrier) + sizeof(DepthwiseTileNote)) + 2 * static_cast<int>(sizeof(Barrier)) +
           warps() * static_cast<int>(sizeof(DepthwiseChannels));
  }
};

}  // namespace fusedsc::gpu::hopper
