/// Both gradients of a projection of float32 on Hopper GPUs, one pass over x, products of TensorFloat-32. With
/// g = a*grad_y + b*output + c, and x through its prologue as z and act(z):
///   grad_weight = g act(z)^T,   grad_x = (W^T g) * act'(z), with the sums that BatchNorm's backward needs of it.
/// Each warp has channels of x of its own, and all positions of a tile or half of them, for which nothing leaves it;
/// grad_x takes x's place in shared memory.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_tf32_lane.h"
#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

struct Tf32GradientsParameters {
  TensorMap grad_y, output, x, grad_x;  ///< tiles of 32 channels
  ConstDeviceTensor weight;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;  ///< a, b, c; or none: g is grad_y
  const float *scale = nullptr, *shift = nullptr, *mean = nullptr;                ///< of x
  float low = 0, high = 0;                                                        ///< what act clamps to
  float* partials = nullptr;  ///< [split, group][output..., sum of grad_x, of grad_x * (x - mean)][channel]
  int pixels = 0, tiles = 0, channels = 0, splits = 1;
};

/// kTiles: of 8 channels of x, of each warp. kGroups: of so many warps, which share a tile's positions.
template <int kOutputs, int kTiles, int kWarps, int kGroups>
class Tf32Gradients {
 public:
  static constexpr int kThreads = 32 * kWarps * kGroups, kPositions = 96, kChannels = 8 * kTiles * kWarps;
  static constexpr int kRows = kOutputs + 2;  ///< of partial sums

 private:
  using Lane = Tf32Lane<kPositions, kTiles>;
  static constexpr int kStages = 2, kBoxes = (kChannels + 31) / 32, kBoxBytes = Lane::kBoxBytes;
  static constexpr int kStageBytes = (kBoxes + 2) * kBoxBytes;  ///< x, grad_y, output
  static constexpr int kSteps = kOutputs / 8, kRowTiles = kOutputs > 16 ? 2 : 1;
  static constexpr int kOwn = 2 * kRowTiles;  ///< neighbouring outputs that a lane has

 public:
  static constexpr int kMemoryBytes = 1024 + kStages * kStageBytes + kStages * 8;

  FUSEDSC_DEVICE static void run(const Tf32GradientsParameters& p) {
    wait_for_previous_kernel();
    Tf32Gradients gradients(p);
    gradients.loop();
    gradients.leave_sums();
  }

