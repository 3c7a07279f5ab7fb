/// How a pass over all positions is cut into tiles where a line of positions may be shorter than a tile: then a tile is
/// made of several lines, whole images even.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

/// `lines` lines from `line` on, counted through all images: each `count` positions from `column` on.
struct LineTile {
  std::int64_t line = 0, lines = 1, column = 0, count = 0;

  std::int64_t positions() const { return lines * count; }
};

/// Tiles in memory order: parts of a line, or several lines. Slices are runs of tiles: partial sums are kept per slice
/// and added in order, so that with up to Slices::kSlices threads they do not depend on how many there are.
struct LineTiles {
  static constexpr std::int64_t kFewTiles = 4;         ///< what small problems are cut into, for two or four threads
  static constexpr std::int64_t kLeastPositions = 12;  ///< of a tile that is cut for that

  std::int64_t lines = 0, columns = 0;
  std::int64_t granule = 1;   ///< parts of lines begin at multiples of it
  std::int64_t per_line = 1;  ///< tiles of a line,
  std::int64_t together = 1;  ///< or lines of a tile
  std::int64_t count = 0, slices = 0;

  /// Tiles of about `wanted` positions (a multiple of `granule_`) of tensors whose rows, `sizes[2]` per image, are the
  /// lines; each of one line only if it is not `several`.
  LineTiles(const Sizes& sizes, std::int64_t wanted, std::int64_t granule_, int threads, bool several = true)
      : lines(sizes[0] * sizes[2]), columns(sizes[3]), granule(granule_) {
    if (lines == 0 || columns == 0) return;
    if (several && 2 * columns <= wanted) {
      const std::int64_t least = (kLeastPositions + columns - 1) / columns;
      const std::int64_t few = std::max((lines + kFewTiles - 1) / kFewTiles, least);
      together = std::min({wanted / columns, few, lines});
    } else {
      per_line = (columns + wanted - 1) / wanted;
      if (lines == 1 && per_line < Slices::kSlices) {
        const std::int64_t most = columns / std::max(granule, kLeastPositions);
        per_line = std::max(per_line, std::min((per_line + kFewTiles - 1) / kFewTiles * kFewTiles, most));
      }
    }
    count = (lines + together - 1) / together * per_line;
    slices = std::min(count, std::max<std::int64_t>(Slices::kSlices, threads));
  }

  /// No tile has more positions.
  std::int64_t size() const {
    const std::int64_t granules = (columns + granule - 1) / granule;
    return together * std::min((granules + per_line - 1) / per_line * granule, columns);
  }

  Range tiles_of(std::int64_t slice) const { return part_of(count, slices, slice); }

  LineTile tile(std::int64_t index) const {
    const Range part = part_of((columns + granule - 1) / granule, per_line, index % per_line);
    const std::int64_t line = index / per_line * together, begin = part.begin * granule;
    return {line, std::min(together, lines - line), begin, std::min(part.end * granule, columns) - begin};
  }

  std::int64_t positions_of(std::int64_t slice) const {
    const Range tiles = tiles_of(slice);
    std::int64_t positions = 0;
    for (std::int64_t i = tiles.begin; i < tiles.end; ++i) positions += tile(i).positions();
    return positions;
  }
};

}  // namespace fusedsc
