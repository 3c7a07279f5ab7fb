/// What the second kernels of pointwise gradients on Hopper GPUs have in common: threads that share an element's
/// splits add up, in a fixed order, what these have left in memory. It takes latency alone, so that places are worked
/// out before the first kernel has ended, and a thread's loads do not wait for each other.
#pragma once

#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu::hopper {

/// Of four neighbouring sums, the splits of one thread: number `lane` and every `lanes` further.
class SplitsOfThread {
 public:
  /// first: of split 0; step: floats from a split to the next; splits: 0 for threads without a four. A thread's own are
  /// less than 4 GiB apart.
  FUSEDSC_DEVICE SplitsOfThread(const float* first, std::int64_t step, int splits, int lane, int lanes)
      : from_(reinterpret_cast<const unsigned char*>(first + lane * step)),
        step_(static_cast<std::uint32_t>(lanes * step * 4)),
        left_(splits - lane),
        lanes_(lanes) {}

  /// What keep_order is to be told.
  FUSEDSC_DEVICE std::uint32_t place() const {
    return (upper_word(from_) | step_ | static_cast<std::uint32_t>(left_)) & 0x7fffffffu;
  }

  /// Of the fours so many bytes behind the first.
  FUSEDSC_DEVICE Aligned<float, 4> sum(int behind = 0) const {
    using Four = Aligned<float, 4>;
    constexpr int kAtOnce = 8;  // loads under way: hardly any has more
    Four sum = {};
    const unsigned char* from = from_ + behind;
#pragma unroll 1
    for (int left = left_; left > 0; left -= kAtOnce * lanes_) {
      Four parts[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i * lanes_ < left) parts[i] = *reinterpret_cast<const Four*>(from + i * static_cast<std::size_t>(step_));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.elements[j] += parts[i].elements[j];
      }
      from += kAtOnce * static_cast<std::size_t>(step_);
    }
    return sum;
  }

 private:
  const unsigned char* from_;
  std::uint32_t step_;
  int left_, lanes_;
};

}  // namespace fusedsc::gpu::hopper
