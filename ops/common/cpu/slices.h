/// How the work of a pass over images and rows is cut into pieces that can run at the same time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fusedsc {

/// [begin, end)
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Part `index` of `parts` nearly equal parts of [0, size).
inline Range part_of(std::int64_t size, std::int64_t parts, std::int64_t index) {
  return {size * index / parts, size * (index + 1) / parts};
}

/// Slices of a batch: groups of images, each cut into chunks of rows where the images alone are too few. Partial sums
/// are kept per slice and added in order, so with up to kSlices threads they do not depend on how many there are.
struct Slices {
  static constexpr std::int64_t kSlices = 16;
  /// A chunk re-reads the rows that its window shares with the next: fewer rows than this are not worth a cut.
  static constexpr std::int64_t kRowsPerChunk = 8;

  std::int64_t images = 0, rows = 0;
  std::int64_t wanted = kSlices;
  std::int64_t groups = 1, chunks = 1;

  /// At least `least` slices, if there are so many, and one for each thread.
  Slices(std::int64_t images_, std::int64_t rows_, int threads, std::int64_t least = kSlices)
      : images(images_), rows(rows_), wanted(std::max<std::int64_t>(least, threads)) {
    groups = std::clamp<std::int64_t>(images, 1, wanted);
    chunks = std::clamp<std::int64_t>(rows / kRowsPerChunk, 1, (wanted + groups - 1) / groups);
  }

  std::int64_t count() const { return groups * chunks; }
  /// Into how many parts channels should be cut because there are not slices enough.
  std::int64_t missing_parts() const { return std::max<std::int64_t>(1, wanted / count()); }
  Range images_of(std::int64_t slice) const { return part_of(images, groups, slice / chunks); }
  Range rows_of(std::int64_t slice) const { return part_of(rows, chunks, slice % chunks); }
};

}  // namespace fusedsc
