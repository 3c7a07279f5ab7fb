/// A window's weights, as the products of depthwise kernels of patches for Hopper GPUs want them: of 4 columns of x and
/// a pair of channels a lane has, for group i of columns, the tap kw = t + 4i - g / 2 * stride of channel g % 2 in that
/// half of a word, if there is such a tap, and zeros.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_parameters.h"

namespace fusedsc::gpu::hopper {

/// Word by word, ready for products.
template <class T, int kKernel, int kStride>
class DepthwisePatchesWeights {
 public:
  static constexpr int kPairs = patches_pairs(kKernel);  ///< of channels
  static constexpr int kGroups = patch_groups(kKernel, kStride);

  /// When the kernel before has ended; `places`: what else is to be worked out before. channel: the warp's first;
  /// beyond the last one weights are zeros. In shared memory there are p.weight_bytes for what registers do not hold.
  FUSEDSC_DEVICE void load(const DepthwisePatchesParameters& p, int channel, std::uint32_t places, void* /*memory*/) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, high = g % 2;
    const bool exists = channel < p.channels;
    const T* columns[kGroups];
    bool are_taps[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int kw = t + 4 * i - g / 2 * kStride;
      are_taps[i] = exists && kw >= 0 && kw < kKernel;
      columns[i] = elements_of<T>(p.weight) + (exists ? channel + high : 0) * p.weight.image +
                   (are_taps[i] ? kw : 0) * static_cast<int>(p.weight.column);
      places |= upper_word(columns[i]);
    }
    keep_order(places);
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const std::uint32_t value =
              columns[i][(exists ? 2 * pair : 0) * p.weight.image + kh * static_cast<int>(p.weight.row)].bits;
          words_[kh][pair][i] = are_taps[i] ? value << 16 * high : 0;
        }
      }
    }
  }

  /// To be asked for once for a row of x, number `phase` of those that a row of outputs moves on by.
  struct Fetched {};
  FUSEDSC_DEVICE Fetched fetch(int /*phase*/) const { return {}; }
  FUSEDSC_DEVICE std::uint32_t word(const Fetched&, int kh, int pair, int i) const { return words_[kh][pair][i]; }

 private:
  std::uint32_t words_[kKernel][kPairs][kGroups];
};

/// The taps alone, two to a word, each put where a product wants it when it comes to that: where registers are few. Of
/// a row of a window a lane has the tap kw = (t - g / 2 * stride) % 4, in whichever group, and of 5 also the one 4
/// behind. Every second row of 5x5 windows, which is every second row of x that wants it, is in shared memory, where
/// each thread has its own.
template <class T, int kKernel, int kStride>
class DepthwisePackedWeights {
 public:
  static constexpr int kPairs = 4;
  static constexpr int kGroups = patch_groups(kKernel, kStride);
  static_assert(kKernel == 3 || kStride == 2);
  static constexpr int kKeptRows = kKernel == 5 ? 2 : 0;  ///< in shared memory
  static constexpr int kTaps = (kKernel + 3) / 4;         ///< of a row of a window that a lane has
  using Row = Aligned<std::uint32_t, kPairs * kTaps / 2>;
  struct Fetched {
    Row rows[kKeptRows + 1];
  };

  /// Of a block of so many warps that compute.
  static constexpr int kept_bytes(int warps) { return warps * kKeptRows * 32 * static_cast<int>(sizeof(Row)); }

  /// As above.
  FUSEDSC_DEVICE void load(const DepthwisePatchesParameters& p, int channel, std::uint32_t places, void* memory) {
    kept_ = static_cast<Row*>(memory) + thread_index() / 32 * 32 * kKeptRows + thread_index() % 32;
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, high = g % 2;
    const int kw = (t - g / 2 * kStride) & 3, first_group = (kw - t + g / 2 * kStride) / 4;
    const bool exists = channel < p.channels;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int way = 0; way < kWays; ++way) {
        const int tap = i - first_group, half = kWays == 1 ? tap : way;
        const bool is_tap = tap >= 0 && tap < kTaps;
        const std::uint32_t bytes = !is_tap ? kNothing : half == 0 ? kLow : kHigh;
        orders_[i][way] = high == 0 ? kNothing << 8 | bytes : bytes << 8 | kNothing;
      }
    }
    const T* columns[kTaps];
    bool are_taps[kTaps];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      are_taps[tap] = exists && kw + 4 * tap < kKernel;
      columns[tap] = elements_of<T>(p.weight) + (exists ? channel + high : 0) * p.weight.image +
                     (are_taps[tap] ? kw + 4 * tap : 0) * static_cast<int>(p.weight.column);
      places |= upper_word(columns[tap]);
    }
    keep_order(places);
    wait_for_previous_kernel();
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
      Row row;
#pragma unroll
      for (int i = 0; i < kRowTaps; i += 2) {
        std::uint32_t taps[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int pair = (i + half) / kTaps, tap = (i + half) % kTaps;
          const std::uint32_t value =
              columns[tap][(exists ? 2 * pair : 0) * p.weight.image + kh * static_cast<int>(p.weight.row)].bits;
          taps[half] = are_taps[tap] ? value : 0;
        }
        row.elements[i / 2] = taps[0] | taps[1] << 16;
      }
      if (is_kept(kh)) kept_[kh / 2 * 32] = row;
      else rows_[kh] = row;
    }
  }

  FUSEDSC_DEVICE Fetched fetch(int phase) const {
    Fetched fetched;
#pragma unroll
    for (int i = 0; i < kKeptRows; ++i) {
      if (phase == 1) fetched.rows[i] = kept_[i * 32];
    }
    return fetched;
  }
  FUSEDSC_DEVICE std::uint32_t word(const Fetched& fetched, int kh, int pair, int i) const {
    const Row& row = is_kept(kh) ? fetched.rows[kh / 2] : rows_[kh];
    return reordered_here(row.elements[pair * kTaps / 2], orders_[i][pair % kWays]);
  }

 private:
  static constexpr int kWays = 2 / kTaps;  ///< in which a group's tap may lie in its word
  static constexpr int kRowTaps = kPairs * kTaps;
  /// Of two bytes of a word: its lower ones, its upper ones, zeros.
  static constexpr std::uint32_t kLow = 0x10, kHigh = 0x32, kNothing = 0x44;

  static FUSEDSC_DEVICE constexpr bool is_kept(int kh) { return kKeptRows > 0 && kh % 2 == 1; }

  Row rows_[kKernel];
  Row* kept_;                             ///< in shared memory, 32 from one to the next
  std::uint32_t orders_[kGroups][kWays];  ///< of bytes, for a product's word
};

}  // namespace fusedsc::gpu::hopper
