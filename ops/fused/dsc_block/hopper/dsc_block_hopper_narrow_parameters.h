/// What the fused block's kernel in eval mode for few channels on Hopper GPUs is told, and how it lays out tiles of x.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_problem.h"

namespace fusedsc::gpu::hopper {

struct DscTilesParameters : DscBlockProblem {
  TensorMap x;
  ConstDeviceTensor pw_weight, residual;

  // A tile of x lies in shared memory as [row][column][channel of the box]; pitch is a multiple of 8.
  int input_rows = 3, pitch = 8, box_bytes = 128, boxes = 1, stages = 2;
  int strips = 1, row_groups = 1;  ///< of 16 columns, of kRows rows of the output: a warp has one of either
  int tiles = 1;                   ///< of all images
  Divisor by_row_tiles, by_column_tiles;

  FUSEDSC_HOST_DEVICE int warps() const { return strips * row_groups; }  ///< that compute
  FUSEDSC_HOST_DEVICE int box_tile_bytes() const { return input_rows * pitch * box_bytes; }
  /// Windows of positions that do not exist may see what lies behind the last row.
  FUSEDSC_HOST_DEVICE int stage_bytes() const { return (box_tile_bytes() + 1023) / 1024 * 1024 + 4096; }
  FUSEDSC_HOST_DEVICE int padded_channels() const { return (channels + 15) / 16 * 16; }
  /// From an output's weights to the next one's: such that 8 of them lie on different banks.
  FUSEDSC_HOST_DEVICE int weight_pitch() const { return padded_channels() * 2 + 16; }
};

}  // namespace fusedsc::gpu::hopper
