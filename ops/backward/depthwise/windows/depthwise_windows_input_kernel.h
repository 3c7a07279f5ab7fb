/// Depthwise convolution on GPUs with any window, input gradient: from tiles of grad_y in shared memory
/// (depthwise_windows.h). An element of grad_x is of a class of inputs, whose windows are those of stride 1 rotated
/// by 180°; of classes that no window sees it is 0.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_input_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_tile.h"

namespace fusedsc::gpu {

/// Inputs of an axis by classes: first + period*i + place(phase, part), with a part for each of a stride's positions.
struct WindowGradientAxis {
  WindowAxis axis;
  int all_parts = 1;  ///< those with taps, and those that kernels smaller than the stride have none for
  int begin = 0;      ///< i of the first one
  int first = 0;      ///< where it is, of class 0: not behind the image's first
  Divisor by_all_parts;

  /// Numbers from 0 to the period, all of them, if there is one phase, or one part with taps.
  FUSEDSC_DEVICE int place(int phase, int part) const {
    std::uint32_t rest = static_cast<std::uint32_t>(part);
    const int more = static_cast<int>(by_all_parts.divide(rest));
    return phase * axis.stride + static_cast<int>(rest) * axis.dilation + more;
  }
};

struct DepthwiseWindowsInputParameters {
  DepthwiseInputGradientParameters of;  ///< of.work's items are tiles
  WindowGradientAxis rows, columns;
  WindowTile tile;
  WindowPlaces places;
  WindowWeights weights;
  WindowSums sums;  ///< with several classes of columns
};

/// kClasses: of columns, several. Their elements are put in order in shared memory before they are finished. kFused: of
/// x and grad_x; those of grad_y are seen to as it is brought.
template <class T, bool kClasses, bool kFused>
FUSEDSC_DEVICE void depthwise_windows_input(const DepthwiseWindowsInputParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseInputGradientParameters& of = p.of;
  const DepthwiseShape& shape = of.shape;  // its channels are those of the input here
  const WindowAxis &rows = p.rows.axis, &columns = p.columns.axis;
  const ItemShare share(of.work);
  const WindowLanes lanes(of.work, share, p.tile);
  const int channel = share.channel(of.work, 1), first_output = share.first_channel(of.work, 1) * shape.multiplier;
  const bool idle = share.is_idle(of.work, channel, shape.channels);
  const int safe_channel = idle ? 0 : channel;
  InputGradientSink<T, 1, kWindowColumns, kFused> sink(of, safe_channel);
  A* const weights = static_cast<A*>(shared_memory());
  A* const tile = weights + p.weights.size();
  A* const sums = tile + p.places.size() + share.channel_lane * p.sums.plane;
  const WindowRuns runs(columns.reach);
  const int outputs = shape.channels * shape.multiplier;
  bring_window_weights<T>(of.weight, rows, columns, p.weights, first_output, outputs, true, weights);

  for (std::uint32_t index = share.split; index < of.work.items; index += static_cast<unsigned>(of.work.splits)) {
    const WindowTilePosition position(p.tile, index);
    // What the first windows see lies reach - 1 further back.
    const int first_row = p.rows.begin + position.row - (rows.reach - 1);
    const int first_column = p.columns.begin + position.column - (columns.reach - 1);
    block_barrier();  // the tile before is done with
    bring_window_gradients<T, 8>(
        of.grad_y, of.gradient_prologue, p.tile, lanes, p.places, position.image, first_output, outputs,
        [&](int) {
          return WindowPositions{rows.phases * first_row + position.phase, rows.phases, rows.output};
        },
        columns.output, [&](int phase, int i) { return columns.phases * (first_column + i) + phase; }, tile);
    block_barrier();
    const int image_column = p.columns.first + position.column * columns.period;  // may be before the image's first
    const auto row_of = [&](int row_part, int row) {
      return p.rows.first + (position.row + row) * rows.period + p.rows.place(position.phase, row_part);
    };
    T* const image = elements_of<T>(of.grad_x) + of.grad_x.offset(position.image, safe_channel, 0, 0);
    // The sink, at columns of a row of which the image or the tile has those in [begin, end).
    const auto aim = [&](int row, int column, int begin, int end) {
      if constexpr (kFused) sink.aim(position.image, row, 1, 0, column);
      sink.row = row;
      sink.begin = row;
      sink.end = row + 1;
      sink.next = image + (row * of.grad_x.row + column * of.grad_x.column);
      const auto below = [&](int edge) { return (1u << least(edge > column ? edge - column : 0, kWindowColumns)) - 1; };
      sink.x.window.inside = below(end) & ~below(begin);
    };
    for (int i = share.item_lane; i < p.tile.items && !idle; i += of.work.item_lanes) {
      const WindowItem item(p.tile, static_cast<std::uint32_t>(i), kClasses);
      std::uint32_t rest = static_cast<std::uint32_t>(item.row);
      const int row = static_cast<int>(of.stride_height.divide(rest)), row_part = static_cast<int>(rest);
      rest = static_cast<std::uint32_t>(item.column_class);
      const int phase = static_cast<int>(of.stride_width.divide(rest)), part = static_cast<int>(rest);
      const int image_row = row_of(row_part, row);
      if (image_row < 0 || image_row >= shape.input_height) continue;
      typename decltype(sink.x)::Row inputs{};
      if constexpr (!kClasses) {
        aim(image_row, image_column + item.column, 0, shape.input_width);
        sink.load(inputs);
      }
      A g[kWindowColumns] = {};
      if (row_part < rows.parts && part < columns.parts) {
        const WindowSteps steps{rows.taps(row_part), -p.places.pitch, columns.parts * p.weights.run};
        for (int m = 0; m < shape.multiplier; ++m) {
          const int lane = share.channel_lane * shape.multiplier + m;
          const A* last = tile + lane * p.places.plane + (row + rows.reach - 1) * p.places.pitch +
                          phase * p.places.segment + item.column;
          const A* weight =
              weights + lane * p.weights.plane + p.weights.place(rows, columns, row_part, 0) + part * p.weights.run;
          if (kClasses && part >= columns.long_parts) add_window_rows<true>(g, last, weight, steps, runs);
          else add_window_rows(g, last, weight, steps, runs);
        }
      }
      if constexpr (kClasses) {
        A* to = sums + item.row * p.sums.pitch + item.column * columns.period + p.columns.place(phase, part);
#pragma unroll
        for (int c = 0; c < kWindowColumns; ++c) to[c * columns.period] = g[c];
      } else {
        sink.finish(g, inputs);
      }
    }
    if constexpr (kClasses) {
      block_barrier();
      // Groups of columns that begin where those of the image do.
      const int before = image_column & (kWindowColumns - 1), first = image_column > 0 ? image_column : 0;
      const int end = least(shape.input_width, image_column + p.tile.columns * columns.period);
      for (int i = share.item_lane; i < p.sums.items && !idle; i += of.work.item_lanes) {
        std::uint32_t group = static_cast<std::uint32_t>(i);
        std::uint32_t rest = p.sums.groups.divide(group);
        const int from_row = static_cast<int>(rest);
        const int row = static_cast<int>(of.stride_height.divide(rest)), row_part = static_cast<int>(rest);
        const int image_row = row_of(row_part, row);
        const int from = static_cast<int>(group) * kWindowColumns - before, column = image_column + from;
        if (image_row < 0 || image_row >= shape.input_height) continue;
        aim(image_row, column, first, end);
        if (sink.x.window.inside == 0) continue;
        A g[kWindowColumns];
#pragma unroll
        for (int c = 0; c < kWindowColumns; ++c) {
          g[c] = sink.is_inside(c) ? sums[from_row * p.sums.pitch + from + c] : A(0);
        }
        typename decltype(sink.x)::Row inputs{};
        sink.load(inputs);
        sink.finish(g, inputs);
      }
    }
  }
  sink.template leave_sums<kWindowThreads>(share);
}

}  // namespace fusedsc::gpu