 private:
  FUSEDSC_DEVICE explicit Tf32Gradients(const Tf32GradientsParameters& p)
      : p_(p), warp_(uniform(thread_index() / 32 % kWarps)), group_(uniform(thread_index() / 32 / kWarps)) {
    auto* memory = static_cast<unsigned char*>(shared_memory());
    stages_ = memory + padding_before_tiles(memory);
    barriers_ = reinterpret_cast<Barrier*>(stages_ + kStages * kStageBytes);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int own = channel_of(n), factor = factor_channel(n, lane_.row);
      const bool exists = own < p.channels;  // with the next one: their number is even
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale_[n][i] = exists ? value_or(p.scale, own + i, 1.0f) : 0.0f;
        shift_[n][i] = exists ? value_or(p.shift, own + i, 0.0f) : 0.0f;
        mean_[n][i] = exists ? p.mean[own + i] : 0.0f;
        sum_[n][i] = sum_centered_[n][i] = 0;
      }
      factor_scale_[n] = factor < p.channels ? value_or(p.scale, factor, 1.0f) : 0.0f;
      factor_shift_[n] = factor < p.channels ? value_or(p.shift, factor, 0.0f) : 0.0f;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int channel = first_channel() + 8 * n + lane_.row;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weight_[step][n][i] = channel < p.channels
                                    ? to_tf32(elements_of<float>(
                                          p.weight)[p.weight.offset(8 * step + 2 * lane_.column + i, channel, 0, 0)])
                                    : 0u;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles * kTiles * 4; ++i) grad_weight_[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
  }

  FUSEDSC_DEVICE int first_channel() const { return warp_ * 8 * kTiles; }
  /// The first of a lane's two columns of tile n of grad_x.
  FUSEDSC_DEVICE int channel_of(int n) const { return first_channel() + 8 * n + 2 * lane_.column; }
  /// Column `column` (0 to 7) of tile n of grad_weight.
  FUSEDSC_DEVICE int factor_channel(int n, int column) const { return first_channel() + Lane::channel_of(n, column); }

  // ------------------------------------------------------------------------------------------------- copies under way

  FUSEDSC_DEVICE void start(int tile, int slot) const {
    if (tile >= p_.tiles) return;
    unsigned char* to = stages_ + slot * kStageBytes;
    const bool has_output = p_.grad_scale != nullptr;
    expect(barriers_ + slot, (kBoxes + (has_output ? 2 : 1)) * kBoxBytes);
    for (int box = 0; box < kBoxes; ++box) {
      start_load(to + box * kBoxBytes, p_.x, box * 32, tile * kPositions, barriers_ + slot);
    }
    start_load(to + kBoxes * kBoxBytes, p_.grad_y, 0, tile * kPositions, barriers_ + slot);
    if (has_output) start_load(to + (kBoxes + 1) * kBoxBytes, p_.output, 0, tile * kPositions, barriers_ + slot);
  }

  FUSEDSC_DEVICE void loop() {
    const int first = static_cast<int>(block_index());
    const bool is_leader = thread_index() == 0;
    if (is_leader) {
      for (int i = 0; i < kStages; ++i) initialise(barriers_ + i);
      publish();
      start(first, 0);
    }
    block_barrier();
    StageTurn turn;
    for (int tile = first; tile < p_.tiles; tile += p_.splits) {
      unsigned char* stage = stages_ + turn.slot * kStageBytes;
      wait(barriers_ + turn.slot, turn.parity);
      form_gradient(stage + kBoxes * kBoxBytes, p_.pixels - tile * kPositions);
      block_barrier();
      if (is_leader) {  // the other stage's results have left it meanwhile
        wait_for_stores();
        start(tile + p_.splits, kStages - 1 - turn.slot);
      }
      multiply_weight(stage);
      warp_barrier();
      multiply_input(stage);
      publish();
      block_barrier();
      if (is_leader) {
        for (int box = 0; box * 32 < p_.channels; ++box) {
          start_store(p_.grad_x, box * 32, tile * kPositions, stage + box * kBoxBytes);
        }
        commit_stores();
      }
      turn.next(kStages);
    }
    if (is_leader) wait_for_stores();
  }

  // ------------------------------------------------------------------------------------------------------------ tiles

  /// g takes grad_y's place, as products take it; zeros behind the last position.
  FUSEDSC_DEVICE void form_gradient(unsigned char* grad_y, int positions) const {
    const int output = thread_index() % 8 * 4;
    if (output >= kOutputs) return;  // zeros, as they came
    const bool has_output = p_.grad_scale != nullptr;
    float grad_scale[4] = {1, 1, 1, 1}, output_scale[4] = {}, offset[4] = {};
    if (has_output) {
      load<4>(p_.grad_scale + output).widen(grad_scale);
      load<4>(p_.output_scale + output).widen(output_scale);
      load<4>(p_.offset + output).widen(offset);
    }
#pragma unroll
    for (int row = thread_index() / 8; row < kPositions; row += kThreads / 8) {
      unsigned char* own = grad_y + Lane::place_of(row, output);
      float g[4], y[4] = {};
      Lane::read(own, g);
      if (has_output) Lane::read(own + kBoxBytes, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = g[i] * grad_scale[i] + (y[i] * output_scale[i] + offset[i]);
        g[i] = row < positions ? rounded_to_tf32(value) : 0.0f;
      }
      store<4>(g, reinterpret_cast<float*>(own));
    }
  }

  FUSEDSC_DEVICE void multiply_weight(const unsigned char* stage) {
#pragma unroll 2
    for (int i = 0; i < kPositions / 8 / kGroups; ++i) {
      const int step = group_ * (kPositions / 8 / kGroups) + i;
      std::uint32_t g[2][kOwn], a[2][kTiles];  // of two positions
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const unsigned char* from = stage + step * 8 * 128;
        const int row = 2 * lane_.column + j;
        const auto gradients = load<kOwn>(
            reinterpret_cast<const float*>(from + kBoxes * kBoxBytes + Lane::place_of(row, lane_.row * kOwn)));
        float x[kTiles];
        lane_.read_columns(from, row, first_channel(), x);
#pragma unroll
        for (int n = 0; n < kOwn; ++n) g[j][n] = gradients.words[n];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          a[j][n] = to_tf32(clamped(x[n] * factor_scale_[n] + factor_shift_[n], p_.low, p_.high));
        }
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const std::uint32_t rows[4] = {g[0][2 * r], g[0][2 * r + 1], g[1][2 * r], g[1][2 * r + 1]};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) wave_multiply_add_tf32(grad_weight_[r][n], rows, {a[0][n], a[1][n]});
      }
    }
  }

  FUSEDSC_DEVICE void multiply_input(unsigned char* stage) {
#pragma unroll 1
    for (int part = 0; part < kPositions / 16 / kGroups; ++part) {
      const int first = (group_ * (kPositions / 16 / kGroups) + part) * 16, row = first + lane_.position;
      float sums[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) sums[i / 4][i % 4] = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t g[4];
        lane_.read_rows(stage + kBoxes * kBoxBytes, first, 8 * step, g);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          wave_multiply_add_tf32(sums[n], g, weight_[step][n]);
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          unsigned char* own = stage + Lane::place_of(row, channel_of(n)) + h * 8 * 128;
          float x[2], result[2];
          Lane::read(own, x);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float z = x[i] * scale_[n][i] + shift_[n][i];
            result[i] = z > p_.low && z < p_.high ? sums[n][2 * h + i] : 0.0f;
            sum_[n][i] += result[i];
            sum_centered_[n][i] += result[i] * (x[i] - mean_[n][i]);
          }
          store<2>(result, reinterpret_cast<float*>(own));
        }
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------- sums

  FUSEDSC_DEVICE void leave_sums() {
    float* to = p_.partials + static_cast<std::int64_t>(block_index() * kGroups + group_) * kRows * p_.channels;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          sum_[n][i] += shuffle_xor(sum_[n][i], distance);
          sum_centered_[n][i] += shuffle_xor(sum_centered_[n][i], distance);
        }
        const int channel = channel_of(n) + i;
        if (lane_.row == 0 && channel < p_.channels) {
          to[kOutputs * p_.channels + channel] = sum_[n][i];
          to[(kOutputs + 1) * p_.channels + channel] = sum_centered_[n][i];
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn * 2; ++i) {
        const int output = lane_.row * kOwn + i / 2, channel = factor_channel(n, 2 * lane_.column + i % 2);
        if (output < kOutputs && channel < p_.channels) {
          to[output * p_.channels + channel] = grad_weight_[i / 4][n][i % 4];
        }
      }
    }
  }

  const Tf32GradientsParameters& p_;
  const int warp_, group_;
  const Lane lane_;
  unsigned char* stages_;
  Barrier* barriers_;
  float scale_[kTiles][2], shift_[kTiles][2], mean_[kTiles][2];  ///< of the lane's columns of grad_x
  float factor_scale_[kTiles], factor_shift_[kTiles];            ///< and of grad_weight
  std::uint32_t weight_[kSteps][kTiles][2];
  float sum_[kTiles][2], sum_centered_[kTiles][2];
  float grad_weight_[kRowTiles][kTiles][4];  ///< rows are outputs
};

}  // namespace fusedsc::gpu::hopper
