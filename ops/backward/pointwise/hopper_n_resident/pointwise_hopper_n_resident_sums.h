/// What the kernels that compute both gradients of a pointwise convolution in one pass share: their parameters, what
/// they do with their sums at the end, and the kernel that adds the blocks' shares of the weight's gradient up.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_image.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_splits.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"

namespace fusedsc::gpu::hopper {

struct PointwiseNResidentParameters {
  TensorMap grad_y, last_grad_y;  ///< the last block of 64 outputs may be narrower
  TensorMap x, own_x;             ///< own_x: of a block that has some of the channels
  TensorMap added, grad_x;
  const void* weight = nullptr;
  std::int64_t weight_row = 0;
  int pixels = 0, pixel_tiles = 0, outputs = 0, channels = 0;
  int splits = 1, parts = 1;  ///< blocks: that share the positions, that share the channels
  int stages = 2;             ///< tiles that each warpgroup has under way
  bool has_added = false;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const unsigned char* image = nullptr;
  Aligned<float, 4>* partials = nullptr;  ///< [split][part][four][thread of 128]
  // What goes without TMA.
  const void* added_data = nullptr;
  void* grad_x_data = nullptr;
  std::int64_t added_row = 0, grad_x_row = 0;
};

FUSEDSC_DEVICE Aligned<float, 2> pair_at(const float* from) {
  return *reinterpret_cast<const Aligned<float, 2>*>(from);
}

/// Where a thread's sums of the weight gradient belong, in fours: of two neighbouring channels, of an output and of the
/// one 8 further.
struct NResidentQuad {
  int output, channel;

  FUSEDSC_DEVICE NResidentQuad(int quad, int thread, int row_quads)
      : output(quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4),
        channel(quad % row_quads * 8 + thread % 4 * 2) {}
};

/// From grad_y^T x, x^T x and sum(x) of the same positions to a share of the weight's gradient: a warpgroup
/// whose sums have kColumns channels, of kSteps * 16 in all.
template <class T, int kColumns, int kSteps>
class NResidentEnd {
 public:
  using Row = float[kColumns / 2];  ///< sums of 64 rows
  static constexpr int kWide = kColumns <= 32 ? 32 : 64, kRowBytes = kWide * 2;
  static constexpr int kSquareBytes = kSteps * 16 * kRowBytes;
  static constexpr int kVectorFloats = kWide + 4;

  /// vectors, squares: in shared memory, of all that share x^T x; squares: as two matrices.
  FUSEDSC_DEVICE NResidentEnd(const PointwiseNResidentParameters& p, float* vectors, unsigned char* squares)
      : p_(p),
        vectors_(vectors),
        squares_(squares),
        lane_(thread_index() % 32),
        warp_(thread_index() % 128 / 32),
        row_(warp_ * 16 + lane_ / 4) {}

  /// By those who have x^T x in blocks of 64 channels, and sum(x).
  template <int kBlocks>
  FUSEDSC_DEVICE void leave_largest(const float (&squares)[kBlocks][kColumns / 2], const float (&channels)[4]) const {
    float most = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        if (block * 64 + row_ + i / 2 % 2 * 8 >= p_.channels) continue;
        const float value = squares[block][i], size = value < 0 ? -value : value;
        most = size > most ? size : most;
      }
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = shuffle_xor(most, distance);
      most = other > most ? other : most;
    }
    if (lane_ == 0) vectors_[kWide + warp_] = most;
    if (lane_ % 4 != 0 || row_ >= kWide) return;
    vectors_[row_] = channels[0];
    if (row_ + 8 < kWide) vectors_[row_ + 8] = channels[2];
  }

  /// By all, behind a barrier.
  FUSEDSC_DEVICE void read_largest() {
    float most = 0;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) most = vectors_[kWide + warp] > most ? vectors_[kWide + warp] : most;
    scale_ = scale_to_large(most, Float16());  // of bfloat16, too
  }

  template <int kBlocks>
  FUSEDSC_DEVICE void leave_squares(const float (&squares)[kBlocks][kColumns / 2]) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {
        const int channel = block * 64 + row_ + i / 2 % 2 * 8;
        if (channel >= kSteps * 16) continue;
        const float first = squares[block][i] * scale_, second = squares[block][i + 1] * scale_;
        float rounded[2];
        const std::uint32_t high = to_bits(first, second, T());
        to_floats(high, rounded[0], rounded[1], T());
        unsigned char* to = squares_ + place_of_run<kRowBytes>(channel, i / 4) + lane_ % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(to) = high;
        *reinterpret_cast<std::uint32_t*>(to + kSquareBytes) = to_bits(first - rounded[0], second - rounded[1], T());
      }
    }
    publish();
  }

  /// By all, behind a barrier, of 64 outputs. `products`: registers for others.
  FUSEDSC_DEVICE void finish(Row& sums, Row& products, int first_output) const {
    std::uint32_t weight[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      weight[i / 4][i % 4] = weight_at(first_output + row_ + i % 2 * 8, i / 4 * 16 + i / 2 % 2 * 8 + lane_ % 4 * 2);
    }
    const std::uint64_t square = describe<kRowBytes>(squares_);
    fence(products);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        multiply<true>(products, weight[step], square + (part * kSquareBytes + step * 16 * kRowBytes) / 16,
                       part == 0 && step == 0, T());
      }
    }
    commit_products();
    wait_for_products<0>();
    fence(products);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_output + row_ + half * 8;
      const float grad_scale = vector_at(p_.grad_scale, output), offset = vector_at(p_.offset, output),
                  output_scale = vector_at(p_.output_scale, output) / scale_;
