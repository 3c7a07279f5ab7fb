/// How a weight gradient on Hopper GPUs is cut in tiles, which four sums a thread has together, and where they go: to
/// the weight, or, of each split, to a workspace, as threads have them (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu::hopper {

using Four = Aligned<float, 4>;

FUSEDSC_DEVICE void add(Four& sum, Four other) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
}

struct WeightPlace {
  int output, channel;
};

/// A weight gradient in tiles of rows (outputs) and columns (channels).
struct WeightTiles {
  int outputs = 0, channels = 0;
  int rows = 0, columns = 0;  ///< of a tile
  int output_tiles = 1, channel_tiles = 1;
  void *weight = nullptr, *bias = nullptr;  ///< or null: not wanted
  std::int64_t weight_row = 0;
  Four* partials = nullptr;        ///< [split][tile][four]; null: there is one split, and no windows
  float* bias_partials = nullptr;  ///< [split][output]

  FUSEDSC_HOST_DEVICE int fours_of_tile() const { return rows * columns / 4; }
  FUSEDSC_HOST_DEVICE int fours() const { return output_tiles * channel_tiles * fours_of_tile(); }
};

/// As warpgroups have sums (wgmma): two neighbouring channels of an output, and of the one 8 further.
struct GroupTiles : WeightTiles {
  WeightSource windows;  ///< a sliding-channel convolution's gradient, of which only these are stored; or none

  /// Of a four: [64 outputs][8 channels][thread of 128].
  FUSEDSC_DEVICE WeightPlace place_of(int tile, int four) const {
    const int thread = four % 128, quad = four / 128, row_quads = columns / 8;
    return {tile / channel_tiles * rows + quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4,
            tile % channel_tiles * columns + quad % row_quads * 8 + thread % 4 * 2};
  }

  /// Of a weight without windows. Those with windows go by way of the workspace: their code, once for each of a
  /// thread's fours, made kernels twice as long.
  template <class T>
  FUSEDSC_DEVICE void store_four(const WeightPlace& place, const Four& sum, T) const {
    if (weight == nullptr || place.channel >= channels) return;
    T* to = static_cast<T*>(weight) + place.output * weight_row + place.channel;
    if (place.output < outputs) store<2>(sum.elements, to);
    if (place.output + 8 < outputs) store<2>(sum.elements + 2, to + 8 * weight_row);
  }

  /// Whether any of a four is stored.
  FUSEDSC_DEVICE bool is_wanted(const WeightPlace& place) const {
    return windows.data == nullptr || windows.has_pair(windows.first(place.output), place.channel) ||
           windows.has_pair(windows.first(place.output + 8), place.channel);
  }

  /// What the second kernel has added up.
  template <class T>
  FUSEDSC_DEVICE void store_sum(const WeightPlace& place, const Four& sum, T) const {
    if (windows.data == nullptr) store_four(place, sum, T());
    else if (weight != nullptr && place.channel < channels) store_windows(place, sum, T());
  }

 private:
  template <class T>
  FUSEDSC_DEVICE void store_windows(const WeightPlace& place, const Four& sum, T) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = place.output + half * 8;
      if (output >= outputs) continue;
      const int first = windows.first(output), k = windows.place(first, place.channel);
      T* to = static_cast<T*>(weight) + output * windows.row;
      if (windows.piece > 1) {  // both channels of a pair, or none
        if (k < windows.width) store<2>(sum.elements + half * 2, to + k);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int own = windows.place(first, place.channel + i);
        if (own < windows.width) from_accumulator(sum.elements[half * 2 + i], to[own * windows.column]);
      }
    }
  }
};

/// Of 32 channels, the first of the four that lanes 4g to 4g + 3 of a warp have, for g = 0 to 7
/// (pointwise_hopper_warp_sliced_k_operand.h).
FUSEDSC_DEVICE int first_of_four(int g, int phases) { return phases == 8 ? g % 4 * 8 + g / 4 * 4 : 4 * g; }

/// Blocks of 32 rows and columns of a warp; warps of a slice side by side; threads of a slice.
struct SliceShape {
  int row_blocks = 1, column_blocks = 1, slice_columns = 1, threads = 32;
};

