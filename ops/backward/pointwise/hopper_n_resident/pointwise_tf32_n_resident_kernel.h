/// Both gradients of an expansion of float32 on Hopper GPUs, one pass over grad_y and x, products of TensorFloat-32.
/// Where g = a*grad_y + b*e + c is BatchNorm's backward and e = W*x what the expansion computed, e is not read:
///   grad_x = (a*W)^T grad_y + (W^T b W) x + W^T c,   grad_weight = a*(grad_y x^T) + b*(W (x x^T)) + c*(sum of x).
/// Some of a block's warps have positions of their own for grad_x, the others outputs of their own for grad_weight,
/// whose sums stay in registers.
#pragma once

#include <type_traits>

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_tf32_lane.h"
#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_tf32_n_resident_image.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// kTiles: of 8 outputs, of each warp.
template <int kChannels, int kTiles>
class Tf32NResident {
 public:
  static constexpr int kInputWarps = 6, kWarps = 6;  ///< for grad_x, for grad_weight
  static constexpr int kThreads = 32 * (kInputWarps + kWarps), kPositions = 16 * kInputWarps;
  static constexpr int kOutputs = 8 * kTiles * kWarps;
  using Image = Tf32PrepackedWeights<kChannels, kOutputs>;

 private:
  using Lane = Tf32Lane<kPositions, kTiles>;
  static constexpr int kStages = 2, kBoxes = (kOutputs + 31) / 32, kBoxBytes = Lane::kBoxBytes;
  static constexpr int kStageBytes = (kBoxes + 1) * kBoxBytes;  ///< grad_y, then x
  static constexpr int kColumnTiles = Image::kColumnTiles, kRowTiles = kChannels > 16 ? 2 : 1;
  static constexpr int kOwn = 2 * kRowTiles;  ///< neighbouring channels of x that a lane has
  static constexpr int kSums = kChannels * (kChannels + 1);

 public:
  static constexpr int kMemoryBytes =
      1024 + kStages * kStageBytes + static_cast<int>(sizeof(float)) * Image::kSize + (kStages + 1) * 8;

  FUSEDSC_DEVICE static void run(const Tf32NResidentParameters& p) {
    Tf32NResident n_resident(p);
    n_resident.loop();
    n_resident.leave_sums();
  }

 private:
  FUSEDSC_DEVICE explicit Tf32NResident(const Tf32NResidentParameters& p)
      : p_(p),
        is_of_weight_(uniform(thread_index() / 32) >= kInputWarps),
        warp_(uniform(thread_index() / 32) - (is_of_weight_ ? kInputWarps : 0)) {
    auto* memory = static_cast<unsigned char*>(shared_memory());
    stages_ = memory + padding_before_tiles(memory);
    image_ = reinterpret_cast<float*>(stages_ + kStages * kStageBytes);
    barriers_ = reinterpret_cast<Barrier*>(image_ + Image::kSize);
#pragma unroll
    for (int i = 0; i < kRowTiles * kTiles * 4; ++i) weight_[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < kRowTiles * kOwn * 4; ++i) squares_[i / 4 / kOwn][i / 4 % kOwn][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum_x_[i] = 0;
  }

  FUSEDSC_DEVICE void start(int tile, int slot) const {
    if (tile >= p_.tiles) return;
    expect(barriers_ + slot, kStageBytes);
    unsigned char* to = stages_ + slot * kStageBytes;
    for (int box = 0; box < kBoxes; ++box) {
      start_load(to + box * kBoxBytes, p_.grad_y, box * 32, tile * kPositions, barriers_ + slot);
    }
    start_load(to + kBoxes * kBoxBytes, p_.x, 0, tile * kPositions, barriers_ + slot);
  }

  FUSEDSC_DEVICE void loop() {
    const int first = static_cast<int>(block_index());
    wait_for_previous_kernel();
    if (thread_index() == 0) {
      for (int i = 0; i <= kStages; ++i) initialise(barriers_ + i);
      publish();
      constexpr int kImageBytes = static_cast<int>(sizeof(float)) * Image::kSize;
      expect(barriers_ + kStages, kImageBytes);
      start_load(image_, p_.image, kImageBytes, barriers_ + kStages);
      for (int i = 0; i < kStages; ++i) start(first + i * p_.splits, i);
    }
    block_barrier();
    wait(barriers_ + kStages, 0);
    StageTurn turn;
    for (int tile = first; tile < p_.tiles; tile += p_.splits) {
      wait(barriers_ + turn.slot, turn.parity);
      const unsigned char* stage = stages_ + turn.slot * kStageBytes;
      if (is_of_weight_) multiply_weight(stage);
      else multiply_input(stage, tile);
      block_barrier();
      if (thread_index() == 0) start(tile + kStages * p_.splits, turn.slot);
      turn.next(kStages);
    }
  }

  // ------------------------------------------------------------------------------------------------------------ grad_x

  /// 16 positions of 8 channels.
  FUSEDSC_DEVICE void read_rows(const unsigned char* box, int step, std::uint32_t (&a)[4]) const {
    lane_.read_rows(box, warp_ * 16, 8 * step, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = to_tf32(__builtin_bit_cast(float, a[i]));
  }

  FUSEDSC_DEVICE void add_columns(const std::uint32_t (&a)[4], const float* image,
                                  float (&sums)[kColumnTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
      const auto b = load<2>(image + tile * 64 + thread_index() % 32 * 2);
      wave_multiply_add_tf32(sums[tile], a, b.words);
    }
  }

  /// Calls body(length, the first of the lane's channels, which it is) for runs of neighbouring channels.
  template <class Body>
  FUSEDSC_DEVICE void for_runs(const Body& body) const {
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
      body(std::integral_constant<int, 4>(), 4 * pair, 16 * pair + 4 * lane_.column);
    }
    if constexpr (kColumnTiles % 2 == 1) {
      body(std::integral_constant<int, 2>(), 2 * kColumnTiles - 2, 8 * kColumnTiles - 8 + 2 * lane_.column);
    }
  }

  FUSEDSC_DEVICE void multiply_input(const unsigned char* stage, int tile) const {
    constexpr int kOwnChannels = 2 * kColumnTiles;
    const std::int64_t pixel = static_cast<std::int64_t>(tile) * kPositions + warp_ * 16 + lane_.position;
    float results[2][kOwnChannels];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kOwnChannels; ++i) results[h][i] = 0;
      if (p_.added == nullptr || pixel + 8 * h >= p_.pixels) continue;
      const float* from = p_.added + (pixel + 8 * h) * p_.added_row;
      for_runs([&](auto run, int i, int channel) { load<run.value>(from + channel).widen(results[h] + i); });
    }

