/// What the N-resident pass of both pointwise gradients (pointwise_hopper_n_resident_kernel.h) needs of the weight,
/// worked out by a small kernel before it, as it will lie in shared memory.
///
/// The forward pass made output = weight x, so g = grad_scale*grad_y + output_scale*output + offset leads to
///   grad_x = (grad_scale*weight)^T grad_y + (weight^T output_scale weight) x + weight^T offset
/// without a look at `output`. The first matrix is kept in 16 bits, the second, whose error would be the same at all
/// positions, as the sum of two of them. Both are multiplied by a power of two per channel, since the second is small.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

/// Where what lies in an image, in bytes.
struct PrepackedWeights {
  int rows = 0, square_rows = 0;  ///< of the weight and of the squares; those beyond the ends are zero
  int first_square = 0, second_square = 0;
  int vectors = 0;  ///< what undoes the power of two; weight^T offset
  int bytes = 0;

  /// The scaled weight, then the rest, rows of `row_bytes`.
  FUSEDSC_HOST_DEVICE static constexpr PrepackedWeights of(int rows, int square_rows, int row_bytes) {
    PrepackedWeights image;
    image.rows = rows;
    image.square_rows = square_rows;
    image.first_square = rows * row_bytes;
    image.second_square = image.first_square + square_rows * row_bytes;
    image.vectors = image.second_square + square_rows * row_bytes;
    image.bytes = image.vectors + 2 * row_bytes * 2;  // a float per channel
    return image;
  }
};

/// Images of all channels lie one behind the other.
struct PrepackParameters {
  const void* weight = nullptr;
  std::int64_t weight_row = 0;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  int outputs = 0, channels = 0;
  int columns = 0;  ///< channels of an image; the next one has the next ones
  PrepackedWeights image;
  unsigned char* to = nullptr;
};

/// A power of two that brings `value` to where float16 has the most room; 1 for types with more of it.
FUSEDSC_DEVICE float scale_to_large(float value, Float16) {
  const int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, value) >> 23 & 0xff);
  if (exponent == 0 || exponent == 255) return 1.0f;
  const int wanted = 127 + 14 + 127 - exponent;
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(least(wanted, 240) > 14 ? least(wanted, 240) : 14) << 23);
}
FUSEDSC_DEVICE float scale_to_large(float, BFloat16) { return 1.0f; }

/// Each block makes kRun channels of an image with rows of kWide.
template <class T, int kMostChannels, int kWide>
class WeightPrepacker {
 public:
  static constexpr int kThreads = 1024, kRun = 2;
  static constexpr int memory_bytes() { return (kPartFloats + kSumFloats + (kWarps + 1) * kRun) * 4; }

  FUSEDSC_DEVICE static void run(const PrepackParameters& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    WeightPrepacker maker(p);
    maker.sum_outputs();
    maker.find_scales();
    maker.write_weight();
    maker.write_squares();
  }

 private:
  static constexpr int kWarps = kThreads / 32, kPartFloats = kThreads * 4 * kRun,
                       kSumFloats = (kMostChannels + 1) * kRun;
  using Run = Vector<T, kRun>;

  FUSEDSC_DEVICE explicit WeightPrepacker(const PrepackParameters& p)
      : p_(p),
        first_(static_cast<int>(block_index()) * kRun),
        column_(first_ % p.columns),
        exists_(first_ < p.channels),
        weight_(static_cast<const T*>(p.weight) + first_),
        to_(p.to + static_cast<std::int64_t>(first_ / p.columns) * p.image.bytes),
        parts_(static_cast<float*>(shared_memory())),
        sums_(parts_ + kPartFloats),
        largest_(sums_ + kSumFloats),
        scales_(largest_ + kWarps * kRun) {}

