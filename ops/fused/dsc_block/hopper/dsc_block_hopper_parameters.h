/// What the fused block's kernel in eval mode on Hopper GPUs is told, and how it cuts images into tiles.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_problem.h"

namespace fusedsc::gpu::hopper {

struct DscBlockParameters : DscBlockProblem {
  TensorMap x, pw_weight;
  bool has_residual = false;
  std::int64_t residual_distance = 0;  ///< of the same strides as y: from y's elements to its own, in elements
  std::uint32_t same_order = 0x3210;   ///< of a word's bytes: what the compiler shall not know

  // A tile of outputs is `strips` strips, one below the other, of as many rows as the kernel's products have; a row of
  // a strip has `lines` patches of 4 columns. Of these tile_rows and tile_columns are the tile's own.
  int lines = 1, strips = 1, tile_rows = 1, tile_columns = 4;
  int tiles = 1;  ///< of all images
  Divisor by_row_tiles, by_column_tiles, by_lines;

  // A chunk of channels of a tile of x lies in shared memory as [row][column][channel]; pitch is a multiple of 8.
  int input_rows = 3, pitch = 8, chunks = 1, stages = 2;
  Divisor by_stages, by_chunks;

  FUSEDSC_HOST_DEVICE int patches() const { return lines * strips; }  ///< of a product's 16
  /// Of 8 channels; an even number, as products take 16.
  FUSEDSC_HOST_DEVICE int runs() const { return (channels + 15) / 16 * 2; }
};

/// Of the output, a tile's first position.
struct DscBlockPlace {
  int image, row, column;

  FUSEDSC_DEVICE DscBlockPlace(const DscBlockParameters& p, int tile) {
    std::uint32_t rest = static_cast<std::uint32_t>(tile);
    std::uint32_t quotient = p.by_column_tiles.divide(rest);
    column = static_cast<int>(rest) * p.tile_columns;
    image = static_cast<int>(p.by_row_tiles.divide(quotient));
    row = static_cast<int>(quotient) * p.tile_rows;
  }
};

/// Where one of a product's 16 patches lies in a tile. Those of no use have no rows, and otherwise are as the first.
struct DscBlockPatch {
  std::int16_t row, column;  ///< the first
  std::int16_t end;          ///< of its rows that are the tile's own; from the tile's first

  FUSEDSC_DEVICE DscBlockPatch(const DscBlockParameters& p, int rows, int patch) {
    const bool exists = patch < p.patches();
    std::uint32_t line = exists ? static_cast<std::uint32_t>(patch) : 0;
    row = static_cast<std::int16_t>(static_cast<int>(p.by_lines.divide(line)) * rows);
    column = static_cast<std::int16_t>(line * 4);
    end = static_cast<std::int16_t>(exists ? least(row + rows, p.tile_rows) : 0);
  }
};

}  // namespace fusedsc::gpu::hopper
