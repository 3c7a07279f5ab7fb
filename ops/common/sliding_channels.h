/// Which input channels a filter of a sliding-channel convolution reads: the one place that knows, for the host and for
/// kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "fusedsc/common/host_device.h"
#include "fusedsc/common/status.h"

namespace fusedsc {

/// Wang et al., DSXplore, Algorithm 1. Filter o reads `width` channels from `first(o)` on, cyclically: its k-th weight
/// belongs to channel (first(o) + k) mod C. From one filter to the next the window slides by `step` channels, and the
/// filters o, o + cycle, o + 2*cycle... share one window.
///
/// What the paper leaves open:
/// - C need not be a multiple of groups: `width` is C / groups rounded down, and windows cycle through all C channels.
/// - One group: each window has every channel, beginning elsewhere. (Algorithm 1 run literally counts the first window
///   twice then, once as (0, C) and once as (0, 0).)
/// - `cycle` is what Algorithm 1 calls cyclic_dist: the first filter, if any, whose window is filter 0's, is filter
///   C / gcd(C, step).
struct SlidingChannels {
  std::int64_t channels = 0;  ///< C
  std::int64_t width = 0;     ///< of a window
  std::int64_t step = 0;      ///< at least 1, at most `width`
  std::int64_t cycle = 0;     ///< filters with different windows

  SlidingChannels() = default;
  /// Throws InvalidArgument where there is no such window: fewer channels than groups, or an overlap outside [0, 1).
  SlidingChannels(std::int64_t channels_, std::int64_t filters, std::int64_t groups, double overlap)
      : channels(channels_) {
    check(groups > 0, "groups: it is ", groups, "; it must be at least 1");
    check(groups <= channels, "groups: it is ", groups, ", but must not be more than the ", channels,
          " channels of x, of which each filter reads one in ", groups);
    check(overlap >= 0 && overlap < 1, "overlap: it is ", overlap,
          "; it must be at least 0 and less than 1, the part of its window that a filter shares with the next");
    width = channels / groups;
    // The integer step of Algorithm 1. It is never 0: the largest double below 1 times `width` is rounded to a number
    // below `width`.
    step = width - static_cast<std::int64_t>(overlap * static_cast<double>(width));
    cycle = std::min(filters, channels / std::gcd(channels, step));
  }

  /// The channel of a filter's first weight.
  FUSEDSC_HOST_DEVICE std::int64_t first(std::int64_t filter) const { return filter % cycle * step % channels; }

  /// Which of a filter's weights belongs to `channel`, from the window's `first` on; `width` or more: none.
  FUSEDSC_HOST_DEVICE std::int64_t place(std::int64_t first, std::int64_t channel) const {
    return channel >= first ? channel - first : channel - first + channels;
  }
};

}  // namespace fusedsc
