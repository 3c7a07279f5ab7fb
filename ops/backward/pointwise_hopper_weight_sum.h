/// Where sums of the weight gradient on Hopper GPUs go: to the weight, or, of each split, to a workspace, from where a
/// second kernel adds them up in a fixed order. Threads have sums in fours, and leave them as they have them.
#pragma once

#include "fusedsc/backward/pointwise_hopper_teams_operand.h"
#include "fusedsc/common/gpu/following_kernel.h"

namespace fusedsc::gpu::hopper {

using Four = Aligned<float, 4>;

FUSEDSC_DEVICE void add(Four& sum, const Four& other) {
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
  Four* partials = nullptr;        ///< [split][tile][four]; null: there is one split
  float* bias_partials = nullptr;  ///< [split][output]

  FUSEDSC_HOST_DEVICE int fours_of_tile() const { return rows * columns / 4; }
  FUSEDSC_HOST_DEVICE int fours() const { return output_tiles * channel_tiles * fours_of_tile(); }
};

/// As groups of four warps have sums (wgmma): two neighbouring channels of an output, and of the one 8 further.
struct GroupTiles : WeightTiles {
  /// Of a four: [64 outputs][8 channels][thread of 128].
  FUSEDSC_DEVICE WeightPlace place_of(int tile, int four) const {
    const int thread = four % 128, quad = four / 128, row_quads = columns / 8;
    return {tile / channel_tiles * rows + quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4,
            tile % channel_tiles * columns + quad % row_quads * 8 + thread % 4 * 2};
  }

  template <class T>
  FUSEDSC_DEVICE void store_four(const WeightPlace& place, const Four& sum, T) const {
    if (weight == nullptr || place.channel >= channels) return;
    T* to = static_cast<T*>(weight) + place.output * weight_row + place.channel;
    if (place.output < outputs) store<2>(sum.elements, to);
    if (place.output + 8 < outputs) store<2>(sum.elements + 2, to + 8 * weight_row);
  }
};

/// Blocks of 32 rows and columns of a warp; warps of a team side by side; threads of a team.
struct TeamShape {
  int row_blocks = 1, column_blocks = 1, team_columns = 1, threads = 32;
};

/// As warps of teams have them (mma.sync): four neighbouring channels of an output.
struct TeamTiles : WeightTiles {
  TeamShape shape;
  int phases = 1;

  /// Of a four: [row of the lane][run of four channels of the lane][thread of the team].
  FUSEDSC_DEVICE WeightPlace place_of(int tile, int four) const {
    const int thread = four % shape.threads, runs = 2 * shape.column_blocks;
    const int row = four / shape.threads / runs, run = four / shape.threads % runs;
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    return {tile / channel_tiles * rows + (warp / shape.team_columns * shape.row_blocks + row / 4) * 32 +
                first_of_four(g, phases) + row % 4,
            tile % channel_tiles * columns + (warp % shape.team_columns * shape.column_blocks + run / 2) * 32 +
                first_of_four(2 * t + run % 2, phases)};
  }

  template <class T>
  FUSEDSC_DEVICE void store_four(const WeightPlace& place, const Four& sum, T) const {
    if (place.output >= outputs || place.channel >= channels) return;
    store<4>(sum.elements, static_cast<T*>(weight) + place.output * weight_row + place.channel);
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

inline constexpr int kWeightSumThreads = 256, kWeightSumBytes = kWeightSumThreads * 16;

template <class Tiles>
struct WeightSumParameters {
  Tiles tiles;
  int splits = 1;
  int lanes = 1;  ///< threads that share a four: a power of two, at most 32

  WeightSumParameters(const Tiles& tiles_, int splits_) : tiles(tiles_), splits(splits_) {
    while (lanes < 32 && lanes * 4 < splits) lanes *= 2;
  }
  std::int64_t blocks() const {
    const std::int64_t fours = tiles.fours() + (tiles.bias_partials != nullptr ? tiles.outputs / 4 : 0);
    return (fours * lanes + kWeightSumThreads - 1) / kWeightSumThreads;
  }
};

template <class T, class Tiles>
FUSEDSC_DEVICE void sum_weight_partials(const WeightSumParameters<Tiles>& p) {
  let_next_kernel_start();
  const Tiles& tiles = p.tiles;
  const int items_of_block = kWeightSumThreads / p.lanes, lane = thread_index() / items_of_block;
  const int item = static_cast<int>(block_index()) * items_of_block + thread_index() % items_of_block;
  const int all = tiles.fours(), of_tile = tiles.fours_of_tile();
  const WeightPlace place = tiles.place_of(item / of_tile, item % of_tile);
  const bool is_bias = item >= all;
  const Four* from = nullptr;
  std::int64_t step = all;
  if (!is_bias && place.output < tiles.outputs && place.channel < tiles.channels) from = tiles.partials + item;
  if (is_bias && tiles.bias_partials != nullptr && (item - all) * 4 < tiles.outputs) {
    from = reinterpret_cast<const Four*>(tiles.bias_partials) + (item - all);
    step = tiles.outputs / 4;
  }
  wait_for_previous_kernel();
  auto* sums = static_cast<Four*>(block_memory());
  Four sum = {};
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
  if (is_bias) store<4>(sum.elements, static_cast<T*>(tiles.bias) + (item - all) * 4);
  else tiles.store_four(place, sum, T());
}

}  // namespace fusedsc::gpu::hopper
