/// Where sums of the weight gradient on Hopper GPUs go: to the weight, or, of each split, to a workspace, from where a
/// second kernel adds them up in a fixed order.
#pragma once

#include "fusedsc/common/gpu/hopper_cluster.h"
#include "fusedsc/common/gpu/weight_source.h"

namespace fusedsc::gpu::hopper {

/// A weight gradient in tiles of rows (outputs) and columns (channels). A thread has sums in fours: of two neighbouring
/// channels, of an output and of the one 8 further.
struct WeightTiles {
  int outputs = 0, channels = 0;
  int rows = 0, columns = 0;  ///< of a tile
  int output_tiles = 1, channel_tiles = 1;
  void *weight = nullptr, *bias = nullptr;  ///< or null: not wanted
  std::int64_t weight_row = 0;
  WeightSource windows;        ///< a sliding-channel convolution's weight, which has data of its windows only; or none
  float4* partials = nullptr;  ///< [split][tile][four][thread of 128]; null: there is one split
  float* bias_partials = nullptr;  ///< [split][output]
};

FUSEDSC_DEVICE void add(float4& sum, const float4& other) {
  sum.x += other.x;
  sum.y += other.y;
  sum.z += other.z;
  sum.w += other.w;
}

/// The first output and channel of a four.
FUSEDSC_DEVICE int2 place_of_quad(const WeightTiles& p, int tile, int quad, int thread) {
  const int row_quads = p.columns / 8;
  return {tile / p.channel_tiles * p.rows + quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4,
          tile % p.channel_tiles * p.columns + quad % row_quads * 8 + thread % 4 * 2};
}

/// Where the windows of a four's two filters begin.
struct WindowsOfQuad {
  int first[2] = {};

  WindowsOfQuad() = default;
  FUSEDSC_DEVICE WindowsOfQuad(const WeightTiles& p, int output) {
    if (p.windows.data == nullptr) return;
    first[0] = p.windows.first(output);
    first[1] = p.windows.first(output + 8);
  }
};

/// Whether any of a four is wanted.
FUSEDSC_DEVICE bool is_wanted(const WeightTiles& p, int2 place, const WindowsOfQuad& windows) {
  return p.windows.data == nullptr || p.windows.has_pair(windows.first[0], place.y) ||
         p.windows.has_pair(windows.first[1], place.y);
}

template <class T>
FUSEDSC_DEVICE void store_quad(const WeightTiles& p, int2 place, const WindowsOfQuad& windows, const float4& sum, T) {
  if (p.weight == nullptr || place.y >= p.channels) return;
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
  if (p.windows.data != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = place.x + half * 8, k = p.windows.place(windows.first[half], place.y);
      if (output >= p.outputs) continue;
      T* to = static_cast<T*>(p.weight) + output * p.windows.row;
      if (p.windows.piece > 1) {  // both channels of a pair, or none
        if (k < p.windows.width) store<2>(sums + half * 2, to + k);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place_of_weight = p.windows.place(windows.first[half], place.y + i);
        if (place.y + i < p.channels && place_of_weight < p.windows.width) {
          from_accumulator(sums[half * 2 + i], to[place_of_weight * p.windows.column]);
        }
      }
    }
    return;
  }
  T* to = static_cast<T*>(p.weight) + place.x * p.weight_row + place.y;
  if (place.x < p.outputs) store<2>(sums, to);
  if (place.x + 8 < p.outputs) store<2>(sums + 2, to + 8 * p.weight_row);
}

template <class T>
FUSEDSC_DEVICE void leave_quad(const WeightTiles& p, int tile, int split, int quad, int thread,
                               const WindowsOfQuad& windows, const float4& sum, T) {
  const int2 place = place_of_quad(p, tile, quad, thread);
  if (p.partials == nullptr) return store_quad(p, place, windows, sum, T());
  if (!is_wanted(p, place, windows)) return;
  const int quads = p.rows / 64 * p.columns / 8, tiles = p.output_tiles * p.channel_tiles;
  p.partials[((static_cast<std::int64_t>(split) * tiles + tile) * quads + quad) * 128 + thread] = sum;
}

template <class T>
FUSEDSC_DEVICE void leave_bias_of(const WeightTiles& p, int split, int output, float sum, T) {
  if (output >= p.outputs) return;
  if (p.bias_partials != nullptr) p.bias_partials[static_cast<std::int64_t>(split) * p.outputs + output] = sum;
  else if (p.bias != nullptr) from_accumulator(sum, static_cast<T*>(p.bias)[output]);
}

inline constexpr int kWeightSumThreads = 256;

struct WeightSumParameters {
  WeightTiles tiles;
  int splits = 1;
  int lanes = 1;  ///< threads that share a four: a power of two, at most 32
};

template <class T>
FUSEDSC_DEVICE void sum_weight_partials(const WeightSumParameters& p) {
  let_next_kernel_start();
  const WeightTiles& tiles = p.tiles;
  const int items_of_block = kWeightSumThreads / p.lanes, lane = thread_index() / items_of_block;
  const int item = static_cast<int>(block_index()) * items_of_block + thread_index() % items_of_block;
  const int quads = tiles.rows / 64 * tiles.columns / 8, all = tiles.output_tiles * tiles.channel_tiles * quads * 128;
  const int2 place = place_of_quad(tiles, item / 128 / quads, item / 128 % quads, item % 128);
  const WindowsOfQuad windows(tiles, place.x);
  const bool is_bias = item >= all;
  const float4* from = nullptr;
  std::int64_t step = all;
  if (!is_bias && place.x < tiles.outputs && place.y < tiles.channels && is_wanted(tiles, place, windows)) {
    from = tiles.partials + item;
  }
  if (is_bias && tiles.bias_partials != nullptr && (item - all) * 4 < tiles.outputs) {
    from = reinterpret_cast<const float4*>(tiles.bias_partials) + (item - all);
    step = tiles.outputs / 4;
  }
  wait_for_previous_kernel();
  __shared__ float4 sums[kWeightSumThreads];
  float4 sum = {};
  if (from != nullptr) {
#pragma unroll 4
    for (int split = lane; split < p.splits; split += p.lanes) add(sum, from[split * step]);
  }
  for (int lanes = p.lanes / 2; lanes > 0; lanes /= 2) {
    sums[thread_index()] = sum;
    block_barrier();
    if (lane < lanes) add(sum, sums[thread_index() + lanes * items_of_block]);
    block_barrier();
  }
  if (lane != 0 || from == nullptr) return;
  if (is_bias) store<4>(&sum.x, static_cast<T*>(tiles.bias) + (item - all) * 4);
  else store_quad(tiles, place, windows, sum, T());
}

}  // namespace fusedsc::gpu::hopper