    float sums[kColumnTiles][4];
#pragma unroll
    for (int i = 0; i < kColumnTiles * 4; ++i) sums[i / 4][i % 4] = 0;
    std::uint32_t a[4];
#pragma unroll
    for (int step = 0; step < Image::kSteps; ++step) {
      read_rows(stage + step / 4 * kBoxBytes, step % 4, a);
      add_columns(a, image_ + step * kColumnTiles * 64, sums);
    }
    const float* mixed = image_ + Image::kScaled;
#pragma unroll
    for (int step = 0; step < kColumnTiles; ++step) {
      read_rows(stage + kBoxes * kBoxBytes, step, a);
      add_columns(a, mixed + step * kColumnTiles * 64, sums);
      add_columns(a, mixed + Image::kMixed + step * kColumnTiles * 64, sums);
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* constant = mixed + 2 * Image::kMixed;
      float* to = p_.grad_x + (pixel + 8 * h) * p_.grad_x_row;
      const bool exists = pixel + 8 * h < p_.pixels;
      for_runs([&](auto run, int i, int channel) {
#pragma unroll
        for (int j = i; j < i + run.value; ++j) {
          results[h][j] += sums[j / 2][2 * h + j % 2] + constant[channel + j - i];
        }
        if (exists) store<run.value>(results[h] + i, to + channel);
      });
    }
  }

  // ------------------------------------------------------------------------------------------------------- grad_weight

  FUSEDSC_DEVICE int first_output() const { return warp_ * 8 * kTiles; }
  FUSEDSC_DEVICE int output_of(int tile, int column) const { return first_output() + Lane::channel_of(tile, column); }

  FUSEDSC_DEVICE void multiply_weight(const unsigned char* stage) {
#pragma unroll 2
    for (int step = 0; step < kPositions / 8; ++step) {
      std::uint32_t x[2][kOwn], y[2][kTiles];  // of two positions
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned char* from = stage + step * 8 * 128;
        const int row = 2 * lane_.column + i;
        float raw[kOwn], grads[kTiles];
        Lane::read(from + kBoxes * kBoxBytes + Lane::place_of(row, lane_.row * kOwn), raw);
        lane_.read_columns(from, row, first_output(), grads);
#pragma unroll
        for (int n = 0; n < kOwn; ++n) x[i][n] = to_tf32(raw[n]);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) y[i][n] = to_tf32(grads[n]);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const std::uint32_t a[4] = {x[0][2 * r], x[0][2 * r + 1], x[1][2 * r], x[1][2 * r + 1]};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) wave_multiply_add_tf32(weight_[r][n], a, {y[0][n], y[1][n]});
        if (step % kWarps != warp_) continue;  // each warp its share
