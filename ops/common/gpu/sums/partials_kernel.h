/// The second pass of sums over a whole tensor: the blocks' partial results, one row per split, put together in a
/// fixed order. A few threads share an element.
#pragma once

#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {

inline constexpr int kPartialsThreads = 256;

/// Splits whose loads a thread has under way at once: most have no more; 32 lanes have as many as an H200's
/// multiprocessors. Compilers unroll a loop of which they do not know how often it runs such that a rest of it goes one
/// by one, here all of it.
inline constexpr int kSplitsAtOnce = 5;

/// Threads per element: enough to have the loads of many splits under way at once.
inline int partials_lanes(int splits) {
  int lanes = 1;
  while (lanes < 32 && lanes * 4 < splits) lanes *= 2;  // 32 is no more than any wave has
  return lanes;
}

struct SumPartialsParameters {
  const void* partials = nullptr;  ///< [split][tap of weight..., bias or both gradient sums][channel]
  int splits = 0, taps = 0, kernel_width = 1, rows = 0, channels = 0, lanes = 1;
  Divisor by_elements, by_channels;                ///< elements of a block
  DeviceTensor weight;                             ///< [channel, 1, tap / kernel_width, tap % kernel_width], or none
  void* bias = nullptr;                            ///< for the row after the taps; or none
  void *grad = nullptr, *grad_centered = nullptr;  ///< for the two rows after the taps; or none
  GradientNormaliserParameters normaliser;         ///< of these
  /// The next kernel of the stream may take its places meanwhile. Not where it is one of the large ones, whose blocks
  /// would be spread unevenly over the multiprocessors that are not taken yet.
  bool lets_next_start = false;

  SumPartialsParameters() = default;
  /// Of gradient sums alone, or behind what is set afterwards; x: whose gradient's they are.
  SumPartialsParameters(const GradientSums& sums, const ConstTensorView& x)
      : grad(sums.grad.data), grad_centered(sums.grad_times_centered.data), normaliser(sums, x) {}

  /// A thread that adds up the one adds up the other too.
  FUSEDSC_HOST_DEVICE bool has_pairs() const { return rows == taps + 2; }
  FUSEDSC_HOST_DEVICE std::int64_t elements() const { return std::int64_t{rows - (has_pairs() ? 1 : 0)} * channels; }
};

/// What is worked out before the kernel before is waited for would be worked out behind that, were it not for
/// keep_order; a kernel that little depends on takes about as long as its longest chain of instructions.
template <class T, bool kHasPairs>
FUSEDSC_DEVICE void sum_partials(const SumPartialsParameters& p) {
  using A = Accumulator<T>;
  // Neighbouring threads read neighbouring elements, as far as there are lanes to spare.
  const auto thread = static_cast<std::uint32_t>(thread_index());
  const std::uint32_t lanes = static_cast<std::uint32_t>(p.lanes), elements = kPartialsThreads / lanes;
  const std::uint32_t lane = p.by_elements.quotient(thread);
  std::uint32_t element = block_index() * elements + thread - lane * elements;
  const bool exists = element < static_cast<std::uint32_t>(p.elements());
  if (!exists) element = 0;
  const bool is_pair = kHasPairs && element >= static_cast<std::uint32_t>(p.taps * p.channels);
  const int row = static_cast<int>(p.by_channels.quotient(element)),
            channel = static_cast<int>(element) - row * p.channels;
  const std::int64_t step = std::int64_t{p.rows} * p.channels, lanes_step = p.lanes * step;
  std::int64_t next = kSplitsAtOnce * lanes_step;
  hide_origin(next);
  const A* places[kSplitsAtOnce];
  std::uint32_t all = static_cast<std::uint32_t>(next);
#pragma unroll
  for (int i = 0; i < kSplitsAtOnce; ++i) {
    places[i] = static_cast<const A*>(p.partials) + (lane * step + element + i * lanes_step);
    hide_origin(places[i]);
    all |= upper_word(places[i]);
  }
  T* to = nullptr;
  if (!is_pair && row >= p.taps) {
    if (p.bias != nullptr) to = static_cast<T*>(p.bias) + channel;
  } else if (!is_pair && p.weight.data != nullptr) {
    to = elements_of<T>(p.weight) + p.weight.offset(channel, 0, row / p.kernel_width, row % p.kernel_width);
  }
  const int splits = exists ? p.splits : 0;
  keep_order((all | upper_word(to) | static_cast<std::uint32_t>(splits)) & 0x7fffffffu);
  wait_for_previous_kernel();
  if (p.lets_next_start) let_next_kernel_start();
  OwnGradientNormaliser<A> own;
  if (is_pair && exists && lane == 0) own = {p.normaliser, channel};
  A sum = 0, centered = 0;
#pragma unroll 1
  for (int first = static_cast<int>(lane); first < splits; first += p.lanes * kSplitsAtOnce) {
    A parts[kSplitsAtOnce], centered_parts[kSplitsAtOnce];
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const bool is_split = first + i * p.lanes < splits;
      parts[i] = is_split ? *places[i] : A(0);
      if (kHasPairs) centered_parts[i] = is_split && is_pair ? places[i][p.channels] : A(0);
    }
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      sum += parts[i];
      if (kHasPairs) centered += centered_parts[i];
      places[i] += next;
    }
  }
  A *sums = static_cast<A*>(shared_memory()), *centered_sums = sums + kPartialsThreads;
  sums[thread] = sum;
  if (kHasPairs) centered_sums[thread] = centered;
  block_barrier();
  if (!exists || lane != 0) return;
  for (std::uint32_t other = 1; other < lanes; ++other) {
    sum += sums[other * elements + thread];
    if (kHasPairs) centered += centered_sums[other * elements + thread];
  }
  if (is_pair) {
    put(p.grad, channel, sum);
    put(p.grad_centered, channel, centered);
    normalise(p.normaliser, own, channel, sum, centered);
  }
  if (to != nullptr) from_accumulator(sum, *to);
}

