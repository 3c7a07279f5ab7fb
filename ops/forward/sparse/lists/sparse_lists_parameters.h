/// What the kernels of gpu_lists are launched with: a convolution cut into tiles.
#pragma once

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu {

inline constexpr int kSparseThreads = 512;  ///< of a block, at most
inline constexpr int kSparseRun = 8;        ///< channels that a thread compresses at a time
inline constexpr int kSparseList = 32;      ///< channels of a compressed map's lists: kMapList
inline constexpr std::int64_t kMostDivided = (std::int64_t{1} << 31) - 256;  ///< which a Divisor divides, with a block
inline constexpr int kSparseElementThreads = 128;  ///< of a block, where each thread has an element
inline constexpr int kSparseRow = 64;              ///< outputs of a packed weight's row: kPackedOutputs

/// One axis of a tile. Of x it has what its windows see: positions `sample` apart, which are numbered through.
struct SparseAxis {
  int tile = 1;         ///< outputs of a tile, pooled where the block pools
  int slots = 1;        ///< results of the convolution that these are made of
  int positions = 1;    ///< of x, of a tile
  int sample = 1;       ///< distance of these in x
  int slot_step = 0;    ///< positions from one slot's window to the next
  int tap_step = 0;     ///< positions from one tap of a window to the next
  int tile_stride = 1;  ///< results of the convolution from one tile to the next
  int x_stride = 1;     ///< the convolution's
  int padding = 0;
  int x_size = 0, slots_size = 0, y_size = 0;  ///< of x, of the convolution's result, of y
  int kernel = 1;
  int pool = 1, pool_stride = 1;
};

struct SparseListsParameters {
  ConstDeviceTensor x;
  const std::uint8_t* x_channels = nullptr;  ///< where x is a compressed map
  const std::uint32_t* x_counts = nullptr;   ///< likewise, those of a list
  DeviceTensor y;
  std::uint8_t *y_channels = nullptr, *y_counts = nullptr;  ///< where y becomes one
  const void* weight = nullptr;                             ///< packed
  bool weight_is_new = false;                               ///< the kernel before packs it
  const void* bias = nullptr;
  void* partials = nullptr;  ///< [split][image][position of the convolution's result][output], or none: blocks finish
  SparseAxis rows, columns;
  int images = 0, groups = 1, splits = 1;
  int row_tiles = 1, column_tiles = 1;
  int channels = 0, outputs = 0;  ///< of a group
  int split_channels = 0;         ///< of a block
  int slices = 1;                 ///< threads' groups that share the channels of a slot out
  int runs = 1;                   ///< of kSparseRun channels, of a slice, at a time
  int lists_at_once = 1;          ///< that the block's threads compress at a time
  int threads = 0;                ///< of the block
  bool x_channels_inner = false;  ///< whether neighbouring threads shall read neighbouring channels of x
  bool y_channels_inner = false;  ///< likewise, write those of y
  bool compresses_y = false;
  Activation activation = Activation::identity;
  Divisor by_output_tiles, by_column_tiles, by_row_tiles, by_splits, by_groups;
  Divisor by_slots, by_slot_columns, by_positions, by_position_columns, by_lists_at_once, by_runs;
  Divisor by_finished, by_tile_columns;

  FUSEDSC_HOST_DEVICE int slots() const { return rows.slots * columns.slots; }
  FUSEDSC_HOST_DEVICE int positions() const { return rows.positions * columns.positions; }
  FUSEDSC_HOST_DEVICE int lists() const { return slices * positions(); }
  FUSEDSC_HOST_DEVICE int list_size() const { return runs * kSparseRun; }
  FUSEDSC_HOST_DEVICE int run_stride() const { return (runs + 3) / 4 * 4; }  ///< bytes of a list's counts
  FUSEDSC_HOST_DEVICE int slab() const { return slices * list_size(); }
  FUSEDSC_HOST_DEVICE int taps() const { return rows.kernel * columns.kernel; }
};

/// Of the second pass, where blocks share the channels out.
struct SparseFinishParameters {
  DeviceTensor y;
  std::uint8_t *y_channels = nullptr, *y_counts = nullptr;  ///< where y becomes a compressed map
  int y_runs = 0;                                           ///< likewise, of a position
  std::int64_t items = 0;                                   ///< that a thread each has: y's elements, or runs
  Divisor by_items, by_columns, by_rows;                    ///< of a position, and of y; of no more than kMostDivided
  const void* bias = nullptr;
  const void* partials = nullptr;
  int images = 0, outputs = 0, splits = 1;  ///< outputs of all groups
  int slot_rows = 0, slot_columns = 0, y_rows = 0, y_columns = 0;
  int pool_rows = 1, pool_columns = 1, pool_row_stride = 1, pool_column_stride = 1;
  Activation activation = Activation::identity;
};

/// A weight laid out as pack_sparse_weight() says.
struct PackSparseParameters {
  const void* weight = nullptr;
  void* packed = nullptr;
  std::int64_t output_stride = 0, channel_stride = 0, row_stride = 0, column_stride = 0;
  int outputs = 0, row_blocks = 1;  ///< outputs of a group, and blocks of kSparseRow of them
  int kernel_rows = 1, kernel_columns = 1;
  std::int64_t rows = 0, all = 0;  ///< of a block; elements of all
};

}  // namespace fusedsc::gpu
