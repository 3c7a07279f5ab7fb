/// Where blocks of depthwise weight gradients for Hopper GPUs leave their sums, and how those of a cluster, which have
/// all splits of the same channels, add theirs up through shared memory: then these are the gradients.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_weight_results.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseWeightSums : DepthwiseWeightResults {
  float* partials = nullptr;  ///< [row][tap..., bias][channel]; null: there is one row, and that is the gradients
  int taps = 0;               ///< of a row, with the bias if that is wanted

  int cluster = 1;  ///< blocks: all splits, or each by itself
  Divisor by_cluster;
  int share = 0;  ///< of a cluster's results, in fours, that a block adds up
};

/// Of a block: those that compute, and the warp that copies.
template <class Parameters>
FUSEDSC_HOST_DEVICE int threads_of_block(const Parameters& p) {
  return (p.warps() + 1) * 32;
}

/// A gradient that is one already; after the taps that of the bias.
template <class T, int kKernel>
FUSEDSC_DEVICE void leave_gradient(const DepthwiseWeightSums& p, int tap, int channel, float sum) {
  leave_weight_gradient<T>(p, kKernel * kKernel, kKernel, tap, channel, sum);
}

/// Of four channels.
template <class T, int kKernel>
FUSEDSC_DEVICE void leave_gradients(const DepthwiseWeightSums& p, int tap, int channel, const Aligned<float, 4>& sums) {
#pragma unroll
  for (int c = 0; c < 4; ++c) leave_gradient<T, kKernel>(p, tap, channel + c, sums.elements[c]);
}

// ------------------------------------------------------------------------------------------------ blocks of a cluster

/// As split_of_block(): the block's place in its cluster.
template <class Parameters>
FUSEDSC_DEVICE int split_in_cluster(const Parameters& p, int& first_channel) {
  std::uint32_t split = block_index();
  first_channel = static_cast<int>(p.sums.by_cluster.divide(split)) * p.runs() * 8;
  return static_cast<int>(split);
}

/// By all warps of a block: they are done with the tiles, in whose memory the sums may go now.
FUSEDSC_DEVICE void leave_tiles() {
  warp_barrier();
  block_barrier();
}

/// A block's sums lie in its memory as fours, of an image part so many: [four channels][tap..., bias].
FUSEDSC_HOST_DEVICE constexpr int fours_of_part(int runs, int kernel) { return runs * 2 * (kernel * kernel + 1); }

/// Where they begin, of the channels of which the block's channel number `channel` is one.
template <int kKernel>
FUSEDSC_DEVICE Aligned<float, 4>* place_of_sums(const DepthwiseTilesShape& p, void* memory, int part, int channel) {
  return static_cast<Aligned<float, 4>*>(memory) + part * fours_of_part(p.runs(), kKernel) +
         channel / 4 * (kKernel * kKernel + 1);
}

/// By all threads of a cluster, each block of which takes some of the results. memory: of a block's sums.
template <class T, int kKernel, class Parameters>
FUSEDSC_DEVICE void add_up_cluster(const Parameters& p, void* memory, int split, int first_channel) {
  constexpr int kTaps = kKernel * kKernel + 1;
  const int first = split * p.sums.share, part_fours = fours_of_part(p.runs(), kKernel);
  const int end = least(first + p.sums.share, least(part_fours, (p.channels - first_channel) / 4 * kTaps));
  warp_barrier();
  cluster_barrier();
#pragma unroll 1
  for (int i = first + thread_index(); i < end; i += threads_of_block(p)) {
    const int four = i / kTaps, tap = i - four * kTaps;
    if (tap >= p.sums.taps) continue;
    Aligned<float, 4> sum = {};
#pragma unroll 1
    for (int part = 0; part < p.image_parts; ++part) {
      const auto* place = static_cast<const Aligned<float, 4>*>(memory) + part * part_fours + i;
      const Aligned<float, 4> of_part = sum_of_blocks<kMostCluster>(place, p.sums.cluster);
#pragma unroll
      for (int c = 0; c < 4; ++c) sum.elements[c] += of_part.elements[c];
    }
    leave_gradients<T, kKernel>(p.sums, tap, first_channel + four * 4, sum);
  }
  warp_barrier();
  leave_cluster();
}

}  // namespace fusedsc::gpu::hopper
