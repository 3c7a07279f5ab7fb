/// Depthwise convolution on GPUs with any window, forward: from tiles in shared memory (depthwise_windows.h).
#pragma once

#include "fusedsc/forward/depthwise/rows/depthwise_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_tile.h"

namespace fusedsc::gpu {

struct DepthwiseWindowsParameters {
  DepthwiseParameters of;  ///< of.work's items are tiles
  WindowAxis rows, columns;
  WindowTile tile;
  WindowPlaces places;
  WindowWeights weights;
  WindowSums sums;  ///< with several phases
};

/// kPhases: of columns, several. Their outputs are put in order in shared memory before they are finished.
template <class T, bool kPhases>
FUSEDSC_DEVICE void depthwise_windows(const DepthwiseWindowsParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseParameters& of = p.of;
  const DepthwiseShape& shape = of.shape;
  const ItemShare share(of.work);
  const WindowLanes lanes(of.work, share, p.tile);
  const int channel = share.channel(of.work, 1), first_channel = share.first_channel(of.work, 1);
  const bool idle = share.is_idle(of.work, channel, shape.channels);
  const int safe_channel = idle ? 0 : channel;
  const int first_input_channel = first_channel / shape.multiplier;
  DepthwiseSink<T, 1, kWindowColumns, DepthwiseFusion::any> sink(of, safe_channel);
  A* const weights = static_cast<A*>(shared_memory());
  A* const tile = weights + p.weights.size();
  A* const sums = tile + p.places.size() + share.channel_lane * p.sums.plane;
  bring_window_weights<T>(of.weight, p.rows, p.columns, p.weights, first_channel, shape.channels, false, weights);
  const A* const weight = weights + share.channel_lane * p.weights.plane;
  const WindowRuns long_runs(p.columns.reach), short_runs(p.columns.reach - 1);
  const int row_weights = p.columns.parts * p.weights.run;
  const A* const plane = tile + (safe_channel / shape.multiplier - first_input_channel) * p.places.plane;

  for (std::uint32_t index = share.split; index < of.work.items; index += static_cast<unsigned>(of.work.splits)) {
    const WindowTilePosition position(p.tile, index);
    block_barrier();  // the tile before is done with
    bring_window_inputs<T, 8>(of.x, of.prologue, p.tile, lanes, p.rows, p.columns, p.places, position,
                              first_input_channel, shape.channels / shape.multiplier, tile);
    block_barrier();
    const auto row_of = [&](int row) { return p.rows.phases * (position.row + row) + position.phase; };
    T* const image = elements_of<T>(of.y) + of.y.offset(position.image, safe_channel, 0, 0);
    const T* const residual = elements_of<T>(of.residual) + of.residual.offset(position.image, safe_channel, 0, 0);
    const auto finish = [&](int row, int column, int columns, A(&y)[kWindowColumns]) {
      if (row >= p.rows.output || columns <= 0) return;
      sink.row = 0;
      sink.rows = 1;
      sink.columns = least(columns, kWindowColumns);
      sink.next = image + (row * of.y.row + column * of.y.column);
      sink.residual = residual + (row * of.residual.row + column * of.residual.column);
#pragma unroll
      for (int c = 0; c < kWindowColumns; ++c) y[c] += sink.bias[0];
      sink.finish(y);
    };
    for (int i = share.item_lane; i < p.tile.items && !idle; i += of.work.item_lanes) {
      const WindowItem item(p.tile, static_cast<std::uint32_t>(i), kPhases);
      A y[kWindowColumns] = {};
      const A* x =
          plane + item.row * p.places.pitch + item.column_class * p.columns.parts * p.places.segment + item.column;
      const A* with = weight;
      for (int part = 0; part < p.columns.parts; ++part) {
        const WindowRuns runs = part < p.columns.long_parts ? long_runs : short_runs;
        const A *part_x = x, *part_weights = with;
        for (int row_part = 0; row_part < p.rows.parts; ++row_part) {
          add_window_rows(y, part_x, part_weights, {p.rows.taps(row_part), p.places.pitch, row_weights}, runs);
          part_x += p.places.rows * p.places.pitch;
          part_weights += p.rows.reach * row_weights;
        }
        x += p.places.segment;
        with += p.weights.run;
      }
      if constexpr (kPhases) {
        A* to = sums + item.row * p.sums.pitch + item.column * p.columns.phases + item.column_class;
#pragma unroll
        for (int c = 0; c < kWindowColumns; ++c) to[c * p.columns.phases] = y[c];
      } else {
        const int column = position.column + item.column;
        finish(row_of(item.row), column, p.columns.output - column, y);
      }
    }
    if constexpr (kPhases) {
      block_barrier();
      const int first_column = position.column * p.columns.phases;
      const int end = least(p.columns.output, first_column + p.sums.pitch);
      for (int i = share.item_lane; i < p.sums.items && !idle; i += of.work.item_lanes) {
        std::uint32_t group = static_cast<std::uint32_t>(i);
        const int row = static_cast<int>(p.sums.groups.divide(group));
        const int column = static_cast<int>(group) * kWindowColumns;
        A y[kWindowColumns];
        const auto run = *reinterpret_cast<const Aligned<A, kWindowColumns>*>(sums + row * p.sums.pitch + column);
#pragma unroll
        for (int c = 0; c < kWindowColumns; ++c) y[c] = run.elements[c];
        finish(row_of(row), first_column + column, end - first_column - column, y);
      }
    }
  }
  if (of.partials != nullptr) {
    block_barrier();  // the tile was where the moments shall be
    leave_moments(of.work, share, sink.moments, idle ? shape.channels : channel, shape.channels,
                  static_cast<A*>(of.partials));
  }
}

}  // namespace fusedsc::gpu
