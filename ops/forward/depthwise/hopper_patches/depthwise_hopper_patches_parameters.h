/// What the depthwise kernels of patches for Hopper GPUs are told.
#pragma once

#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"

namespace fusedsc::gpu::hopper {

/// Whether outputs of such windows may have a bias, which takes registers; others go by depthwise_hopper_kernel.h then.
constexpr bool patches_take_bias(int kernel) { return kernel == 7; }
/// Of how many pairs of channels a warp makes a forward pass: sums of the rows that such windows cover are in
/// registers.
constexpr int patches_pairs(int kernel) { return kernel == 7 ? 2 : 4; }

struct DepthwisePatchesParameters : DepthwiseTilesShape {
  TensorMap x, y;
  ConstDeviceTensor raw_x, weight;  ///< raw_x: x again, where single elements are read
  const void* bias = nullptr;       ///< or none; see patches_take_bias()
  int run_parts = 1;                ///< of a run of 8 channels: as many warps share them out
  // Tiles of y lie in shared memory as [box of channels][row][image][column][channel of the box].
  int out_rows = 1, out_row_bytes = 0, out_bytes = 0;
  int out_half_bytes = 0;             ///< as half_bytes, of y
  std::uint32_t same_order = 0x3210;  ///< of a word's bytes: what the compiler shall not know

  /// If it is cut into these, tiles of y are [row][segment][image][byte of the segment].
  int out_segments = 0, out_segment_bytes = 0;

  int weight_bytes = 0;  ///< of shared memory: weights for which there are no registers

  FUSEDSC_HOST_DEVICE int warps() const { return run_parts * DepthwiseTilesShape::warps(); }
  FUSEDSC_HOST_DEVICE int threads() const { return (warps() + 2) * 32; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const {
    return 1024 + stages * tile_bytes + 2 * out_bytes +
           stages * static_cast<int>(2 * sizeof(Barrier) + sizeof(DepthwiseTileNote)) +
           2 * static_cast<int>(sizeof(Barrier)) + weight_bytes;
  }
};

}  // namespace fusedsc::gpu::hopper
