/// Depthwise convolution of small problems on GPUs, weight and bias gradients: see depthwise_direct.h. A thread has a
/// few outputs below each other at a time, and the sums of all taps in registers; there are as many threads as there
/// is work for, so that few have more than one such item.
///
/// Sums are added up within 32 threads by exchange, then in shared memory, and those of several blocks by a second
/// kernel; always in the same order.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_weight_results.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct.h"

namespace fusedsc::gpu {

/// How the threads of a launch share its outputs out: some groups of 32 threads are a set, which has the same channels.
struct DirectWeightWork {
  int sets = 1;                 ///< of a block
  int set_groups = 1;           ///< of a set, of 32 threads
  std::uint32_t items = 0;      ///< columns of all groups of rows of all images
  std::uint32_t item_step = 0;  ///< those of all blocks with the same channels
  Divisor by_set_groups, columns, row_groups;
  Divisor by_splits;  ///< blocks with the same channels, one after the other

  FUSEDSC_HOST_DEVICE int groups() const { return sets * set_groups; }
  FUSEDSC_HOST_DEVICE int threads() const { return groups() * 32; }
};

struct DepthwiseDirectWeightParameters : DepthwiseWeightResults {
  ConstCompactTensor x, grad_y;
  void* partials = nullptr;  ///< [split][tap..., bias][channel], where a second kernel adds them up
  DirectWeightWork work;
  int channels = 0;
  int height = 0, width = 0, grad_height = 0, grad_width = 0;  ///< of images of x and of grad_y
  int stride_height = 1, stride_width = 1;
  int padding_top = 0, padding_left = 0;
};

/// kStride: from one of a thread's rows to the next; there may be one. kLanes: threads with neighbouring channels,
/// kChannels each; where rows are what lies side by side in memory, 1 and 1.
template <class T, int kKernel, int kStride, int kChannels, int kRows, int kLanes>
class DepthwiseDirectWeight {
 public:
  using A = Accumulator<T>;
  static constexpr int kTaps = kKernel * kKernel, kSums = (kTaps + 1) * kChannels;
  static constexpr int kSetSums = kSums * kLanes;  ///< [tap..., bias][channel of a thread][lane]
  static constexpr int kLoads = kRows + ((kRows - 1) * kStride + kKernel) * kKernel;  ///< for an item

  FUSEDSC_DEVICE static void run(const DepthwiseDirectWeightParameters& p) {
    let_next_kernel_start();
    DepthwiseDirectWeight(p).run();
  }

 private:
  using X = DirectWindow<T, kChannels, (kRows - 1) * kStride + kKernel, kKernel>;
  using GradY = DirectWindow<T, kChannels, kRows, 1>;

  FUSEDSC_DEVICE explicit DepthwiseDirectWeight(const DepthwiseDirectWeightParameters& p) : p_(p) {
    const int thread = static_cast<int>(thread_index()), lane = thread % 32;
    std::uint32_t part = static_cast<std::uint32_t>(thread) / 32;
    split_ = block_index();
    first_set_ = static_cast<int>(p.work.by_splits.divide(split_)) * p.work.sets;
    const int set = first_set_ + static_cast<int>(p.work.by_set_groups.divide(part));
    channel_ = (set * kLanes + lane % kLanes) * kChannels;
    const int item_lanes = p.work.set_groups * (32 / kLanes);
    item_ = split_ * static_cast<std::uint32_t>(item_lanes) + part * (32 / kLanes) +
            static_cast<std::uint32_t>(lane / kLanes);
    if (channel_ >= p.channels) item_ = p.work.items;
  }

  FUSEDSC_DEVICE void aim() {
    std::uint32_t column = item_ < p_.work.items ? item_ : 0, line = p_.work.columns.divide(column);
    const int image = static_cast<int>(p_.work.row_groups.divide(line));
    const int channel = channel_ < p_.channels ? channel_ : 0;
    row_ = static_cast<int>(line) * kRows;
    x_.aim(p_.x, p_.x.offset(image, channel), row_ * p_.stride_height - p_.padding_top,
           static_cast<int>(column) * p_.stride_width - p_.padding_left, 1, p_.height, p_.width);
    grad_y_.aim(p_.grad_y, p_.grad_y.offset(image, channel), row_, static_cast<int>(column), 1, p_.grad_height,
                p_.grad_width);
  }

  FUSEDSC_DEVICE void run() {
    aim();
    keep_order(x_.bits() | grad_y_.bits());
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = 0;
#pragma unroll 1
    while (item_ < p_.work.items) {
      grad_y_.load(p_.grad_y);
      x_.load(p_.x);
      multiply();
      item_ += p_.work.item_step;
      if (item_ < p_.work.items) aim();
    }
    add_up();
  }

  FUSEDSC_DEVICE void multiply() {
    x_.mask();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row_ + r >= p_.grad_height) continue;  // what is masked is 0, and x may be no number
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const A grad = grad_y_.at(r, 0, c);
        sums_[kTaps * kChannels + c] += grad;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          sums_[tap * kChannels + c] += x_.at(r * kStride + tap / kKernel, tap % kKernel, c) * grad;
        }
      }
    }
  }

  FUSEDSC_DEVICE void add_up() {
    constexpr int kMost = most_shared_sums(kSums, 16, kLanes);
    A* memory = static_cast<A*>(shared_memory());
    const int thread = static_cast<int>(thread_index()), lane = thread % 32;
    int count = kSums;
    const int first = share_sums<16, kLanes>(sums_, count);
    A* own = memory + thread / 32 * kSetSums + first * kLanes + lane % kLanes;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < count) own[i * kLanes] = sums_[i];
    }
    block_barrier();
    const int all = p_.work.sets * kSetSums;
#pragma unroll 1
    for (int i = thread; i < all; i += p_.work.threads()) {
      const int set = i / kSetSums, sum = i - set * kSetSums;
      const A* from = memory + set * p_.work.set_groups * kSetSums + sum;
      A total = 0;
#pragma unroll 4
      for (int group = 0; group < p_.work.set_groups; ++group) total += from[group * kSetSums];
      leave(set, sum, total);
    }
  }

  /// Sum number i of a set of the block.
  FUSEDSC_DEVICE void leave(int set, int i, A total) const {
    const int tap = i / (kChannels * kLanes);
    const int channel = ((first_set_ + set) * kLanes + i % kLanes) * kChannels + i / kLanes % kChannels;
    if (channel >= p_.channels) return;
    if (p_.partials != nullptr) {
      const std::int64_t row = static_cast<std::int64_t>(split_) * (kTaps + 1) + tap;
      static_cast<A*>(p_.partials)[row * p_.channels + channel] = total;
    } else {
      leave_weight_gradient<T>(p_, kTaps, kKernel, tap, channel, total);
    }
  }

  const DepthwiseDirectWeightParameters& p_;
  std::uint32_t split_;
  int first_set_, channel_;  ///< of the block; of the thread
  std::uint32_t item_;
  int row_ = 0;
  X x_;
  GradY grad_y_;
  A sums_[kSums];
};

}  // namespace fusedsc::gpu
