/// The products of a sliding-channel convolution as those of a banded matrix: with the filters in the order of their
/// windows, neighbouring filters want neighbouring channels, and neighbouring channels neighbouring filters.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/sliding_channels.h"

namespace fusedsc::gpu {

/// Filters in the order of their windows' first channels ("lines"), where all windows are shared by as many.
struct WindowLines {
  int channels = 0, filters = 0;
  int width = 0;     ///< of a window
  int cycle = 1;     ///< windows
  int distance = 1;  ///< of a window's first channel from that of the window before it
  int turn = 0;      ///< the first filter whose window begins at `distance`
  int sharing = 1;   ///< filters of a window
  Divisor by_sharing, by_cycle, by_distance;

  static bool can_be(const SlidingChannels& windows, std::int64_t filters) {
    return windows.cycle == windows.channels / std::gcd(windows.channels, windows.step) &&
           filters % windows.cycle == 0 && windows.cycle <= std::numeric_limits<std::int16_t>::max();
  }

  WindowLines() = default;
  WindowLines(const SlidingChannels& windows, std::int64_t filters_)
      : channels(static_cast<int>(windows.channels)),
        filters(static_cast<int>(filters_)),
        width(static_cast<int>(windows.width)),
        cycle(static_cast<int>(windows.cycle)),
        distance(static_cast<int>(windows.channels / windows.cycle)),
        sharing(static_cast<int>(filters_ / windows.cycle)),
        by_sharing(static_cast<std::uint32_t>(sharing)),
        by_cycle(static_cast<std::uint32_t>(cycle)),
        by_distance(static_cast<std::uint32_t>(distance)) {
    while (turn < cycle && windows.first(turn) != distance % channels) ++turn;
  }

  FUSEDSC_HOST_DEVICE int window(int line) const {
    return static_cast<int>(by_sharing.quotient(static_cast<std::uint32_t>(line)));
  }
  FUSEDSC_HOST_DEVICE int first(int line) const { return window(line) * distance; }
  FUSEDSC_HOST_DEVICE int filter(int line) const {
    auto number = static_cast<std::uint32_t>(line);
    const std::uint32_t own = by_sharing.divide(number);
    std::uint32_t first_filter = own * static_cast<std::uint32_t>(turn);
    by_cycle.divide(first_filter);
    return static_cast<int>(first_filter + number * static_cast<std::uint32_t>(cycle));
  }
  /// As SlidingChannels::place().
  FUSEDSC_HOST_DEVICE int place(int line, int channel) const {
    const int own = first(line);
    return channel >= own ? channel - own : channel - own + channels;
  }
};

/// A product whose rows are lines and whose depth are channels (forward), or the other way round (input gradient).
/// Depth is counted in eights, and goes on at 0 where it ends.
struct SlidingBands {
  static constexpr int kEight = 8;

  WindowLines lines;
  bool rows_are_channels = false;

  SlidingBands() = default;
  SlidingBands(const WindowLines& lines_, bool rows_are_channels_)
      : lines(lines_), rows_are_channels(rows_are_channels_) {}

  FUSEDSC_HOST_DEVICE int rows() const { return rows_are_channels ? lines.channels : lines.filters; }
  FUSEDSC_HOST_DEVICE int depth() const { return rows_are_channels ? lines.filters : lines.channels; }
  FUSEDSC_HOST_DEVICE int eights() const { return depth() / kEight; }

  /// What some neighbouring rows want: from `begin` on, so many eights.
  struct Band {
    int begin, count;
  };
  FUSEDSC_HOST_DEVICE Band band(int row, int count) const {
    const int last = (row + count < rows() ? row + count : rows()) - 1;
    int begin, end;
    if (rows_are_channels) {
      // Windows that end behind `row` and begin no later than `last`; one turn further, so that none is below 0.
      const int turn = lines.channels;
      begin = (divide(row - lines.width + turn) + 1) * lines.sharing;
      end = (divide(last + turn) + 1) * lines.sharing;
    } else {
      begin = lines.first(row);
      end = lines.first(last) + lines.width;
    }
    const int first = begin / kEight, all = (end + kEight - 1) / kEight - first;
    return {first % eights(), all < eights() ? all : eights()};
  }
  /// The most that any `count` rows want of those that begin at a multiple of it.
  int most(int count) const {
    int most = 0;
    for (int row = 0; row < rows(); row += count) most = std::max(most, band(row, count).count);
    return most;
  }

  FUSEDSC_HOST_DEVICE int filter(int row, int k) const { return lines.filter(rows_are_channels ? k : row); }
  /// Of a filter's weights; lines.width or more: there is none.
  FUSEDSC_HOST_DEVICE int place(int row, int k) const {
    return rows_are_channels ? lines.place(k, row) : lines.place(row, k);
  }
  /// Which plane of a tensor is a row, and which a value of k.
  FUSEDSC_HOST_DEVICE int plane_of_row(int row) const { return rows_are_channels ? row : lines.filter(row); }
  FUSEDSC_HOST_DEVICE int plane_of_depth(int k) const { return rows_are_channels ? lines.filter(k) : k; }

 private:
  FUSEDSC_HOST_DEVICE int divide(int channel) const {
    return static_cast<int>(lines.by_distance.quotient(static_cast<std::uint32_t>(channel)));
  }
};

}  // namespace fusedsc::gpu
