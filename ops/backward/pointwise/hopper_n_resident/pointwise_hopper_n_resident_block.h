/// What a block of the N-resident kernels has (pointwise_hopper_n_resident_kernel.h): its sums, the products of a tile
/// of 64 positions, and what it makes of the sums at its end.
///   grad_weight = grad_scale (grad_y^T x) + output_scale (weight x^T x) + offset sum(x)
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_sums.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// kOutputs and kChannels: at least as many as there are. kColumns: channels of a block, of which kColumns / 2
/// registers hold the sums of 64 outputs. kSlices: of the positions, each a warpgroup's, which has all outputs. Of one
/// slice, two groups share each tile, and have half of the outputs each.
template <class T_, int kOutputs_, int kChannels_, int kColumns_, int kSlices_>
struct NResidentBlock {
  using T = T_;
  static constexpr int kOutputs = kOutputs_, kChannels = kChannels_, kColumns = kColumns_, kSlices = kSlices_;
  static constexpr bool kSharesTile = kSlices == 1;
  static constexpr int kGroups = kSharesTile ? 2 : kSlices, kThreads = kGroups * 128;
  static constexpr int kOutputBlocks = (kOutputs + 63) / 64, kChannelBlocks = (kChannels + 63) / 64;
  static constexpr int kOwnBlocks = kSharesTile ? (kOutputBlocks + 1) / 2 : kOutputBlocks;  ///< of the first group
  static constexpr int kSteps = (kChannels + 15) / 16, kQuads = kOutputBlocks * kColumns / 8;
  static constexpr int kWide = kColumns <= 32 ? 32 : 64;     ///< columns of a copy of the block's channels,
  static constexpr int kAllWide = kSharesTile ? 64 : kWide;  ///< of one of all channels,
  static constexpr int kLastWide = kSharesTile || (kOutputs + 31) / 32 % 2 == 0 ? 64 : 32;  ///< of grad_y's last one
  static constexpr PrepackedWeights kImage =
      PrepackedWeights::of(kSharesTile ? kOutputBlocks * 64 : kOutputs, kSteps * 16, kWide * 2);
  static_assert(kSharesTile ? kColumns % 16 == 0 && kChannels > 32 : kColumns == kChannels && kColumns <= kWide);

  using Row = float[kColumns / 2];  ///< sums of 64 rows
  using Run = Aligned<std::uint32_t, 4>;
  using Four = Aligned<float, 4>;
  static constexpr int kRowBytes = kWide * 2, kAllRowBytes = kAllWide * 2, kTileBytes = 64 * 128;
  static constexpr int kSquareBytes = kSteps * 16 * kRowBytes, kVectorFloats = kWide + 4;
  static constexpr int kImageBytes = (kImage.bytes + 1023) / 1024 * 1024, kOnesBytes = 512;

  struct Sums {
    Row grad_x, weight[kOwnBlocks], squares[kChannelBlocks];
    float channels[4];
  };

  FUSEDSC_DEVICE explicit NResidentBlock(const PointwiseNResidentParameters& parameters)
      : p(parameters),
        group(uniform(thread_index() / 128)),
        thread(thread_index() % 128),
        part(kSharesTile ? static_cast<int>(block_index()) % p.parts : 0),
        first_channel(part * kColumns),
        first_output_block(kSharesTile ? group * kOwnBlocks : 0),
        image(static_cast<unsigned char*>(shared_memory()) + padding_before_tiles(shared_memory())) {}

  FUSEDSC_DEVICE int lane() const { return thread % 32; }
  FUSEDSC_DEVICE int row() const { return thread / 32 * 16 + lane() / 4; }  ///< of a product, the thread's first

  FUSEDSC_DEVICE void fill_ones() const {
    if (thread_index() >= kOnesBytes / 4) return;
    reinterpret_cast<std::uint32_t*>(ones)[thread_index()] = to_bits(1.0f, 1.0f, T());
  }

  FUSEDSC_DEVICE void copy_image() const {
    const Run* from = reinterpret_cast<const Run*>(p.image + static_cast<std::int64_t>(part) * kImage.bytes);
    for (int i = thread_index(); i < kImage.bytes / 16; i += kThreads) reinterpret_cast<Run*>(image)[i] = from[i];
  }

  /// Whether the group has an i-th block of 64 outputs.
  FUSEDSC_DEVICE bool has_block(int i) const { return !kSharesTile || i < kOutputBlocks - kOwnBlocks || group == 0; }

