/// The second kernel of weight gradients on Hopper GPUs: adds the splits' partial sums up, in a fixed order.
#pragma once

#include "fusedsc/backward/pointwise_hopper_weight_tiles.h"
#include "fusedsc/common/gpu/following_kernel.h"

namespace fusedsc::gpu::hopper {

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
  if (!is_bias && place.output < tiles.outputs && place.channel < tiles.channels && tiles.is_wanted(place)) {
    from = tiles.partials + item;
  }
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
  else tiles.store_sum(place, sum, T());
}

}  // namespace fusedsc::gpu::hopper
