/// How a pass over all positions (N, H and W) of some tensors is cut into tiles, and the tiles into slices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/joined_views.h"

namespace fusedsc {

/// Whether the positions of each channel follow one another, in all of the views (null ones aside).
template <class... Views>
bool all_contiguous(const Views&... views) {
  return ((!views || layout_of(views.sizes, views.strides) == Layout::contiguous) && ...);
}

/// A tile: `count` positions of a row, from `column` on.
struct PositionTile {
  std::int64_t image = 0, row = 0, column = 0, count = 0;
};

/// Tiles in memory order. Slices are runs of tiles: partial sums are kept per slice and added in order, so that with up
/// to Slices::kSlices threads they do not depend on how many there are.
struct PositionTiles {
  static constexpr std::int64_t kFewTiles = 4;         ///< what small problems are cut into, for two or four threads
  static constexpr std::int64_t kLeastPositions = 12;  ///< of a tile that is cut for that

  std::int64_t rows = 0, columns = 0;  ///< rows of an image, positions of a row
  std::int64_t granule = 1;            ///< tiles begin at multiples of it
  std::int64_t per_row = 1;            ///< tiles of a row
  std::int64_t count = 0, slices = 0;

  /// Tiles of up to `wanted` positions (a multiple of `granule_`).
  PositionTiles(const Sizes& sizes, std::int64_t wanted, std::int64_t granule_, int threads)
      : rows(sizes[2]), columns(sizes[3]), granule(granule_) {
    per_row = std::max<std::int64_t>((columns + wanted - 1) / wanted, 1);
    if (sizes[0] * rows == 1 && per_row < Slices::kSlices) {
      const std::int64_t most = columns / std::max(granule, kLeastPositions);
      per_row = std::max(per_row, std::min((per_row + kFewTiles - 1) / kFewTiles * kFewTiles, most));
    }
    count = columns == 0 ? 0 : sizes[0] * rows * per_row;
    slices = std::min(count, std::max<std::int64_t>(Slices::kSlices, threads));
  }

  /// No tile is larger.
  std::int64_t size() const {
    const std::int64_t granules = (columns + granule - 1) / granule;
    return std::min((granules + per_row - 1) / per_row * granule, columns);
  }

  Range tiles_of(std::int64_t slice) const { return part_of(count, slices, slice); }

  PositionTile tile(std::int64_t index) const {
    const Range part = part_of((columns + granule - 1) / granule, per_row, index % per_row);
    const std::int64_t row = index / per_row, begin = part.begin * granule;
    return {row / rows, row % rows, begin, std::min(part.end * granule, columns) - begin};
  }

  std::int64_t positions_of(std::int64_t slice) const {
    const Range tiles = tiles_of(slice);
    std::int64_t positions = 0;
    for (std::int64_t i = tiles.begin; i < tiles.end; ++i) positions += tile(i).count;
    return positions;
  }
};

}  // namespace fusedsc