  /// The fours of a group's sums, one behind the other; `quad`: of the block's.
  FUSEDSC_DEVICE static Four four_of(const Sums& sums, int own_quad) {
    const float* from = sums.weight[own_quad / (kColumns / 8)] + own_quad % (kColumns / 8) * 4;
    return {{from[0], from[1], from[2], from[3]}};
  }
  FUSEDSC_DEVICE bool exists(int quad, int of_thread) const {
    const NResidentQuad place(quad, of_thread, kColumns / 8);
    return place.output < p.outputs && first_channel + place.channel < p.channels;
  }
  /// In fours, as threads have them.
  FUSEDSC_DEVICE Four* partials() const {
    return p.partials + static_cast<std::int64_t>(block_index()) * (kQuads * 128);
  }

  // ------------------------------------------------------------------------------ products of a tile of 64 positions

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
    fence(sums.grad_x);
    fence(sums.squares);
    fence(sums.channels);
    fence(sums.weight);
  }

  /// grad_x = x (weight^T output_scale weight), of which the image has two parts. x: 64 channels at a time, if more.
  FUSEDSC_DEVICE void multiply_image(Sums& sums, const unsigned char* x) const {
    const std::uint64_t rows = describe<kAllRowBytes>(x), square = describe<kRowBytes>(image + kImage.first_square);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply<true>(sums.grad_x, rows + (step / 4 * kTileBytes + step % 4 * 32) / 16,
                       square + (half * kSquareBytes + step * 16 * kRowBytes) / 16, half == 0 && step == 0, T());
      }
    }
  }

  /// x^T x, and the sum of x. own_x: of the block's channels.
  FUSEDSC_DEVICE void multiply_squares(Sums& sums, const unsigned char* x, const unsigned char* own_x) const {
    const std::uint64_t rows = describe<kAllRowBytes>(x), columns = describe<kRowBytes>(own_x),
                        one = describe_constant(ones);
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
#pragma unroll
      for (int i = 0; i < kChannelBlocks; ++i) {
        multiply<true, true>(sums.squares[i], rows + (i * kTileBytes + k * kAllRowBytes) / 16,
                             columns + k * kRowBytes / 16, false, T());
      }
      multiply<false, true>(sums.channels, columns + k * kRowBytes / 16, one, false, T());
    }
  }

  /// Both ways, the group's i-th block of 64 outputs.
  FUSEDSC_DEVICE void multiply_block(Sums& sums, int i, const unsigned char* grad_y, const unsigned char* own_x) const {
    constexpr int kLastBytes = kLastWide * 2;
    const bool is_narrow = kLastWide < 64 && i == kOutputBlocks - 1;
    const std::uint64_t outputs = is_narrow ? describe<kLastBytes>(grad_y) : describe<128>(grad_y),
                        x = describe<kRowBytes>(own_x),
                        weight = describe<kRowBytes>(image + first_output_block * 64 * kRowBytes);
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      multiply<true, true>(sums.weight[i], outputs + k * (is_narrow ? kLastBytes : 128) / 16, x + k * kRowBytes / 16,
                           false, T());
      if (i * 64 + k >= kImage.rows) continue;
      const bool is_first = kSharesTile && group != 0 && i == 0 && k == 0;  // the other group began with the image
      multiply<true>(sums.grad_x, outputs + k * 2 / 16, weight + (i * 64 + k) * kRowBytes / 16, is_first, T());
    }
  }

  /// A thread's sums of 8 channels, a pair of a row and one of the row 8 further, as results to a tile of them, where
  /// what is added may lie.
  FUSEDSC_DEVICE void put_results(const Four& sums, int run, unsigned char* tile) const {
    const auto* image_vectors = reinterpret_cast<const float*>(image + kImage.vectors);
    const int channel = run * 8 + lane() % 4 * 2;
    const auto scale = pair_at(image_vectors + channel), constant = pair_at(image_vectors + kWide + channel);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto* to =
          reinterpret_cast<std::uint32_t*>(tile + place_of_run<kRowBytes>(row() + half * 8, run) + lane() % 4 * 4);
      float first = sums.elements[half * 2] * scale.elements[0] + constant.elements[0];
      float second = sums.elements[half * 2 + 1] * scale.elements[1] + constant.elements[1];
      if (p.has_added) {
        float addends[2];
        to_floats(*to, addends[0], addends[1], T());
        first += addends[0];
        second += addends[1];
      }
      *to = to_bits(first, second, T());
    }
  }

  // ------------------------------------------------------------------------------------------------------- at the end

  /// Makes sums.weight the group's share of the gradient. x^T x goes to `squares`, where tiles were.
  FUSEDSC_DEVICE void finish(Sums& sums, unsigned char* squares) const {
    const auto barrier = [&] {
      if constexpr (kSharesTile) block_barrier();
      else group_barrier(group);
    };
    const bool has_squares = !kSharesTile || group == 1;
    if (has_squares) leave_largest(sums);
    barrier();
    const float scale = scale_of_squares();
    if (has_squares) leave_squares(sums, scale, squares);
    barrier();
#pragma unroll
    for (int i = 0; i < kOwnBlocks; ++i) {
      if (has_block(i)) finish_block(sums.weight[i], sums.grad_x, squares, scale, (first_output_block + i) * 64);
    }
  }

  const PointwiseNResidentParameters& p;
  const int group, thread, part, first_channel, first_output_block;
  unsigned char* const image;
  // Set by the kernel, as its memory is cut.
  unsigned char* ones = nullptr;
  float* vectors = nullptr;

 private:
  /// By those who have x^T x and sum(x): its largest element, and the sum.
  FUSEDSC_DEVICE void leave_largest(const Sums& sums) const {
    float most = 0;
#pragma unroll
    for (int block = 0; block < kChannelBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        if (block * 64 + row() + i / 2 % 2 * 8 >= p.channels) continue;
        const float value = sums.squares[block][i], size = value < 0 ? -value : value;
        most = size > most ? size : most;
      }
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = shuffle_xor(most, distance);
      most = other > most ? other : most;
    }
    if (lane() == 0) vectors[kWide + thread / 32] = most;
    if (lane() % 4 != 0 || row() >= kWide) return;
    vectors[row()] = sums.channels[0];
    if (row() + 8 < kWide) vectors[row() + 8] = sums.channels[2];
  }

  /// By all, behind a barrier.
  FUSEDSC_DEVICE float scale_of_squares() const {
    float most = 0;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) most = vectors[kWide + warp] > most ? vectors[kWide + warp] : most;
    return scale_to_large(most, Float16());  // of bfloat16, too
  }

  /// As two matrices, whose sum they are.
  FUSEDSC_DEVICE void leave_squares(const Sums& sums, float scale, unsigned char* squares) const {
#pragma unroll
    for (int block = 0; block < kChannelBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {
        const int channel = block * 64 + row() + i / 2 % 2 * 8;
        if (channel >= kSteps * 16) continue;
        const float first = sums.squares[block][i] * scale, second = sums.squares[block][i + 1] * scale;
        float rounded[2];
        const std::uint32_t high = to_bits(first, second, T());
        to_floats(high, rounded[0], rounded[1], T());
        unsigned char* to = squares + place_of_run<kRowBytes>(channel, i / 4) + lane() % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(to) = high;
        *reinterpret_cast<std::uint32_t*>(to + kSquareBytes) = to_bits(first - rounded[0], second - rounded[1], T());
      }
    }
    publish();
  }

  /// By all, behind a barrier, of 64 outputs. `products`: registers for others.
  FUSEDSC_DEVICE void finish_block(Row& sums, Row& products, const unsigned char* squares, float scale,
                                   int first_output) const {
    std::uint32_t weight[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      weight[i / 4][i % 4] = weight_at(first_output + row() + i % 2 * 8, i / 4 * 16 + i / 2 % 2 * 8 + lane() % 4 * 2);
    }
    const std::uint64_t square = describe<kRowBytes>(squares);
    fence(products);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply<true>(products, weight[step], square + (half * kSquareBytes + step * 16 * kRowBytes) / 16,
                       half == 0 && step == 0, T());
      }
    }
    commit_products();
    wait_for_products<0>();
    fence(products);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_output + row() + half * 8;
      const float grad_scale = vector_at(p.grad_scale, output), offset = vector_at(p.offset, output),
                  output_scale = vector_at(p.output_scale, output) / scale;
#pragma unroll
      for (int run = 0; run < kColumns / 8; ++run) {
        const auto channels = pair_at(vectors + run * 8 + lane() % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& sum = sums[run * 4 + half * 2 + i];
          sum = grad_scale * sum + (output_scale * products[run * 4 + half * 2 + i] + offset * channels.elements[i]);
        }
      }
    }
  }

  FUSEDSC_DEVICE std::uint32_t weight_at(int output, int channel) const {
    if (output >= p.outputs || channel >= p.channels) return 0;
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(p.weight) + output * p.weight_row + channel);
  }

  FUSEDSC_DEVICE float vector_at(const float* vector, int output) const {
    return vector != nullptr && output < p.outputs ? vector[output] : 0.0f;
  }
};

}  // namespace fusedsc::gpu::hopper