#pragma unroll
        for (int n = 0; n < kOwn; ++n) wave_multiply_add_tf32(squares_[r][n], a, {x[0][n], x[1][n]});
      }
      if (step % kWarps != warp_) continue;
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        sum_x_[n] += __builtin_bit_cast(float, x[0][n]) + __builtin_bit_cast(float, x[1][n]);
      }
    }
  }

  /// The block's share of grad_weight: what the warps have summed of x is put together first.
  FUSEDSC_DEVICE void leave_sums() {
    auto* memory = reinterpret_cast<float*>(stages_);  // x x^T and the sum of x: the block's, then each warp's
    float* weight = memory + (1 + kWarps) * kSums;     // as e had it
    if (is_of_weight_) leave_squares(memory + (1 + warp_) * kSums);
#pragma unroll 8
    for (int i = thread_index(); i < p_.outputs * kChannels; i += kThreads) {
      weight[i] = rounded_to_tf32(elements_of<float>(p_.weight)[p_.weight.offset(i / kChannels, i % kChannels, 0, 0)]);
    }
    block_barrier();
    for (int i = thread_index(); i < kSums; i += kThreads) {
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum += memory[(1 + warp) * kSums + i];
      memory[i] = sum;
    }
    block_barrier();
    if (is_of_weight_) leave_weight(memory, weight);
  }

  FUSEDSC_DEVICE void leave_squares(float* own) {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) sum_x_[n] += shuffle_xor(sum_x_[n], distance);
      const int channel = lane_.row * kOwn + n;
      if (lane_.column == 0 && channel < kChannels) own[kChannels * kChannels + channel] = sum_x_[n];
    }
#pragma unroll
    for (int i = 0; i < kRowTiles * kOwn * 4; ++i) {
      const int r = i / 4 / kOwn, n = i / 4 % kOwn, part = i % 4;
      const int channel = lane_.row * kOwn + 2 * r + part / 2, other = (2 * lane_.column + part % 2) * kOwn + n;
      if (channel < kChannels && other < kChannels) own[other * kChannels + channel] = squares_[r][n][part];
    }
  }

  FUSEDSC_DEVICE void leave_weight(const float* memory, const float* weights) {
    float output_scale[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int output = output_of(n, 2 * lane_.column + j);
        const bool exists = output < p_.outputs;
        const float scale = exists ? p_.grad_scale[output] : 0.0f, offset = exists ? p_.offset[output] : 0.0f;
        output_scale[n][j] = exists ? p_.output_scale[output] : 0.0f;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          float& sum = weight_[i / 2][n][i % 2 * 2 + j];
          const int channel = least(lane_.row * kOwn + i, kChannels - 1);
          sum = scale * sum + offset * memory[kChannels * kChannels + channel];
        }
      }
    }
#pragma unroll 4
    for (int other = 0; other < kChannels; ++other) {
      float squares[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        squares[i] = memory[other * kChannels + least(lane_.row * kOwn + i, kChannels - 1)];
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int output = least(output_of(n, 2 * lane_.column + j), p_.outputs - 1);
          const float factor = output_scale[n][j] * weights[output * kChannels + other];
#pragma unroll
          for (int i = 0; i < kOwn; ++i) weight_[i / 2][n][i % 2 * 2 + j] += factor * squares[i];
        }
      }
    }
    float* to = p_.partials + static_cast<std::int64_t>(block_index()) * kChannels * p_.outputs;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * kOwn; ++i) {
        const int output = output_of(n, 2 * lane_.column + i % 2), channel = lane_.row * kOwn + i / 2;
        if (output < p_.outputs && channel < kChannels) {
          to[channel * p_.outputs + output] = weight_[i / 4][n][i / 2 % 2 * 2 + i % 2];
        }
      }
    }
  }

  const Tf32NResidentParameters& p_;
  const bool is_of_weight_;
  const int warp_;  ///< of those that do the same
  const Lane lane_;
  unsigned char* stages_;
  float* image_;
  Barrier* barriers_;
  float weight_[kRowTiles][kTiles][4];  ///< grad_y x^T: rows are channels of x, columns outputs
  float squares_[kRowTiles][kOwn][4], sum_x_[kOwn];
};

}  // namespace fusedsc::gpu::hopper
