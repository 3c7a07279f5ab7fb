/// How the kernels for any window see it. A stride and a dilation part an axis of the images into classes of positions,
/// within which every window is one of stride 1 and dilation 1:
///
///   output   phase*1   + i*phases                     phases = dilation / g
///   input    phase*stride + part*dilation + j*period  parts = stride / g, g the greatest divisor of both
///   tap      part + q*parts                           period = phases * stride
///
/// and output (phase, i) sees the inputs (phase, part, i + q) with the taps (part, q). So a thread that computes
/// neighbouring i's keeps the inputs in registers from one tap to the next, whatever the window. Windows of stride 1
/// and dilation 1 have one class.
///
/// A block brings a tile of its channels to shared memory: each row class by class, zeros outside of the image,
/// prologue applied, widened. All loops over taps run there, without a test whether a tap is inside.
#pragma once

#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu {

/// Threads of a block of these kernels.
inline constexpr int kWindowThreads = 256;
/// Blocks at a time, as registers allow.
template <class T, int kBlocks>
inline constexpr int kWindowBlocks = sizeof(T) == 8 ? 2 : kBlocks;
/// Taps that are worked off at once, and the columns of a thread.
inline constexpr int kWindowTaps = 4, kWindowColumns = 4;
/// Channels that are loaded at once where they can be.
inline constexpr int kWindowVector = 4;

/// An axis of the images, by classes.
struct WindowAxis {
  int phases = 1, period = 1;
  int parts = 1;                  ///< that have taps
  int reach = 1, long_parts = 1;  ///< taps of the first `long_parts` parts; the others have one less
  int kernel = 1, stride = 1, dilation = 1, padding = 0;
  int input = 0, output = 0;
  Divisor by_parts;

  /// Of a part.
  FUSEDSC_HOST_DEVICE int taps(int part) const { return part < long_parts ? reach : reach - 1; }
  /// Where the inputs of a class begin, in the image.
  FUSEDSC_HOST_DEVICE int first_input(int phase, int part) const { return phase * stride + part * dilation - padding; }
};

/// A tile, and how the threads of a block share it out. Tiles are counted along columns, rows, phases of rows and
/// images.
struct WindowTile {
  int rows = 1, columns = kWindowColumns;  ///< of each class; columns: a multiple of kWindowColumns
  Divisor column_strips, row_strips, row_phases;
  Divisor groups, classes;  ///< of an item: groups of columns, and classes of columns
  int items = 1;            ///< of a channel
  // How the threads that bring a tile share it out.
  int vector = 1;          ///< channels of a load
  int channel_groups = 1;  ///< of so many, of vectors; without them as the threads that compute
  int column_lanes = 1;    ///< of the item lanes, those side by side; the others have other rows
  int row_lanes = 1;
  Divisor by_channel_groups, by_column_lanes;
};

/// A tile in shared memory: [channel][part of the rows][row][class of the columns][column].
struct WindowPlaces {
  int rows = 1;     ///< of a part
  int segment = 1;  ///< columns of a class, and those that reads of whole runs go beyond
  int used = 1;     ///< of a row
  int pitch = 1;    ///< from row to row: their runs of four lie on other banks
  int plane = 1;    ///< of a channel: neighbouring channels' runs of four lie on other banks
  int channels = 1;
  Divisor by_segment;

  FUSEDSC_HOST_DEVICE std::int64_t size() const { return std::int64_t{plane} * channels; }
};

/// Which tile.
struct WindowTilePosition {
  int image, phase, row, column;  ///< phase of the rows; the first row and column, of each class

  FUSEDSC_DEVICE WindowTilePosition(const WindowTile& tile, std::uint32_t index) {
    std::uint32_t rest = index;
    std::uint32_t quotient = tile.column_strips.divide(rest);
    column = static_cast<int>(rest) * tile.columns;
    rest = quotient;
    quotient = tile.row_strips.divide(rest);
    row = static_cast<int>(rest) * tile.rows;
    rest = quotient;
    image = static_cast<int>(tile.row_phases.divide(rest));
    phase = static_cast<int>(rest);
  }
};

/// Which outputs of a tile: kWindowColumns columns, from column group * kWindowColumns on, of a class.
struct WindowItem {
  int row, column_class, column;

  FUSEDSC_DEVICE WindowItem(const WindowTile& tile, std::uint32_t index, bool has_classes) {
    std::uint32_t quotient = tile.groups.divide(index);
    column = static_cast<int>(index) * kWindowColumns;
    row = static_cast<int>(has_classes ? tile.classes.divide(quotient) : quotient);
    column_class = has_classes ? static_cast<int>(quotient) : 0;
  }
};

