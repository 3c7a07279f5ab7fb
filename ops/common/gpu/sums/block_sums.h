/// Sums over the item lanes of a block, in a fixed order, and where a block leaves them: partial sums, one row of them
/// per split, that a second kernel adds up (partials_kernel.h). No atomics: the same input gives the same bits.
#pragma once

#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu {

/// Calls combine(other lane's place) for pairs of item lanes until lane 0 has it all. `place` is where a lane's values
/// are in shared memory; lanes that work none must have written neutral ones.
template <class Combine>
FUSEDSC_DEVICE void combine_item_lanes(const ItemWork& work, const ItemShare& share, const Combine& combine) {
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

/// Shared memory that add_item_lanes needs for `count` values of a thread.
template <class A>
constexpr std::size_t block_sums_bytes(int count) {
  return sizeof(A) * static_cast<std::size_t>(count) * kItemThreads;
}

/// Adds kCount values of each thread up over the item lanes: kept(channel lane, i, sum) is called once for each sum, by
/// whichever thread made it. All threads must call it; shared memory must no longer be in use by others.
template <int kCount, int kThreads = kItemThreads, class A, class Keep>
FUSEDSC_DEVICE void add_item_lanes(const ItemWork& work, const ItemShare& share, const A* values, const Keep& keep) {
  const bool has_lanes = share.channel_lane < work.channel_lanes && share.item_lane < work.item_lanes;
  if (work.item_lanes == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has_lanes) keep(share.channel_lane, i, values[i]);
    }
    return;
  }
  A* memory = static_cast<A*>(shared_memory());
  const int places = work.channel_lanes * work.item_lanes;
  block_barrier();  // whoever used the memory before is done
  if (has_lanes) {
    const int place = share.item_lane * work.channel_lanes + share.channel_lane;
#pragma unroll
    for (int i = 0; i < kCount; ++i) memory[i * places + place] = values[i];
  }
  block_barrier();
  // Neighbouring threads take neighbouring channel lanes.
  for (int sum = thread_index(); sum < kCount * work.channel_lanes; sum += kThreads) {
    std::uint32_t lane = static_cast<std::uint32_t>(sum);
    const int i = static_cast<int>(work.by_channel_lanes.divide(lane));
    const A* from = memory + i * places + lane;
    A total = from[0];
    for (int item = 1; item < work.item_lanes; ++item) total += from[item * work.channel_lanes];
    keep(static_cast<int>(lane), i, total);
  }
}

}  // namespace fusedsc::gpu
