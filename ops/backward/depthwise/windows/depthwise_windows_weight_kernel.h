/// Depthwise convolution on GPUs with any window, weight and bias gradients: from tiles of x and grad_y in shared
/// memory (depthwise_windows.h). A thread owns a run of taps of a channel and goes along rows: each run of four columns
/// of grad_y meets the inputs that its taps see, of which it knows all but four from the run before.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_weight_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_tile.h"

namespace fusedsc::gpu {

struct DepthwiseWindowsWeightParameters {
  DepthwiseWeightGradientParameters of;  ///< of.work's items are tiles, of.by_tap_groups the blocks that share a tile
  WindowAxis rows, columns;
  WindowTile tile;
  WindowPlaces inputs, grads;
  int tap_runs = 1;        ///< of a channel: kernel rows, parts of the columns, runs of a part
  int tap_lanes = 1;       ///< of the item lanes, those with other taps; the others have other rows
  int position_lanes = 1;  ///< these
  Divisor by_tap_lanes, by_column_runs, by_runs, by_row_parts, by_phases;
};

/// The run of taps that a thread owns.
struct WindowTapRun {
  int kernel_row, row_part, row_tap, part, first;  ///< the part's taps from `first` on

  FUSEDSC_DEVICE WindowTapRun(const DepthwiseWindowsWeightParameters& p, int run) {
    std::uint32_t rest = static_cast<std::uint32_t>(run);
    std::uint32_t row = p.by_column_runs.divide(rest);
    kernel_row = static_cast<int>(row);
    part = static_cast<int>(p.by_runs.divide(rest));
    first = static_cast<int>(rest) * kWindowTaps;
    row_tap = static_cast<int>(p.by_row_parts.divide(row));
    row_part = static_cast<int>(row);
  }
};

/// sums[t] += sum over columns c < count of grads[c] * x[c + t]. Inputs of columns beyond the image are not multiplied:
/// what is not finite there would make NaNs.
template <class A>
FUSEDSC_DEVICE void add_window_taps(A (&sums)[kWindowTaps], const A* x, const A* grads, int count) {
  using Run = Aligned<A, kWindowColumns>;
  A window[kWindowColumns + kWindowTaps];
  const auto load_run = [&](int at, int from) {
    const Run run = *reinterpret_cast<const Run*>(x + from);
#pragma unroll
    for (int i = 0; i < kWindowColumns; ++i) window[at + i] = run.elements[i];
  };
  const auto add_column = [&](int c, A grad) {
#pragma unroll
    for (int t = 0; t < kWindowTaps; ++t) sums[t] += grad * window[c + t];
  };
  load_run(0, 0);
  int column = 0;
#pragma unroll 2
  for (; column + kWindowColumns <= count; column += kWindowColumns) {
    load_run(kWindowTaps, column + kWindowTaps);
    const Run grad = *reinterpret_cast<const Run*>(grads + column);
#pragma unroll
    for (int c = 0; c < kWindowColumns; ++c) add_column(c, grad.elements[c]);
#pragma unroll
    for (int i = 0; i < kWindowTaps; ++i) window[i] = window[kWindowColumns + i];
  }
  if (column >= count) return;
  load_run(kWindowTaps, column + kWindowTaps);
  const Run grad = *reinterpret_cast<const Run*>(grads + column);
#pragma unroll
  for (int c = 0; c + 1 < kWindowColumns; ++c) {
    if (column + c < count) add_column(c, grad.elements[c]);
  }
}

template <class T>
FUSEDSC_DEVICE void depthwise_windows_weight(const DepthwiseWindowsWeightParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseWeightGradientParameters& of = p.of;
  const DepthwiseShape& shape = of.shape;
  unsigned tap_block = block_index();
  const ItemShare share(of.work, of.by_tap_groups.divide(tap_block));
  const WindowLanes lanes(of.work, share, p.tile);
  const int channel = share.channel(of.work, 1), first_channel = share.first_channel(of.work, 1);
  const int safe_channel = channel < shape.channels ? channel : 0;
  const int first_input_channel = first_channel / shape.multiplier;
  std::uint32_t tap_lane = static_cast<std::uint32_t>(share.item_lane);
  const int position_lane = static_cast<int>(p.by_tap_lanes.divide(tap_lane));
  const int own = static_cast<int>(tap_block) * p.tap_lanes + static_cast<int>(tap_lane);
  const bool has_lanes = share.channel_lane < of.work.channel_lanes && position_lane < p.position_lanes;
  const bool idle = !has_lanes || share.is_idle(of.work, channel, shape.channels) || own >= p.tap_runs;
  const WindowTapRun taps(p, own < p.tap_runs ? own : 0);
  A* const tile = static_cast<A*>(shared_memory());
  A* const grad_tile = tile + p.inputs.size();
  A sums[kWindowTaps] = {}, bias = 0;

  const A* const from = tile + (safe_channel / shape.multiplier - first_input_channel) * p.inputs.plane +
                        (taps.row_part * p.inputs.rows + taps.row_tap) * p.inputs.pitch + taps.part * p.inputs.segment +
                        taps.first;
  const A* const grad_from = grad_tile + share.channel_lane * p.grads.plane;
  for (std::uint32_t index = share.split; index < of.work.items; index += static_cast<unsigned>(of.work.splits)) {
    const WindowTilePosition position(p.tile, index);
    block_barrier();  // the tile before is done with
    bring_window_inputs<T, 4>(of.x, of.prologue, p.tile, lanes, p.rows, p.columns, p.inputs, position,
                              first_input_channel, shape.channels / shape.multiplier, tile);
    bring_window_gradients<T, 4>(
        of.grad_y, of.gradient_prologue, p.tile, lanes, p.grads, position.image, first_channel, shape.channels,
        [&](int) {
          return WindowPositions{p.rows.phases * position.row + position.phase, p.rows.phases, p.rows.output};
        },
        p.columns.output, [&](int phase, int i) { return p.columns.phases * (position.column + i) + phase; },
        grad_tile);
    block_barrier();
    if (of.grad_bias != nullptr && tap_block == 0 && share.channel_lane < of.work.channel_lanes) {
      for (int row = share.item_lane; row < p.grads.rows; row += of.work.item_lanes) {
        for (int i = 0; i < p.grads.used; ++i) bias += grad_from[row * p.grads.pitch + i];
      }
    }
    if (idle) continue;
    for (int i = position_lane; i < p.tile.items; i += p.position_lanes) {
      std::uint32_t rest = static_cast<std::uint32_t>(i);
      const int row = static_cast<int>(p.by_phases.divide(rest)), phase = static_cast<int>(rest);
      if (p.rows.phases * (position.row + row) + position.phase >= p.rows.output) break;
      const int columns = static_cast<int>(p.by_phases.quotient(
                              static_cast<unsigned>(p.columns.output + p.columns.phases - 1 - phase))) -
                          position.column;
      add_window_taps(sums, from + row * p.inputs.pitch + phase * p.columns.parts * p.inputs.segment,
                      grad_from + row * p.grads.pitch + phase * p.grads.segment, least(columns, p.tile.columns));
    }
  }

  // Sums over the positions, by threads that take one each, and of the bias over all item lanes.
  A* const memory = static_cast<A*>(shared_memory());
  const int places = of.work.channel_lanes * of.work.item_lanes;
  const bool has_place = share.channel_lane < of.work.channel_lanes && share.item_lane < of.work.item_lanes;
  block_barrier();
  if (has_place) {
    const int place = share.item_lane * of.work.channel_lanes + share.channel_lane;
#pragma unroll
    for (int i = 0; i < kWindowTaps; ++i) memory[i * places + place] = sums[i];
    memory[kWindowTaps * places + place] = bias;
  }
  block_barrier();
  if (!has_place || channel >= shape.channels) return;
  if (position_lane == 0 && own < p.tap_runs) {
#pragma unroll
    for (int i = 0; i < kWindowTaps; ++i) {
      if (taps.first + i >= p.columns.taps(taps.part)) continue;
      A total = 0;
      for (int other = 0; other < p.position_lanes; ++other) {
        const int lane = other * p.tap_lanes + static_cast<int>(tap_lane);
        total += memory[i * places + lane * of.work.channel_lanes + share.channel_lane];
      }
      const int kernel_column = taps.part + (taps.first + i) * p.columns.parts;
      leave_weight_gradient<T>(of, share.split, taps.kernel_row * shape.kernel_width + kernel_column, channel, total);
    }
  }
  if (of.grad_bias != nullptr && share.item_lane == 0 && tap_block == 0) {
    A total = 0;
    for (int lane = 0; lane < of.work.item_lanes; ++lane) {
      total += memory[kWindowTaps * places + lane * of.work.channel_lanes + share.channel_lane];
    }
    leave_weight_gradient<T>(of, share.split, shape.kernel_height * shape.kernel_width, channel, total);
  }
}

}  // namespace fusedsc::gpu
