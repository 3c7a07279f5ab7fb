/// Sums over the item lanes of a block, in a fixed order, and where a block leaves them: partial sums, one row of them
/// per split, that a second kernel adds up (partials_kernel.h). No atomics: the same input gives the same bits.
#pragma once

#include "fusedsc/common/gpu/depthwise_work.h"
#include "fusedsc/common/gpu/vector.h"

namespace fusedsc::gpu {

/// Calls combine(other lane's place) for pairs of item lanes until lane 0 has it all. `place` is where a lane's values
/// are in block memory; lanes that work none must have written neutral ones.
template <class Combine>
FUSEDSC_DEVICE void combine_item_lanes(const DepthwiseWork& work, const DepthwiseShare& share, const Combine& combine) {
  int reach = 1;
  while (reach < work.item_lanes) reach *= 2;
  for (reach /= 2; reach > 0; reach /= 2) {
    block_barrier();
    if (share.channel_lane < work.channel_lanes && share.item_lane < reach &&
        share.item_lane + reach < work.item_lanes) {
      combine(share.item_lane * work.channel_lanes + share.channel_lane,
              (share.item_lane + reach) * work.channel_lanes + share.channel_lane);
    }
  }
  block_barrier();
}

/// Block memory that add_item_lanes needs for `count` values of a thread.
template <class A>
constexpr std::size_t block_sums_bytes(int count) {
  return sizeof(A) * static_cast<std::size_t>(count) * kDepthwiseThreads;
}

/// Adds kCount values of each thread up over the item lanes; kept(i, sum) is called with the results in the threads of
/// item lane 0.
template <int kCount, class A, class Keep>
FUSEDSC_DEVICE void add_item_lanes(const DepthwiseWork& work, const DepthwiseShare& share, const A* values,
                                   const Keep& keep) {
  A* memory = static_cast<A*>(block_memory());
  const int places = work.channel_lanes * work.item_lanes;
  const int place = share.item_lane * work.channel_lanes + share.channel_lane;
  const bool has_place = share.channel_lane < work.channel_lanes && share.item_lane < work.item_lanes;
  block_barrier();  // whoever used the memory before is done
  if (has_place) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) memory[i * places + place] = values[i];
  }
  combine_item_lanes(work, share, [&](int to, int from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) memory[i * places + to] += memory[i * places + from];
  });
  if (has_place && share.item_lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) keep(i, memory[i * places + place]);
  }
}

}  // namespace fusedsc::gpu
