/// The weight of PointwiseGradients (pointwise_hopper_k_resident_kernel.h) in shared memory: as it is, or twice, times
/// the scales of the gradient prologue.
#pragma once

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_windows.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_thread_copied.h"

namespace fusedsc::gpu::hopper {

template <class Block>
class PointwiseGradientsWeight : public PointwiseGradientsWindows<Block> {
 protected:
  using Windows = PointwiseGradientsWindows<Block>;
  using Block::first_column_, Block::p_, Block::vectors, Block::weight_barrier, Block::weight_tile;
  using Block::kChannels, Block::kColumns, Block::kDepth, Block::kGroups, Block::kHasOutput, Block::kLanes,
      Block::kParts, Block::kProductThreads, Block::kScales, Block::kScratch, Block::kSharing, Block::kWeightBytes,
      Block::kWindows;
  using typename Windows::T;

  using Windows::Windows;

  /// Where there is nothing to be done to it.
  FUSEDSC_DEVICE bool copies_weight() const {
    return !kHasOutput && kWindows == 0 && p_.fold == 1 && p_.weight.is_dense();
  }

  /// By one thread.
  FUSEDSC_DEVICE void start_weight() const {
    expect(weight_barrier(), kSharing * kWeightBytes);
#pragma unroll 1
    for (int i = 0; i < kSharing; ++i) {
#pragma unroll 1
      for (int k = 0; k < kDepth; k += 32) {
        start_load(weight_tile(i) + k * kChannels * 2, p_.weight_tiles, first_column_ + i * kChannels, k,
                   weight_barrier());
      }
    }
  }

  /// By all groups but the copying one.
  FUSEDSC_DEVICE void prepare() {
    if (copies_weight()) return wait(weight_barrier(), 0);
    if constexpr (kHasOutput) {
      const int column = thread_index() % kColumns;
      scale_weight(p_.fold == 1 ? first_column_ + column : column % p_.channels, column, thread_index() / kColumns);
    } else if constexpr (kWindows > 0) {
      this->lay_out_windows(weight_tile(0));
    } else {
#pragma unroll
      for (int i = 0; i < kSharing; ++i) lay_out(weight_tile(i), first_column_ + i * kChannels);
    }
    publish();
    group_barrier<kProductThreads>(kGroups);
  }

  /// As it is.
  FUSEDSC_DEVICE void lay_out(unsigned char* to, int first_column) const {
    if (p_.fold == 1) {
      lay_out_weight<T, 32, 128>(p_.weight, {to, 32 * 128, 0, 32, first_column, 0, kDepth / 32}, thread_index(),
                                 kProductThreads);
      return;
    }
    constexpr int kRuns = kChannels / 8, kItems = (kDepth * kRuns + kProductThreads - 1) / kProductThreads;
    Aligned<std::uint32_t, 4> words[kItems] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kProductThreads, column = item % kRuns * 8, position = column / p_.channels;
      const int output = item / kRuns - position * p_.outputs;
      if (item >= kDepth * kRuns || output < 0 || output >= p_.outputs) continue;
      const int first = p_.weight.first(output), channel = column % p_.channels;
      words[i] = p_.weight.template in_runs<T>() ? p_.weight.template run<T, true>(output, first, channel)
                                                 : p_.weight.template run<T, false>(output, first, channel);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kProductThreads;
      if (item >= kDepth * kRuns) break;
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to + place_of_run<128>(item / kRuns, item % kRuns)) = words[i];
    }
  }

  /// The weight, times either scale of the gradient prologue and a power of two that keeps both from vanishing; and its
  /// product with the offset.
  FUSEDSC_DEVICE void scale_weight(int channel, int column, int lane) {
    const int thread = thread_index(), position = p_.fold == 1 ? 0 : column / p_.channels;
    const bool has = channel < p_.channels;
    float *scales = vectors() + kScales, *scratch = vectors() + kScratch;
    for (int k = thread; k < kDepth; k += kProductThreads) {
      const bool exists = k < p_.fold * p_.outputs;
      const int output = k % p_.outputs;
      scales[k] = exists ? p_.grad_scale[output] : 0.0f;
      scales[kDepth + k] = exists ? p_.output_scale[output] : 0.0f;
      scales[2 * kDepth + k] = exists ? p_.offset[output] : 0.0f;
    }
    constexpr int kItems = (kDepth + kLanes - 1) / kLanes;
    float weights[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes, output = k - position * p_.outputs;
      const bool exists = has && output >= 0 && output < p_.outputs && k < kDepth;
      const std::int64_t offset = exists ? p_.weight.offset(output, p_.weight.first(output), channel) : -1;
      weights[i] = offset >= 0 ? to_float(static_cast<const T*>(p_.weight.data)[offset]) : 0.0f;
    }
    group_barrier<kProductThreads>(kGroups);
    float constant = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
      constant += weights[i] * scales[2 * kDepth + k];
      largest = larger(larger(largest, weights[i] * scales[k]), weights[i] * scales[kDepth + k]);
    }
    scratch[lane * kColumns + column] = constant;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) largest = larger(largest, shuffle_xor(largest, distance));
    if (thread % 32 == 0) scratch[kLanes * kColumns + thread / 32] = largest;
    group_barrier<kProductThreads>(kGroups);
    for (int i = 0; i < kProductThreads / 32; ++i) largest = larger(largest, scratch[kLanes * kColumns + i]);
    // A power of two, so that the largest becomes at least 2^12: all exponents but those of denormals, of infinities
    // and beyond 2^100 or below 2^-100, where nothing is to be saved.
    int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, largest) >> 23) - 127;
    exponent = exponent > -100 && exponent < 100 ? 12 - exponent : 0;
    const auto power = [](int e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); };
    unscale_ = power(-exponent);
    const float up = power(exponent);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        unsigned char* to = weight_tile(column / kChannels) +
                            place_of_run<128>(part * kDepth + k, column % kChannels / 8) + column % 8 * 2;
        *reinterpret_cast<std::uint16_t*>(to) = to_bits(weights[i] * (scales[part * kDepth + k] * up), T());
      }
    }
    if (lane != 0) return;
    for (int i = 1; i < kLanes; ++i) constant += scratch[i * kColumns + column];
    vectors()[column] = constant;
  }

  FUSEDSC_DEVICE static float larger(float a, float b) {
    const float magnitude = b < 0 ? -b : b;
    return a < magnitude ? magnitude : a;
  }

  float unscale_ = 1;  ///< what the weight has been multiplied by, inverted
};

}  // namespace fusedsc::gpu::hopper