#pragma unroll
      for (int run = 0; run < kColumns / 8; ++run) {
        const auto channels = pair_at(vectors_ + run * 8 + lane_ % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& sum = sums[run * 4 + half * 2 + i];
          sum = grad_scale * sum + (output_scale * products[run * 4 + half * 2 + i] + offset * channels.elements[i]);
        }
      }
    }
  }

 private:
  FUSEDSC_DEVICE std::uint32_t weight_at(int output, int channel) const {
    if (output >= p_.outputs || channel >= p_.channels) return 0;
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(p_.weight) + output * p_.weight_row + channel);
  }

  FUSEDSC_DEVICE float vector_at(const float* vector, int output) const {
    return vector != nullptr && output < p_.outputs ? vector[output] : 0.0f;
  }

  const PointwiseNResidentParameters& p_;
  float* vectors_;
  unsigned char* squares_;
  int lane_, warp_, row_;
  float scale_ = 1;
};

// -------------------------------------------------------------------------------------------------- the blocks' shares

struct NResidentSumParameters {
  const Aligned<float, 4>* partials = nullptr;
  int splits = 1, parts = 1, quads = 0, row_quads = 1, outputs = 0, channels = 0;
  int lanes = 1;  ///< threads that share a four: a power of two
  void* weight = nullptr;
  std::int64_t weight_row = 0;
};

inline constexpr int kNResidentSumThreads = 256;

/// To the weight's gradient, always in the same order.
template <class T>
FUSEDSC_DEVICE void sum_n_resident_partials(const NResidentSumParameters& p) {
  let_next_kernel_start();
  const int items = kNResidentSumThreads / p.lanes, lane = thread_index() / items;
  const int item = static_cast<int>(block_index()) * items + thread_index() % items;
  const int part = item / 128 / p.quads, all = p.parts * p.quads * 128;
  NResidentQuad place(item / 128 % p.quads, item % 128, p.row_quads);
  place.channel += part * p.row_quads * 8;
  const bool has = item < all && place.output < p.outputs && place.channel < p.channels;
  const SplitsOfThread splits(p.partials[0].elements + std::int64_t{item} * 4, std::int64_t{all} * 4,
                              has ? p.splits : 0, lane, p.lanes);
  T* const to = static_cast<T*>(p.weight) + place.output * p.weight_row + place.channel;
  auto* sums = static_cast<Aligned<float, 4>*>(shared_memory());
  keep_order(splits.place() | (upper_word(to) & 0x7fffffffu));
  wait_for_previous_kernel();
  Aligned<float, 4> sum = splits.sum();
  for (int lanes = p.lanes / 2; lanes > 0; lanes /= 2) {
    sums[thread_index()] = sum;
    block_barrier();
    if (lane < lanes) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.elements[i] += sums[thread_index() + lanes * items].elements[i];
    }
    block_barrier();
  }
  if (!has || lane != 0) return;
  store<2>(sum.elements, to);
  if (place.output + 8 < p.outputs) store<2>(sum.elements + 2, to + 8 * p.weight_row);
}

}  // namespace fusedsc::gpu::hopper