  /// Rows of the second matrix, and behind them one of the offset: sums over all outputs. A thread has four rows.
  FUSEDSC_DEVICE void sum_outputs() {
    const int rows = p_.channels + 1, fours = p_.channels / 4 + 1, parts = kThreads / fours,
              four = thread_index() % fours, part = thread_index() / fours;
    const bool is_offset = four * 4 == p_.channels;
    if (exists_ && part < parts) {
      const float* factors = is_offset ? p_.offset : p_.output_scale;
      float own[4][kRun] = {};
#pragma unroll 8
      for (int output = part; output < p_.outputs; output += parts) {
        float values[kRun], row_values[4];
        const float factor = factors != nullptr ? factors[output] : 0.0f;
        const T* from = weight_ + output * p_.weight_row;
        load<kRun>(from).widen(values);
        load<4>(is_offset ? from - first_ : from - first_ + four * 4).widen(row_values);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
          const float row_factor = is_offset ? factor : factor * row_values[row];
#pragma unroll
          for (int i = 0; i < kRun; ++i) own[row][i] += row_factor * values[i];
        }
      }
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        if (is_offset && row > 0) continue;
#pragma unroll
        for (int i = 0; i < kRun; ++i) parts_[(part * rows + four * 4 + row) * kRun + i] = own[row][i];
      }
    }
    block_barrier();
    for (int i = thread_index(); i < kSumFloats; i += kThreads) {
      float sum = 0;
      if (exists_ && i < rows * kRun) {
        for (int j = 0; j < parts; ++j) sum += parts_[j * rows * kRun + i];
      }
      sums_[i] = sum;
    }
    block_barrier();
  }

  /// By the largest element of each channel.
  FUSEDSC_DEVICE void find_scales() {
    const int channel = thread_index() % kRun;
    float most = 0;
    if (exists_) {
      for (int output = thread_index() / kRun; output < p_.outputs; output += kThreads / kRun) {
        most = larger(most, p_.grad_scale[output] * to_float(weight_[output * p_.weight_row + channel]));
      }
      for (int k = thread_index() / kRun; k < p_.channels; k += kThreads / kRun) {
        most = larger(most, sums_[k * kRun + channel]);
      }
    }
#pragma unroll
    for (int distance = kRun; distance < 32; distance *= 2) most = larger(most, shuffle_xor(most, distance));
    if (thread_index() % 32 < kRun) largest_[thread_index() / 32 * kRun + channel] = most;
    block_barrier();
    if (thread_index() < kRun) {
      for (int warp = 0; warp < kWarps; ++warp) most = larger(most, largest_[warp * kRun + channel]);
      const float scale = scale_to_large(most, T());
      scales_[channel] = scale;
      auto* vectors = reinterpret_cast<float*>(to_ + p_.image.vectors) + column_ + channel;
      vectors[0] = 1.0f / scale;
      vectors[kWide] = sums_[p_.channels * kRun + channel];
    }
    block_barrier();
  }

  FUSEDSC_DEVICE void write_weight() const {
    for (int output = thread_index(); output < p_.image.rows; output += kThreads) {
      Run scaled = {};
      if (exists_ && output < p_.outputs) {
        float values[kRun];
        load<kRun>(weight_ + output * p_.weight_row).widen(values);
#pragma unroll
        for (int i = 0; i < kRun; ++i) values[i] *= p_.grad_scale[output] * scales_[i];
        scaled = rounded(values);
      }
      put(0, output, scaled);
    }
  }

  FUSEDSC_DEVICE void write_squares() const {
    for (int k = thread_index(); k < p_.image.square_rows; k += kThreads) {
      Run high = {}, low = {};
      if (exists_ && k < p_.channels) {
        float values[kRun], kept[kRun];
#pragma unroll
        for (int i = 0; i < kRun; ++i) values[i] = sums_[k * kRun + i] * scales_[i];
        high = rounded(values);
        high.widen(kept);
#pragma unroll
        for (int i = 0; i < kRun; ++i) values[i] -= kept[i];
        low = rounded(values);
      }
      put(p_.image.first_square, k, high);
      put(p_.image.second_square, k, low);
    }
  }

  FUSEDSC_DEVICE static float larger(float most, float value) {
    const float size = value < 0 ? -value : value;
    return size > most ? size : most;
  }

  FUSEDSC_DEVICE static Run rounded(const float (&values)[kRun]) {
    Run run;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) run.words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
    return run;
  }

  FUSEDSC_DEVICE void put(int matrix, int row, const Run& run) const {
    unsigned char* to = to_ + matrix + place_of_run<kWide * 2>(row, column_ / 8) + column_ % 8 * 2;
    using Words = Aligned<std::uint32_t, Run::kWords>;
    *reinterpret_cast<Words*>(to) = reinterpret_cast<const Words&>(run.words);
  }

  const PrepackParameters& p_;
  int first_, column_;
  bool exists_;
  const T* weight_;
  unsigned char* to_;
  float *parts_, *sums_, *largest_, *scales_;
};

}  // namespace fusedsc::gpu::hopper