inline constexpr int kMergeThreads = 512;

/// Threads per channel: enough that each has few splits, all of them under way at once. The others read the
/// neighbouring channels of the same splits: at least as many as a sector of memory has.
inline int merge_lanes(int splits) {
  int lanes = 1;
  while (lanes < 64 && lanes * 2 < splits) lanes *= 2;
  return lanes;
}

struct MergeMomentsParameters {
  const void* partials = nullptr;  ///< [split][mean, m2, count][channel]
  int splits = 0, channels = 0, lanes = 1;
  Divisor by_channels;  ///< of a block
  void *mean = nullptr, *m2 = nullptr;
  NormaliserParameters normaliser;
  bool lets_next_start = false;  ///< see SumPartialsParameters::lets_next_start
};

template <class A>
FUSEDSC_DEVICE void merge_moments_of_splits(const MergeMomentsParameters& p) {
  constexpr int kFew = 8;  // lanes that the last step adds up
  const auto thread = static_cast<std::uint32_t>(thread_index());
  const int block_channels = kMergeThreads / p.lanes, lane = static_cast<int>(p.by_channels.quotient(thread));
  const int channel =
      static_cast<int>(block_index()) * block_channels + static_cast<int>(thread) - lane * block_channels;
  // Sums of differences from the first split's mean: no divisions, and nothing cancels, as the means lie close
  // together.
  A count = 0, sum = 0, squares = 0, pivot = 0;
  const bool is_channel = channel < p.channels;
  const A* from = static_cast<const A*>(p.partials) + (is_channel ? channel : 0);
  const std::int64_t row_step = std::int64_t{3} * p.channels;
  // Of the next splits; those that do not exist do as one that does.
  const A* rows[kSplitsAtOnce];
  std::uint32_t places = 0;
  const auto aim = [&](int first) {
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const int split = first + i * p.lanes;
      rows[i] = from + (split < p.splits ? split : 0) * row_step;
      places |= upper_word(rows[i]);
    }
  };
  aim(lane);
  keep_order(places);
  wait_for_previous_kernel();
  if (p.lets_next_start) let_next_kernel_start();
  const OwnNormaliser<A> own(p.normaliser, is_channel ? channel : 0);
  if (is_channel) {
    pivot = from[0];
#pragma unroll 1
    for (int first = lane; first < p.splits; first += p.lanes * kSplitsAtOnce) {
      A means[kSplitsAtOnce], m2s[kSplitsAtOnce], counts_of[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) {
        const bool exists = first + i * p.lanes < p.splits;
        means[i] = rows[i][0];
        m2s[i] = exists ? rows[i][p.channels] : A(0);
        counts_of[i] = exists ? rows[i][2 * p.channels] : A(0);
      }
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) {
        const A values = counts_of[i], distance = values > A(0) ? means[i] - pivot : A(0);
        count += values;
        sum += values * distance;
        squares += m2s[i] + values * distance * distance;
      }
      aim(first + p.lanes * kSplitsAtOnce);
    }
  }
  A* counts = static_cast<A*>(shared_memory()) + thread;
  A *sums = counts + kMergeThreads, *all_squares = sums + kMergeThreads;
  const auto leave = [&] {
    *counts = count;
    *sums = sum;
    *all_squares = squares;
    block_barrier();
  };
  const auto add = [&](int first, int end, int step) {
    for (int other = first; other < end; other += step) {
      const int place = (other - lane) * block_channels;
      count += counts[place];
      sum += sums[place];
      squares += all_squares[place];
    }
  };
  leave();
  if (p.lanes > kFew) {
    if (lane < kFew) add(lane + kFew, p.lanes, kFew);
    block_barrier();  // all have read what is about to change
    leave();
  }
  if (!is_channel || lane != 0) return;
  add(1, p.lanes < kFew ? p.lanes : kFew, 1);
  const A distance = sum / (count > A(0) ? count : A(1));
  const A mean = pivot + distance, m2 = propagating_max(squares - sum * distance, A(0));
  put(p.mean, channel, mean);
  put(p.m2, channel, m2);
  if (p.normaliser.invstd != nullptr) normalise(p.normaliser, own, channel, mean, m2);
}

}  // namespace fusedsc::gpu