/// Runs of taps of a part: some whole ones, and a last one of 1 to kWindowTaps.
struct WindowRuns {
  int whole, last;

  FUSEDSC_DEVICE explicit WindowRuns(int taps)
      : whole((taps - 1) / kWindowTaps), last(taps - (taps - 1) / kWindowTaps * kWindowTaps) {}
};

/// From each row of a window to the next, and how many there are.
struct WindowSteps {
  int rows, x, weights;
};

/// Adds to y[c], for each row, x[c + t] * weights[t] of kLast taps t and those of `whole` runs before them. x and
/// weights are aligned to runs. kSkipsFirst: but for tap 0, which is none; it is not multiplied with a weight of 0, as
/// x need not be finite.
template <int kLast, bool kSkipsFirst, class A>
FUSEDSC_DEVICE void add_window_rows(A (&y)[kWindowColumns], const A* x, const A* weights, const WindowSteps& steps,
                                    int whole) {
  using Run = Aligned<A, kWindowTaps>;
  A window[kWindowColumns + kWindowTaps];
  const auto load_run = [&](int at, const A* from) {
    const Run run = *reinterpret_cast<const Run*>(from);
#pragma unroll
    for (int i = 0; i < kWindowTaps; ++i) window[at + i] = run.elements[i];
  };
  const auto add_tap = [&](int t, A weight) {
#pragma unroll
    for (int c = 0; c < kWindowColumns; ++c) y[c] += window[c + t] * weight;
  };
  for (int row = 0; row < steps.rows; ++row) {
    const A *from = x, *with = weights;
    load_run(0, from);
#pragma unroll 1
    for (int run = 0; run < whole; ++run) {
      from += kWindowTaps;
      load_run(kWindowColumns, from);
      const Run weight = *reinterpret_cast<const Run*>(with);
      with += kWindowTaps;
      if (!kSkipsFirst || run > 0) add_tap(0, weight.elements[0]);
#pragma unroll
      for (int t = 1; t < kWindowTaps; ++t) add_tap(t, weight.elements[t]);
#pragma unroll
      for (int i = 0; i < kWindowColumns; ++i) window[i] = window[kWindowTaps + i];
    }
    if constexpr (kLast > 1) load_run(kWindowColumns, from + kWindowTaps);
    const Run weight = *reinterpret_cast<const Run*>(with);
    if (!kSkipsFirst || whole > 0) add_tap(0, weight.elements[0]);
#pragma unroll
    for (int t = 1; t < kLast; ++t) add_tap(t, weight.elements[t]);
    x += steps.x;
    weights += steps.weights;
  }
}

template <bool kSkipsFirst = false, class A>
FUSEDSC_DEVICE void add_window_rows(A (&y)[kWindowColumns], const A* x, const A* weights, const WindowSteps& steps,
                                    const WindowRuns& runs) {
  switch (runs.last) {
    case 1: return add_window_rows<1, kSkipsFirst>(y, x, weights, steps, runs.whole);
    case 2: return add_window_rows<2, kSkipsFirst>(y, x, weights, steps, runs.whole);
    case 3: return add_window_rows<3, kSkipsFirst>(y, x, weights, steps, runs.whole);
    default: return add_window_rows<4, kSkipsFirst>(y, x, weights, steps, runs.whole);
  }
}

/// Finished sums of a tile in the order of the image, where their classes lie between one another:
/// [channel][row][column].
struct WindowSums {
  int pitch = 0, plane = 0;
  Divisor groups;  ///< of kWindowColumns columns of a row
  int items = 0;   ///< of a channel
};

/// The taps of a channel in shared memory: [part of the rows][tap][part of the columns][tap].
struct WindowWeights {
  int run = kWindowTaps;  ///< taps of a part of the columns, a multiple of kWindowTaps
  int plane = 1;          ///< of a channel: neighbouring channels' runs of four lie on other banks
  int channels = 1;

  FUSEDSC_HOST_DEVICE std::int64_t size() const { return std::int64_t{plane} * channels; }
  FUSEDSC_DEVICE int place(const WindowAxis& rows, const WindowAxis& columns, int row_part, int row_tap) const {
    return (row_part * rows.reach + row_tap) * columns.parts * run;
  }
};

}  // namespace fusedsc::gpu
