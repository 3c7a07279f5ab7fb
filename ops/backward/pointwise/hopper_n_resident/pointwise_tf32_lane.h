/// How lanes have float32 of tiles that TMA brought as factors of TF32 products (mma): what the kernels of both
/// gradients, N-resident and K-resident, share. Which positions are a product's rows, and which channels its columns,
/// is free: chosen such that a lane reads neighbours, and the banks of four lanes differ.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/sums/item_work.h"

namespace fusedsc::gpu::hopper {

/// A tile has kPositions, in boxes of 32 channels; a warp has kTiles of 8 channels of it as columns.
template <int kPositions, int kTiles>
struct Tf32Lane {
  static constexpr int kBoxBytes = kPositions * 128;

  const int row = thread_index() % 32 / 4, column = thread_index() % 4;  ///< the first row, and pair of columns
  const int position = row % 4 * 2 + row / 4;                            ///< where positions are rows, the first

  /// Where in a box, or those that follow it, a channel of a position lies; rows swizzle their runs of 16 bytes.
  FUSEDSC_DEVICE static int place_of(int at, int channel) {
    return channel / 32 * kBoxBytes + at * 128 + ((channel / 4 % 8) ^ (at & 7)) * 16 + channel % 4 * 4;
  }

  /// Of a warp's, column `column_of_tile` (0 to 7) of tile n: a lane's columns are neighbours.
  FUSEDSC_DEVICE static int channel_of(int n, int column_of_tile) {
    if (kTiles == 3) return n < 2 ? 2 * column_of_tile + n : 16 + column_of_tile;
    return kTiles * column_of_tile + n;
  }

  template <int kCount>
  FUSEDSC_DEVICE static void read(const unsigned char* from, float (&to)[kCount]) {
    load<kCount>(reinterpret_cast<const float*>(from)).widen(to);
  }

  /// Of a position, the lane's column of each tile, of a warp whose channels begin at `first`.
  FUSEDSC_DEVICE void read_columns(const unsigned char* from, int at, int first, float (&to)[kTiles]) const {
    if constexpr (kTiles == 3) {
      float pair[2];
      read(from + place_of(at, first + channel_of(0, row)), pair);
      to[0] = pair[0];
      to[1] = pair[1];
      to[2] = *reinterpret_cast<const float*>(from + place_of(at, first + channel_of(2, row)));
    } else {
      read(from + place_of(at, first + channel_of(0, row)), to);
    }
  }

  /// 16 positions from `first` on, of 8 channels from `channel` on: values of k are dealt such that a lane has two
  /// neighbours of each of its rows.
  FUSEDSC_DEVICE void read_rows(const unsigned char* from, int first, int channel, std::uint32_t (&rows)[4]) const {
    from += place_of(first + position, channel + 2 * column);
    const auto near = load<2>(reinterpret_cast<const float*>(from)),
               far = load<2>(reinterpret_cast<const float*>(from + 8 * 128));
    rows[0] = near.words[0];
    rows[1] = far.words[0];
    rows[2] = near.words[1];
    rows[3] = far.words[1];
  }
};

}  // namespace fusedsc::gpu::hopper
