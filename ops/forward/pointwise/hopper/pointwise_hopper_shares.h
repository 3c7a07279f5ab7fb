/// Sums of pointwise products on Hopper GPUs whose k some warpgroups share: each group ends up with those of
/// its own channels.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_prologue.h"

namespace fusedsc::gpu::hopper {

/// Of kChannels channels and kKSlices groups. Sums go through shared memory in fours, as threads have them.
template <int kChannels, int kKSlices>
class PointwiseShares {
 public:
  static constexpr int kOwn = kChannels / kKSlices;  ///< channels that a group finishes
  static constexpr int kQuads = kChannels / 8, kOwnQuads = kOwn / 8;
  static constexpr int kBytes = (kKSlices - 1) * kOwnQuads * kGroupThreads * 16;  ///< of shared memory, for each group
  static_assert(kOwn * kKSlices == kChannels && kOwn % 16 == 0);
  using Sums = float[kChannels / 2];
  using OwnSums = float[kOwn / 2];

  /// memory: the group's; that of the group with the next share lies `distance` bytes behind it. `thread`: of the
  /// group.
  FUSEDSC_DEVICE PointwiseShares(unsigned char* memory, int distance, int k_slice, int thread)
      : memory_(memory), distance_(distance), k_slice_(k_slice), thread_(thread) {}

  /// own = the sums of all shares, of the group's own channels. The memory must be free; wait(): for the other groups.
  template <class Wait>
  FUSEDSC_DEVICE void put_together(const Sums& sums, OwnSums& own, const Wait& wait) const {
    if constexpr (kKSlices > 1) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        if (quad / kOwnQuads == k_slice_) continue;
        const float* from = sums + quad * 4;
        *place_of(quad / kOwnQuads, k_slice_, quad % kOwnQuads) = {{from[0], from[1], from[2], from[3]}};
      }
      wait();
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad / kOwnQuads != k_slice_) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) own[quad % kOwnQuads * 4 + i] = sums[quad * 4 + i];
    }
    if constexpr (kKSlices > 1) {
#pragma unroll
      for (int i = 1; i < kKSlices; ++i) {
#pragma unroll
        for (int quad = 0; quad < kOwnQuads; ++quad) {
          const Four share = *place_of(k_slice_, (k_slice_ + i) % kKSlices, quad);
#pragma unroll
          for (int j = 0; j < 4; ++j) own[quad * 4 + j] += share.elements[j];
        }
      }
    }
  }

 private:
  using Four = Aligned<float, 4>;

  /// Where the group with the share `from` leaves a quad for its owner.
  FUSEDSC_DEVICE Four* place_of(int owner, int from, int quad) const {
    const int number = (owner - from - 1 + kKSlices) % kKSlices;
    return reinterpret_cast<Four*>(memory_ + (from - k_slice_) * distance_) +
           (number * kOwnQuads + quad) * kGroupThreads + thread_;
  }

  unsigned char* memory_;
  int distance_, k_slice_, thread_;
};

/// Adds up what the blocks of a cluster have, a power of two, each of which takes some of the fours of all:
/// take(number, four) by the thread that has had it. They pass through `memory`, 16 bytes of each thread for every
/// four, by all threads of a block, which must be done with it. One block that takes all would have to read what all
/// others have.
template <int kCount, class Take>
FUSEDSC_DEVICE void add_up_cluster(const float (&sums)[kCount], void* memory, int threads, int rank, int cluster,
                                   const Take& take) {
  constexpr int kFours = kCount / 4, kMostParts = kFours >= 8 ? 8 : kFours >= 4 ? 4 : kFours >= 2 ? 2 : 1;
  const int thread = thread_index();
  auto* fours = static_cast<Aligned<float, 4>*>(memory) + thread;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    fours[i * threads] = {{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}};
  }
  cluster_barrier();
  // Parts of the fours, and where there are fewer of them than blocks, parts of the threads.
  const int parts = least(cluster, kMostParts), shared = cluster / parts, part = rank % parts;
  if (thread / (threads / shared) == rank / parts) {
#pragma unroll 1
    for (int i = kFours * part / parts; i < kFours * (part + 1) / parts; ++i) {
      take(i, sum_of_blocks(fours + i * threads, cluster));
    }
  }
  warp_barrier();
  cluster_barrier();  // no block's memory goes before it has been read
}

}  // namespace fusedsc::gpu::hopper
