/// How convolutions whose vectors run along rows cut their work into planes: one channel of one image each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc {

/// Empty if kernels on planes can run a convolution of these tensors, else the reason why not, or why others are
/// faster.
inline std::string needs_planes(const Window& window, std::initializer_list<NamedTensor> tensors) {
  constexpr std::int64_t kLeastColumns = 10;  // of a row: the rest of its vectors is wasted
  if (window.stride[1] > 2) return "the window moves by more than two columns";
  for (const auto& [name, x] : tensors) {
    const bool channels_last = x.strides[1] == 1 && x.sizes[1] > 1;
    if (channels_last || (x.strides[3] != 1 && x.sizes[3] != 1)) return std::string(name) + " is not contiguous";
    if (x.sizes[3] < kLeastColumns) return std::string(name) + " has rows of fewer than 10 columns";
  }
  return {};
}

/// Input rows that a pass loads and works off at once: so many bytes of them, but so many rows at least.
inline constexpr std::int64_t kChunkBytes = 12 << 10;
inline constexpr std::int64_t kLeastRows = 8;

/// How many of the rows of a plane are worked off at once, where `limit` bytes allow so many: chunks of nearly equal
/// size, of whole blocks of `unit` rows.
inline std::int64_t rows_of_chunk(std::int64_t rows, std::int64_t limit, std::int64_t unit) {
  const std::int64_t most = std::max(limit / unit, std::int64_t{1}) * unit;
  const std::int64_t chunks = std::max<std::int64_t>((rows + most - 1) / most, 1);
  const std::int64_t even = (rows + chunks - 1) / chunks;
  return std::min((even + unit - 1) / unit * unit, std::max<std::int64_t>(rows, 1));
}

/// How a pass over all planes is cut into tasks that can run at the same time: blocks of channels whose planes follow
/// one another in memory, and groups of images where the channels alone are too few. Partial sums belong to groups:
/// they do not depend on the number of threads.
struct PlaneTasks {
  static constexpr std::int64_t kTasks = 16;           ///< wanted, if nothing else is
  static constexpr std::int64_t kRunBytes = 64 << 10;  ///< of planes that are read one after the other

  std::int64_t images = 0, channels = 0;
  std::int64_t block = 1, groups = 1;

  PlaneTasks(std::int64_t images_, std::int64_t channels_, std::int64_t plane_bytes, std::int64_t wanted = kTasks)
      : images(images_), channels(channels_) {
    const std::int64_t most = std::max<std::int64_t>(kRunBytes / std::max<std::int64_t>(plane_bytes, 1), 1);
    block = std::clamp<std::int64_t>(channels / wanted, 1, most);
    groups = std::clamp<std::int64_t>((wanted + blocks() - 1) / blocks(), 1, std::max<std::int64_t>(images, 1));
  }

  std::int64_t blocks() const { return (channels + block - 1) / block; }
  std::int64_t count() const { return blocks() * groups; }
  Range channels_of(std::int64_t task) const {
    const std::int64_t first = task % blocks() * block;
    return {first, std::min(first + block, channels)};
  }
  std::int64_t group_of(std::int64_t task) const { return task / blocks(); }
  Range images_of(std::int64_t group) const { return part_of(images, groups, group); }
};

/// How a pass over planes is cut up, in words: "channels=4 rows=28 splits=16"; "channels=1 rows=16 splits=16 ahead=16".
struct PlaneTiling {
  std::int64_t rows = 1;                     ///< of a plane that are loaded and worked off at once
  std::int64_t channels = 1;                 ///< planes, likewise, where `rows` is all of them
  std::int64_t splits = PlaneTasks::kTasks;  ///< tasks that are wanted
  std::int64_t ahead = 0;  ///< rows that are fetched while others are computed: none or `rows`; of 3x3 kernels alone

  PlaneTiling() = default;
  explicit PlaneTiling(const tuning::Config& config)
      : rows(config[tuning::Knob::rows]),
        channels(config[tuning::Knob::channels]),
        splits(config[tuning::Knob::splits]),
        ahead(config[tuning::Knob::ahead]) {}

  tuning::Config config() const {
    return {{tuning::Knob::channels, channels},
            {tuning::Knob::rows, rows},
            {tuning::Knob::splits, splits},
            {tuning::Knob::ahead, ahead}};
  }
};

/// What there is to cut up.
struct PlaneWork {
  std::int64_t images = 0, channels = 0;
  std::int64_t rows = 0;         ///< of a plane
  std::int64_t row_bytes = 1;    ///< that are loaded for each of them
  std::int64_t plane_bytes = 0;  ///< that tensors have from one plane to the next
  std::int64_t unit = 1;         ///< rows that are computed together
  std::int64_t load_bytes = 1;   ///< of a plane, as the number of planes is worked out
  bool can_fetch = false;        ///< the kernels can fetch the next part while they compute one

  /// With about so many bytes loaded at once.
  PlaneTiling tiling(std::int64_t bytes, std::int64_t splits) const {
    const PlaneTasks tasks(images, channels, plane_bytes, splits);
    PlaneTiling tiling;
    tiling.rows = rows_of_chunk(rows, std::max(bytes / row_bytes, kLeastRows), unit);
    if (tiling.rows >= rows) tiling.channels = std::clamp<std::int64_t>(bytes / load_bytes, 1, tasks.block);
    tiling.splits = splits;
    // Planes of several chunks are so large that their tensors come from memory.
    if (can_fetch && tiling.rows < rows) tiling.ahead = tiling.rows;
    return tiling;
  }
  PlaneTiling prior() const { return tiling(kChunkBytes, PlaneTasks::kTasks); }

  /// The prior's, and others that cut the planes up otherwise.
  tuning::Configs configs() const {
    const PlaneTiling usual = prior();
    tuning::Variants variants(usual.config());
    for (const std::int64_t quarters : {2, 1, 8, 16, 32}) {
      variants.add(tiling(kChunkBytes * quarters / 4, usual.splits).config());
    }
    for (const std::int64_t splits : {usual.splits / 4, usual.splits * 4}) {
      const PlaneTasks tasks(images, channels, plane_bytes), others(images, channels, plane_bytes, splits);
      if (others.block == tasks.block && others.groups == tasks.groups) continue;
      for (const std::int64_t times : {1, 4}) variants.add(tiling(kChunkBytes * times, splits).config());
    }
    for (const std::int64_t halves : {2, 1, 4}) {
      PlaneTiling other = tiling(kChunkBytes * halves / 2, usual.splits);
      other.ahead = other.ahead > 0 ? 0 : other.rows;
      if (can_fetch) variants.add(other.config());
    }
    return variants.configs();
  }
};

}  // namespace fusedsc
