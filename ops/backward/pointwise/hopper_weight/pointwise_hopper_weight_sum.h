/// The second kernel of weight gradients on Hopper GPUs: adds the splits' partial sums up, in a fixed order.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_splits.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_tiles.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kWeightSumThreads = 256, kWeightSumBytes = kWeightSumThreads / 4 * 16;

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

/// Threads that share a four lie in as few warps as leave each warp eight neighbouring fours, 128 bytes, to read.
template <class T, class Tiles>
FUSEDSC_DEVICE void sum_weight_partials(const WeightSumParameters<Tiles>& p) {
  constexpr int kLanesOfWarp = 4;
  let_next_kernel_start();
  const Tiles& tiles = p.tiles;
  const int inner = p.lanes < kLanesOfWarp ? p.lanes : kLanesOfWarp, outer = p.lanes / inner;
  const int items_of_warp = 32 / inner, warp = thread_index() / 32, own = thread_index() % 32 % items_of_warp;
  const int lane = warp % outer * inner + thread_index() % 32 / items_of_warp;
  const int first = static_cast<int>(block_index()) * (kWeightSumThreads / p.lanes);
  const int item = first + warp / outer * items_of_warp + own;
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
  const SplitsOfThread splits((from == nullptr ? tiles.partials : from)->elements, step * 4,
                              from == nullptr ? 0 : p.splits, lane, p.lanes);
  keep_order(splits.place());
  wait_for_previous_kernel();
  Four sum = splits.sum();
  for (int distance = items_of_warp; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.elements[i] += shuffle_xor(sum.elements[i], distance);
  }
  if (outer > 1) {
    auto* sums = static_cast<Four*>(shared_memory());
    if (thread_index() % 32 < items_of_warp) sums[warp * items_of_warp + own] = sum;
    block_barrier();
    if (warp % outer != 0) return;
    for (int i = 1; i < outer; ++i) add(sum, sums[(warp + i) * items_of_warp + own]);
  }
  if (thread_index() % 32 >= items_of_warp || from == nullptr) return;
  if (is_bias) store<4>(sum.elements, static_cast<T*>(tiles.bias) + (item - all) * 4);
  else tiles.store_sum(place, sum, T());
}

}  // namespace fusedsc::gpu::hopper
