/// What the joint pass of both pointwise gradients (pointwise_hopper_joint_kernel.h) needs of the weight, worked out by a
/// small kernel before it, as it will lie in block memory.
///
/// The forward pass made output = weight x, so g = grad_scale*grad_y + output_scale*output + offset leads to
///   grad_x = (grad_scale*weight)^T grad_y + (weight^T output_scale weight) x + weight^T offset
/// without a look at `output`. The first matrix is kept in 16 bits, the second, whose error would be the same at all
/// positions, as the sum of two of them. Both are multiplied by a power of two per channel, since the second is small.
#pragma once

#include "fusedsc/common/gpu/depthwise_work.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

/// Rows of kWide channels; so many outputs, a multiple of 64.
template <int kWide>
struct JointImage {
  static constexpr int kRowBytes = kWide * 2, kSquareBytes = kWide * kRowBytes;
  int rows = 0;

  FUSEDSC_HOST_DEVICE constexpr int first_square() const { return rows * kRowBytes; }  ///< behind the scaled weight
  FUSEDSC_HOST_DEVICE constexpr int second_square() const { return first_square() + kSquareBytes; }
  FUSEDSC_HOST_DEVICE constexpr int weight() const { return second_square() + kSquareBytes; }  ///< as it is
  FUSEDSC_HOST_DEVICE constexpr int vectors() const { return weight() + rows * kRowBytes; }
  /// Of vectors: what undoes the power of two; weight^T offset.
  FUSEDSC_HOST_DEVICE constexpr int bytes() const { return vectors() + 2 * kWide * 4; }
};

struct JointImageParameters {
  const void* weight = nullptr;
  std::int64_t weight_row = 0;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  int outputs = 0, channels = 0, rows = 0;
  unsigned char* image = nullptr;
};

/// A power of two that brings `value` to where float16 has the most room; 1 for types with more of it.
FUSEDSC_DEVICE float scale_to_large(float value, Float16) {
  const int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, value) >> 23 & 0xff);
  if (exponent == 0 || exponent == 255) return 1.0f;
  const int wanted = 127 + 14 + 127 - exponent;
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(least(wanted, 240) > 14 ? least(wanted, 240) : 14) << 23);
}
FUSEDSC_DEVICE float scale_to_large(float, BFloat16) { return 1.0f; }

/// Eight values in 16 bits, and what rounding has taken off them.
template <class T>
FUSEDSC_DEVICE void split(const float (&values)[8], Aligned<std::uint32_t, 4>& high, Aligned<std::uint32_t, 4>& low) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float first, second;
    high.elements[i] = to_bits(values[2 * i], values[2 * i + 1], T());
    to_floats(high.elements[i], first, second, T());
    low.elements[i] = to_bits(values[2 * i] - first, values[2 * i + 1] - second, T());
  }
}

/// Each block makes eight channels of the image.
template <class T, int kWide>
class JointImageMaker {
 public:
  static constexpr int kThreads = 512;
  static constexpr int memory_bytes() { return (kPartFloats + kSumFloats + kThreads / 32 * 8 + 8) * 4; }

  FUSEDSC_DEVICE static void run(const JointImageParameters& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int first = static_cast<int>(block_index()) * 8, run = static_cast<int>(block_index());
    const JointImage<kWide> image{p.rows};
    auto* parts = static_cast<float*>(block_memory());
    float *sums = parts + kPartFloats, *largest = sums + kSumFloats;
    const bool has = first < p.channels;
    const T* weight = static_cast<const T*>(p.weight) + first;

    // Sums over all outputs: a row per channel, and one of the offset.
    const int rows = p.channels + 1, all_parts = kThreads / rows, row = thread_index() % rows,
              part = thread_index() / rows;
    if (has && part < all_parts) {
      float own[8] = {};
#pragma unroll 4
      for (int e = part; e < p.outputs; e += all_parts) {
        float values[8];
        load<8>(weight + e * p.weight_row).widen(values);
        const float factor = row < p.channels ? at(p.output_scale, e) * to_float(weight[e * p.weight_row + row - first])
                                              : at(p.offset, e);
#pragma unroll
        for (int i = 0; i < 8; ++i) own[i] += factor * values[i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) parts[(part * rows + row) * 8 + i] = own[i];
    }
    block_barrier();
    for (int i = thread_index(); i < kSumFloats; i += kThreads) {
      float sum = 0;
      if (has && i < rows * 8) {
        for (int j = 0; j < all_parts; ++j) sum += parts[j * rows * 8 + i];
      }
      sums[i] = sum;
    }
    block_barrier();

    // The largest element of each channel.
    const int channel = thread_index() % 8;
    float most = 0;
    if (has) {
      for (int e = thread_index() / 8; e < p.outputs; e += kThreads / 8) {
        most = larger(most, p.grad_scale[e] * to_float(weight[e * p.weight_row + channel]));
      }
      for (int k = thread_index() / 8; k < p.channels; k += kThreads / 8) most = larger(most, sums[k * 8 + channel]);
    }
    most = larger(most, shuffle_xor(most, 8));
    most = larger(most, shuffle_xor(most, 16));
    if (thread_index() % 32 < 8) largest[thread_index() / 32 * 8 + channel] = most;
    block_barrier();
    float* scales = largest + kThreads / 32 * 8;
    if (thread_index() < 8) {
      for (int warp = 0; warp < kThreads / 32; ++warp) most = larger(most, largest[warp * 8 + channel]);
      const float scale = scale_to_large(most, T());
      scales[channel] = scale;
      auto* vectors = reinterpret_cast<float*>(p.image + image.vectors());
      vectors[first + channel] = 1.0f / scale;
      vectors[kWide + first + channel] = sums[p.channels * 8 + channel];
    }
    block_barrier();

    for (int e = thread_index(); e < p.rows; e += kThreads) {
      Aligned<std::uint32_t, 4> scaled = {}, raw = {};
      if (has && e < p.outputs) {
        float values[8];
        const auto words = load<8>(weight + e * p.weight_row);
        words.widen(values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] *= p.grad_scale[e] * scales[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          raw.elements[i] = words.words[i];
          scaled.elements[i] = to_bits(values[2 * i], values[2 * i + 1], T());
        }
      }
      const int place = place_of_run<JointImage<kWide>::kRowBytes>(e, run);
      put(p.image + place, scaled);
      put(p.image + image.weight() + place, raw);
    }
    for (int k = thread_index(); k < kWide; k += kThreads) {
      Aligned<std::uint32_t, 4> high = {}, low = {};
      if (has && k < p.channels) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums[k * 8 + i] * scales[i];
        split<T>(values, high, low);
      }
      const int place = place_of_run<JointImage<kWide>::kRowBytes>(k, run);
      put(p.image + image.first_square() + place, high);
      put(p.image + image.second_square() + place, low);
    }
  }

 private:
  static constexpr int kPartFloats = kThreads * 8, kSumFloats = (kWide + 1) * 8;

  FUSEDSC_DEVICE static float at(const float* vector, int i) { return vector != nullptr ? vector[i] : 0.0f; }
  FUSEDSC_DEVICE static float larger(float most, float value) {
    const float size = value < 0 ? -value : value;
    return size > most ? size : most;
  }
  FUSEDSC_DEVICE static void put(unsigned char* to, const Aligned<std::uint32_t, 4>& run) {
    *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to) = run;
  }
};

}  // namespace fusedsc::gpu::hopper
