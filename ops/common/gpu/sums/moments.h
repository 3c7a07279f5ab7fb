/// Mean and sum of squared deviations (M2) per channel, gathered by threads and merged by Chan's formula (Chan, Golub,
/// LeVeque 1979) in a fixed order: exact where a sum of squares would cancel.
#pragma once

#include "fusedsc/common/gpu/sums/block_sums.h"

namespace fusedsc::gpu {

/// {count, mean, m2} += {other...}
template <class A>
FUSEDSC_DEVICE void merge_moments(A& count, A& mean, A& m2, A other_count, A other_mean, A other_m2) {
  if (other_count == A(0)) return;
  const A total = count + other_count, weight = other_count / total, delta = other_mean - mean;
  mean += delta * weight;
  m2 += other_m2 + delta * delta * (count * weight);
  count = total;
}

/// Of the elements of kChannels channels that one thread has seen.
template <class A, int kChannels>
struct Moments {
  A count = 0;
  A mean[kChannels], m2[kChannels];

  FUSEDSC_DEVICE Moments() {
#pragma unroll
    for (int v = 0; v < kChannels; ++v) mean[v] = m2[v] = 0;
  }

  /// The first `columns` of kColumns positions.
  template <int kColumns>
  FUSEDSC_DEVICE void add(const A (&y)[kColumns * kChannels], int columns) {
    const A added = static_cast<A>(columns), total = count + added;
    const A inverse = A(1) / added, weight = added / total, spread = count * weight;
#pragma unroll
    for (int v = 0; v < kChannels; ++v) {
      A sum = 0, deviations = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum += c < columns ? y[c * kChannels + v] : A(0);
      const A row_mean = sum * inverse;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const A deviation = c < columns ? y[c * kChannels + v] - row_mean : A(0);
        deviations += deviation * deviation;
      }
      const A delta = row_mean - mean[v];
      mean[v] += delta * weight;
      m2[v] += deviations + delta * delta * spread;
    }
    count = total;
  }
};

/// Of the elements of kChannels channels that one thread has seen: sums of their deviations from the first, which is
/// near their mean, so that the squares do not cancel either.
template <class A, int kChannels>
struct ShiftedMoments {
  A count = 0;
  A pivot[kChannels], sum[kChannels], squares[kChannels];

  FUSEDSC_DEVICE ShiftedMoments() {
#pragma unroll
    for (int v = 0; v < kChannels; ++v) pivot[v] = sum[v] = squares[v] = 0;
  }

  /// The first `columns` of kColumns positions.
  template <int kColumns>
  FUSEDSC_DEVICE void add(const A (&y)[kColumns * kChannels], int columns) {
    begin(y);
    if (columns == kColumns) {
      add_those<kColumns>(y, [](int) { return true; });
    } else {
      add_those<kColumns>(y, [&](int c) { return c < columns; });
    }
    count += static_cast<A>(columns);
  }

  /// Of a position, before others are added: it is the pivot, if it is the first at all.
  template <int kSize>
  FUSEDSC_DEVICE void begin(const A (&y)[kSize]) {
    if (count == A(0)) {
#pragma unroll
      for (int v = 0; v < kChannels; ++v) pivot[v] = y[v];
    }
  }
  /// A position that whoever calls this counts.
  FUSEDSC_DEVICE void add_one(const A (&y)[kChannels]) {
    add_those<1>(y, [](int) { return true; });
  }

  template <int kColumns, class Has>
  FUSEDSC_DEVICE void add_those(const A (&y)[kColumns * kChannels], const Has& has) {
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) {
      const int v = i % kChannels;
      const A deviation = has(i / kChannels) ? y[i] - pivot[v] : A(0);
      sum[v] += deviation;
      squares[v] += deviation * deviation;
    }
  }

  FUSEDSC_DEVICE A mean(int v) const { return count == A(0) ? A(0) : pivot[v] + sum[v] / count; }
  FUSEDSC_DEVICE A m2(int v) const {
    const A rest = count == A(0) ? A(0) : squares[v] - sum[v] * (sum[v] / count);
    return rest > A(0) ? rest : rest != rest ? rest : A(0);  // roundings leave no negative one; a NaN stays
  }
};

template <class A>
constexpr std::size_t block_moments_bytes(int channels) {
  return sizeof(A) * static_cast<std::size_t>(1 + 2 * channels) * kItemThreads;
}

/// Merges the moments of a block's item lanes and leaves them in partials[split][mean, m2, count][channel].
template <class A, int kChannels>
FUSEDSC_DEVICE void leave_moments(const ItemWork& work, const ItemShare& share,
                                  const ShiftedMoments<A, kChannels>& moments, int channel, int channels, A* partials) {
  const int places = work.channel_lanes * work.item_lanes;
  const int place = share.item_lane * work.channel_lanes + share.channel_lane;
  A* count = static_cast<A*>(shared_memory());
  A* mean = count + places;
  A* m2 = mean + kChannels * places;
  const bool has_place = share.channel_lane < work.channel_lanes && share.item_lane < work.item_lanes;
  if (has_place) {
    count[place] = moments.count;
#pragma unroll
    for (int v = 0; v < kChannels; ++v) {
      mean[v * places + place] = moments.mean(v);
      m2[v * places + place] = moments.m2(v);
    }
  }
  combine_item_lanes(work, share, [&](int to, int from) {
    A total = 0;
#pragma unroll
    for (int v = 0; v < kChannels; ++v) {
      A merged = count[to];
      merge_moments(merged, mean[v * places + to], m2[v * places + to], count[from], mean[v * places + from],
                    m2[v * places + from]);
      total = merged;
    }
    count[to] = total;
  });
  if (!has_place || share.item_lane != 0 || channel >= channels) return;
  A* row = partials + static_cast<std::int64_t>(share.split) * 3 * channels + channel;
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    row[v] = mean[v * places + place];
    row[channels + v] = m2[v * places + place];
    row[2 * channels + v] = count[place];
  }
}

}  // namespace fusedsc::gpu
