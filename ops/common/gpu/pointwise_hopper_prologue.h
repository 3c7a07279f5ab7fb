/// Pointwise products on Hopper GPUs: what a launch is told, and what is done to activations between block memory and
/// the product.
#pragma once

#include "fusedsc/common/gpu/pointwise_hopper_epilogue.h"
#include "fusedsc/common/gpu/pointwise_hopper_laid_out.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kTileRows = 64;  ///< positions that come at a time
inline constexpr int kGroupThreads = 128;

/// What the block memory of a kernel depends on.
struct PointwiseMemoryUse {
  int depth, channels;
  bool has_other, has_x, has_added;
  bool lays_out = false;  ///< threads lay the weight out, all of it at once
};

struct PointwiseParameters {
  TensorMap activations, other, weight, output, x, added;  ///< x and added: of the epilogue
  // The same without a description, where a tile is one run of bytes.
  const void *activations_rows = nullptr, *added_rows = nullptr;
  void* output_rows = nullptr;
  WeightSource source;  ///< of a weight that threads lay out; no data: the copy engine brings it
  int pixels = 0, depth = 0, channels = 0;
  int pixel_tiles = 0, channel_tiles = 1, splits = 1;  ///< splits: blocks that share the positions
  int stages = 2;                                      ///< tiles of positions that each group has under way
  // Of the activations: activation(scale*a + other_scale*other + shift).
  const float *scale = nullptr, *shift = nullptr, *other_scale = nullptr;
  Activation activation = Activation::identity;
  bool has_other = false;
  EpilogueParameters epilogue;
};

/// activation(scale*a + shift), or with kHasOther scale*a + other_scale*other + shift, on what a thread holds of
/// activations, for values of k up to `size`.
template <class T, bool kHasOther>
class PointwisePrologue {
 public:
  static constexpr int kVectors = 3;  ///< of `size` numbers in block memory

  FUSEDSC_DEVICE PointwisePrologue(const PointwiseParameters& p, float* memory, int size)
      : p_(p), coefficients_(memory), size_(size) {}

  /// By so many threads of a block. 0 beyond the end of k, so that what is multiplied there is activation(0) = 0.
  FUSEDSC_DEVICE void read(int thread, int threads) const {
    for (int k = thread; k < size_; k += threads) {
      const bool has = k < p_.depth;
      coefficients_[k] = !has ? 0.0f : p_.scale != nullptr ? p_.scale[k] : 1.0f;
      coefficients_[size_ + k] = has && p_.shift != nullptr ? p_.shift[k] : 0.0f;
      coefficients_[2 * size_ + k] = has && p_.other_scale != nullptr ? p_.other_scale[k] : 0.0f;
    }
  }

  /// Of pieces of 16 values of k, two rows: {k, k + 1} in the first two words, {k + 8, k + 9} in the others. All pieces
  /// at once and few branches, so that their latencies overlap.
  template <int kPieces>
  FUSEDSC_DEVICE void change(std::uint32_t (&words)[kPieces][4], const std::uint32_t (&others)[kPieces][4],
                             int k) const {
    if constexpr (kHasOther) {
      change_each(
          words, others, k, [](float(&)[8]) {}, [](std::uint32_t word) { return word; });
    } else if (p_.activation == Activation::relu || p_.activation == Activation::relu6) {
      // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
      const bool to_six = p_.activation == Activation::relu6;
      change_each(
          words, others, k, [](float(&)[8]) {}, [&](std::uint32_t word) { return clamped_pair(word, to_six, T()); });
    } else {
      change_each(
          words, others, k, [&](float(&z)[8]) { activate(p_.activation, z); }, [](std::uint32_t word) { return word; });
    }
  }

 private:
  template <int kPieces, class Before, class After>
  FUSEDSC_DEVICE void change_each(std::uint32_t (&words)[kPieces][4], const std::uint32_t (&others)[kPieces][4], int k,
                                  const Before& before, const After& after) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      float z[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* coefficients = coefficients_ + k + piece * 16 + half * 8;
        const auto scale = pair(coefficients), shift = pair(coefficients + size_);
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          to_floats(words[piece][i], z[2 * i], z[2 * i + 1], T());
          z[2 * i] = z[2 * i] * scale.elements[0] + shift.elements[0];
          z[2 * i + 1] = z[2 * i + 1] * scale.elements[1] + shift.elements[1];
        }
        if constexpr (kHasOther) {
          const auto other_scale = pair(coefficients + 2 * size_);
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            float a, b;
            to_floats(others[piece][i], a, b, T());
            z[2 * i] += a * other_scale.elements[0];
            z[2 * i + 1] += b * other_scale.elements[1];
          }
        }
      }
      before(z);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[piece][i] = after(to_bits(z[2 * i], z[2 * i + 1], T()));
    }
  }

  FUSEDSC_DEVICE static Aligned<float, 2> pair(const float* from) {
    return *reinterpret_cast<const Aligned<float, 2>*>(from);
  }

  const PointwiseParameters& p_;
  float* coefficients_;
  int size_;
};

}  // namespace fusedsc::gpu::hopper