/// As warps of slices have them (mma.sync): four neighbouring channels of an output.
struct SliceTiles : WeightTiles {
  SliceShape shape;
  int phases = 1;

  /// Of a four: [row of the lane][run of four channels of the lane][thread of the slice].
  FUSEDSC_DEVICE WeightPlace place_of(int tile, int four) const {
    const int thread = four % shape.threads, runs = 2 * shape.column_blocks;
    const int row = four / shape.threads / runs, run = four / shape.threads % runs;
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    return {tile / channel_tiles * rows + (warp / shape.slice_columns * shape.row_blocks + row / 4) * 32 +
                first_of_four(g, phases) + row % 4,
            tile % channel_tiles * columns + (warp % shape.slice_columns * shape.column_blocks + run / 2) * 32 +
                first_of_four(2 * t + run % 2, phases)};
  }

  FUSEDSC_DEVICE bool is_wanted(const WeightPlace&) const { return true; }

  template <class T>
  FUSEDSC_DEVICE void store_four(const WeightPlace& place, const Four& sum, T) const {
    if (place.output >= outputs || place.channel >= channels) return;
    store<4>(sum.elements, static_cast<T*>(weight) + place.output * weight_row + place.channel);
  }
  template <class T>
  FUSEDSC_DEVICE void store_sum(const WeightPlace& place, const Four& sum, T) const {
    store_four(place, sum, T());
  }
};

/// As warps have them whose rows are the channels of the wider tensor (mma.sync): two neighbouring channels of the
/// other one, and the same of the row 8 further. One tile is the whole weight.
struct NarrowTiles : WeightTiles {
  int threads = 32;      ///< of a slice
  int column_tiles = 1;  ///< of 8 channels of the narrower tensor
  bool is_output_wide = false;

  /// Of a four: [16 rows of a warp][8 columns][thread of the slice].
  FUSEDSC_DEVICE WeightPlace place_of(int, int four) const {
    const int thread = four % threads, product = four / threads, row_tiles = rows / (threads / 32) / 16;
    const int wide = (thread / 32 * row_tiles + product / column_tiles) * 16 + thread % 32 / 4;
    const int slim = product % column_tiles * 8 + thread % 4 * 2;
    return is_output_wide ? WeightPlace{wide, slim} : WeightPlace{slim, wide};
  }

  FUSEDSC_DEVICE bool is_wanted(const WeightPlace&) const { return true; }

  template <class T>
  FUSEDSC_DEVICE void store_four(const WeightPlace& place, const Four& sum, T) const {
    if (place.output >= outputs || place.channel >= channels) return;
    T* to = static_cast<T*>(weight) + place.output * weight_row + place.channel;
    if (is_output_wide) {
      store<2>(sum.elements, to);
      if (place.output + 8 < outputs) store<2>(sum.elements + 2, to + 8 * weight_row);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (place.channel + i / 2 * 8 < channels) from_accumulator(sum.elements[i], to[i % 2 * weight_row + i / 2 * 8]);
    }
  }
  template <class T>
  FUSEDSC_DEVICE void store_sum(const WeightPlace& place, const Four& sum, T) const {
    store_four(place, sum, T());
  }
};

template <class Tiles, class T>
FUSEDSC_DEVICE void leave_four(const Tiles& p, int tile, int split, int four, const Four& sum, T) {
  if (p.partials == nullptr) return p.store_four(p.place_of(tile, four), sum, T());
  p.partials[static_cast<std::int64_t>(split) * p.fours() + tile * p.fours_of_tile() + four] = sum;
}

template <class T>
FUSEDSC_DEVICE void leave_bias_of(const WeightTiles& p, int split, int output, float sum, T) {
  if (output >= p.outputs) return;
  if (p.bias_partials != nullptr) p.bias_partials[static_cast<std::int64_t>(split) * p.outputs + output] = sum;
  else if (p.bias != nullptr) from_accumulator(sum, static_cast<T*>(p.bias)[output]);
}

}  // namespace fusedsc::gpu::hopper
