/// Pointwise convolution on Hopper GPUs, weight and bias gradients: the sum over all positions is cut twice, among
/// blocks and among each block's groups of four warps, which go their own ways through their positions. Blocks that
/// share a tile of the weight run as a cluster and add their sums through block memory; if more than a cluster share
/// one, a second kernel adds the clusters' sums (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper_cluster.h"

namespace fusedsc::gpu::hopper {

struct PointwiseWeightParameters {
  CUtensorMap grad_y, output, x;
  int pixels = 0, outputs = 0, channels = 0;
  int pixel_tiles = 0, output_tiles = 1, channel_tiles = 1;
  int cluster = 1, splits = 1;  ///< blocks of a cluster, and clusters, that share a tile's positions
  int stages = 2;               ///< tiles of positions that each group has under way
  // Of grad_y: grad_scale*grad_y + output_scale*output + offset. Of x: activation(scale*x + shift).
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const float *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
  bool has_output = false, has_prologue = false;
  void *weight = nullptr, *bias = nullptr;  ///< what is wanted, if there is one cluster per tile
  std::int64_t weight_row = 0;
  int debug = 0;
  float* partials = nullptr;  ///< [split][output][channels and 4 more, the first of which is the bias]; or none
};

/// Rows are outputs, in blocks of 64; columns are channels. A group has kDepth positions in a tile. Without seams,
/// there is no bias either.
template <class T, int kRowBlocks, int kColumns_, int kGroups_, int kDepth_, bool kSeams_>
class PointwiseWeightProduct {
 public:
  static constexpr int kRows = kRowBlocks * 64, kColumns = kColumns_, kGroups = kGroups_, kDepth = kDepth_;
  static constexpr int kThreads = kGroups * 128;
  static constexpr bool kSeams = kSeams_;

  static constexpr int memory_bytes(int stages, bool has_output) {
    const int tiles = kGroups * stages * stage_bytes(has_output), sums = kGroups * kRows * kPitch * 4;
    return 1024 + (tiles > sums ? tiles : sums) + barrier_bytes(stages) + (kSeams ? 2 * kColumns * 4 : 0);
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightParameters& p) {
    PointwiseWeightProduct product(p);
    product.loop();
  }

 private:
  /// Of a product instruction; and of a copy.
  static constexpr int kWide = kColumns < 64 ? kColumns : 64, kColumnBlocks = kColumns / kWide;
  static constexpr int kTileBytes = kDepth * 128, kXRowBytes = kWide * 2, kXTileBytes = kDepth * kXRowBytes;
  static constexpr int kSteps = kDepth / 16;
  static constexpr int kPitch = kColumns + 8;  ///< of sums in block memory; the first of the 8 is the bias
  static_assert(kColumns % kWide == 0);

  using Sums = float[kRowBlocks][kColumnBlocks][kWide / 2];

  FUSEDSC_HOST_DEVICE static constexpr int stage_bytes(bool has_output) {
    return kRowBlocks * (has_output ? 2 : 1) * kTileBytes + kColumnBlocks * kXTileBytes;
  }
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) { return (kGroups * stages * 8 + 15) / 16 * 16; }

  FUSEDSC_DEVICE static int least_of(int a, int b) { return a < b ? a : b; }

  FUSEDSC_DEVICE explicit PointwiseWeightProduct(const PointwiseWeightParameters& p) : p_(p) {
    group_ = __shfl_sync(0xffffffffu, thread_index() / 128, 0);  // so that the compiler knows it is the same
    is_leader_ = thread_index() % 128 == 0;
    int rest = static_cast<int>(block_index());
    rank_ = rest % p.cluster;
    rest /= p.cluster;
    first_channel_ = rest % p.channel_tiles * kColumns;
    rest /= p.channel_tiles;
    first_output_ = rest % p.output_tiles * kRows;
    split_ = rest / p.output_tiles;
    first_tile_ = (split_ * p.cluster + rank_) * kGroups + group_;
    tile_step_ = p.splits * p.cluster * kGroups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + tile_step_ - 1) / tile_step_ : 0;

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += (1024 - address_of(memory) % 1024) % 1024;
    sums_ = reinterpret_cast<float*>(memory);
    stage_bytes_ = stage_bytes(kSeams && p.has_output);
    const int tiles = kGroups * p.stages * stage_bytes_, sums = kGroups * kRows * kPitch * 4;
    stages_ = memory + group_ * p.stages * stage_bytes_;
    memory += tiles > sums ? tiles : sums;
    barriers_ = reinterpret_cast<Barrier*>(memory) + group_ * p.stages;
    coefficients_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      if (group_ == 0) {
        prefetch(p_.x);
        prefetch(p_.grad_y);
        if (kSeams && p_.has_output) prefetch(p_.output);
      }
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      publish();
    }
    wait_for_previous_kernel();
    if (p_.debug & 4) tiles_ = 0;
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if constexpr (kSeams) read_coefficients();
    block_barrier();
    int slot = 0, parity = 0, last_slot = -1;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + slot, parity);
      if constexpr (kSeams) {
        if (p_.has_prologue) {
          change_x(slot);
          publish();
        }
        group_barrier(group_);
        if (is_leader_ && last_slot >= 0) start_next(last_slot);
        multiply_changed(sums, slot, (first_tile_ + tile * tile_step_) * kDepth);
      } else {
        multiply_plain(sums, slot);
        if (last_slot >= 0) {
          wait_for_products<1>();
          group_barrier(group_);
          if (is_leader_) start_next(last_slot);
        }
      }
      last_slot = slot;
      if (++slot == p_.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    wait_for_products<0>();
    fence_all(sums);
    let_next_kernel_start();
    if (p_.debug & 2) return;
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    unsigned char* to = stages_ + slot * stage_bytes_;
    Barrier* barrier = barriers_ + slot;
    const int pixel = (first_tile_ + next_tile_ * tile_step_) * kDepth;
    expect(barrier, stage_bytes_);
    for (int i = 0; i < kColumnBlocks; ++i, to += kXTileBytes) {
      start_load(to, p_.x, first_channel_ + i * kWide, pixel, barrier);
    }
    for (int i = 0; i < kRowBlocks; ++i, to += kTileBytes) {
      start_load(to, p_.grad_y, first_output_ + i * 64, pixel, barrier);
    }
    if (kSeams && p_.has_output) {
      for (int i = 0; i < kRowBlocks; ++i, to += kTileBytes) {
        start_load(to, p_.output, first_output_ + i * 64, pixel, barrier);
      }
    }
    ++next_tile_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) fence(sums[i][j]);
    }
  }

  FUSEDSC_DEVICE void multiply_plain(Sums& sums, int slot) const {
    const unsigned char* x = stages_ + slot * stage_bytes_;
    const unsigned char* grad_y = x + kColumnBlocks * kXTileBytes;
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          multiply<true, true>(sums[i][j], describe<128>(grad_y + i * kTileBytes + k * 128),
                               describe<kXRowBytes>(x + j * kXTileBytes + k * kXRowBytes), false, T());
        }
      }
    }
    commit_products();
    fence_all(sums);
  }

  /// 0 beyond the channels, so that what is multiplied there is activation(0) = 0.
  FUSEDSC_DEVICE void read_coefficients() {
    for (int c = thread_index(); c < kColumns; c += kThreads) {
      const int channel = first_channel_ + c;
      const bool has = channel < p_.channels;
      coefficients_[c] = !has ? 0.0f : p_.scale != nullptr ? p_.scale[channel] : 1.0f;
      coefficients_[kColumns + c] = has && p_.shift != nullptr ? p_.shift[channel] : 0.0f;
    }
    const int row = first_output_ + thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int output = row + i * 8 + i / 2 * 48;
      const bool has = output < p_.outputs;
      grad_scale_[i] = !has ? 0.0f : p_.grad_scale != nullptr ? p_.grad_scale[output] : 1.0f;
      output_scale_[i] = has && p_.output_scale != nullptr ? p_.output_scale[output] : 0.0f;
      offset_[i] = has && p_.offset != nullptr ? p_.offset[output] : 0.0f;
      bias_[i] = 0;
    }
  }

  /// Where it lies. Each thread has a run of channels, of every 16th position.
  FUSEDSC_DEVICE void change_x(int slot) const {
    constexpr int kRunsOfRow = kWide / 8, kRowsAtOnce = 128 / kRunsOfRow;
    const int run = thread_index() % kRunsOfRow, row = thread_index() % 128 / kRunsOfRow;
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      unsigned char* tile = stages_ + slot * stage_bytes_ + block * kXTileBytes;
      float scale[8], shift[8];
      const float* coefficients = coefficients_ + block * kWide + run * 8;
      load<4>(coefficients).widen(scale);
      load<4>(coefficients + 4).widen(scale + 4);
      load<4>(coefficients + kColumns).widen(shift);
      load<4>(coefficients + kColumns + 4).widen(shift + 4);
#pragma unroll
      for (int i = 0; i < kDepth; i += kRowsAtOnce) {
        auto* place = reinterpret_cast<uint4*>(tile + place_of_run<kXRowBytes>(row + i, run));
        const uint4 values = *place;
        std::uint32_t words[4] = {values.x, values.y, values.z, values.w};
        change_run(words, scale, shift);
        *place = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  FUSEDSC_DEVICE void change_run(std::uint32_t (&words)[4], const float (&scale)[8], const float (&shift)[8]) const {
    float z[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) to_floats(words[i], z[2 * i], z[2 * i + 1], T());
#pragma unroll
    for (int i = 0; i < 8; ++i) z[i] = z[i] * scale[i] + shift[i];
    const bool is_clamp = p_.activation == Activation::relu || p_.activation == Activation::relu6;
    if (!is_clamp) activate(p_.activation, z);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = to_bits(z[2 * i], z[2 * i + 1], T());
      if (is_clamp) words[i] = clamped_pair(words[i], p_.activation == Activation::relu6, T());
    }
  }

  /// grad_y through registers.
  FUSEDSC_DEVICE void multiply_changed(Sums& sums, int slot, int pixel) {
    const unsigned char* x = stages_ + slot * stage_bytes_;
    const int lane = thread_index() % 32, run = thread_index() % 128 / 32 * 2 + lane / 8 % 2;
    const int place = place_of_run<128>(lane % 8 + lane / 16 * 8, run);
    const int pixels = p_.pixels - pixel - lane % 4 * 2;
    std::uint32_t rows[kRowBlocks < 2 ? 1 : 2][kSteps][4];
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      auto& words = rows[i % 2];
      if (i >= 2) wait_for_products<1>();
      const unsigned char* grad_y = x + kColumnBlocks * kXTileBytes + i * kTileBytes + place;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load_matrices<true>(grad_y + step * 16 * 128, words[step]);
        std::uint32_t outputs[4] = {};
        if (p_.has_output) load_matrices<true>(grad_y + kRowBlocks * kTileBytes + step * 16 * 128, outputs);
        change_grad_y(words[step], outputs, i, pixels - step * 16);
      }
      fence_all(sums);
      begin_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          multiply<true>(sums[i][j], words[step], describe<kXRowBytes>(x + j * kXTileBytes + step * 16 * kXRowBytes), false, T());
        }
      }
      commit_products();
      fence_all(sums);
    }
    wait_for_products<0>();  // here, not where they are needed: the compiler would not let them run asynchronously
    fence_all(sums);
  }

  /// Pairs of positions of two outputs, 8 further; then, in the last two words, of positions 8 further. There are
  /// `pixels` of them.
  FUSEDSC_DEVICE void change_grad_y(std::uint32_t (&words)[4], const std::uint32_t (&outputs)[4], int block,
                                    int pixels) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * block + i % 2;
      float a, b, other_a, other_b;
      to_floats(words[i], a, b, T());
      to_floats(outputs[i], other_a, other_b, T());
      a = a * grad_scale_[row] + (other_a * output_scale_[row] + offset_[row]);
      b = b * grad_scale_[row] + (other_b * output_scale_[row] + offset_[row]);
      if (i / 2 * 8 >= pixels) a = 0;
      if (i / 2 * 8 + 1 >= pixels) b = 0;
      bias_[row] += a + b;
      words[i] = to_bits(a, b, T());
    }
  }

  // ------------------------------------------------------------------------------------------- by all threads of a block

  FUSEDSC_DEVICE void leave(const Sums& sums) {
    write_own(sums);
    block_barrier();
    const bool has_bias = kSeams && first_channel_ == 0;
    const int channel_runs = least_of(p_.channels - first_channel_, kColumns) / 4, runs = channel_runs + (has_bias ? 1 : 0);
    const int items = least_of(p_.outputs - first_output_, kRows) * runs;
#pragma unroll 1
    for (int item = thread_index(); item < items; item += kThreads) {
      const int row = item / runs, run = item - row * runs;
      float* place = sums_ + row * kPitch + (run < channel_runs ? run * 4 : kColumns);
      float4 sum = *reinterpret_cast<const float4*>(place);
#pragma unroll
      for (int group = 1; group < kGroups; ++group) {
        add(sum, *reinterpret_cast<const float4*>(place + group * kRows * kPitch));
      }
      if (p_.cluster == 1) store_run(row, run, channel_runs, sum);
      else *reinterpret_cast<float4*>(place) = sum;
    }
    if (p_.cluster == 1) return;
    cluster_barrier();
#pragma unroll 1
    for (int item = rank_ * kThreads + thread_index(); item < items; item += p_.cluster * kThreads) {
      const int row = item / runs, run = item - row * runs;
      const float* place = sums_ + row * kPitch + (run < channel_runs ? run * 4 : kColumns);
      float4 sum = load_of_block(place, 0);
#pragma unroll 4
      for (int rank = 1; rank < p_.cluster; ++rank) add(sum, load_of_block(place, rank));
      store_run(row, run, channel_runs, sum);
    }
    cluster_barrier();  // no block's memory goes before all have read it
  }

  FUSEDSC_DEVICE static void add(float4& sum, const float4& other) {
    sum.x += other.x;
    sum.y += other.y;
    sum.z += other.z;
    sum.w += other.w;
  }

  FUSEDSC_DEVICE void write_own(const Sums& sums) {
    const int lane = thread_index() % 32;
    float* own = sums_ + (group_ * kRows + thread_index() % 128 / 32 * 16 + lane / 4) * kPitch;
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* row = own + (i * 64 + half * 8) * kPitch;
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int run = 0; run < kWide / 8; ++run) {
            const float* pair = sums[i][j] + run * 4 + half * 2;
            *reinterpret_cast<float2*>(row + j * kWide + run * 8 + lane % 4 * 2) = {pair[0], pair[1]};
          }
        }
        if constexpr (kSeams) {
          float bias = bias_[2 * i + half];
          bias += shuffle_xor(bias, 1);
          bias += shuffle_xor(bias, 2);
          if (lane % 4 == 0) row[kColumns] = bias;
        }
      }
    }
  }

  /// Four neighbouring channels of an output, or its bias.
  FUSEDSC_DEVICE void store_run(int row, int run, int channel_runs, const float4& sum) const {
    const int output = first_output_ + row, channel = first_channel_ + run * 4;
    if (p_.partials != nullptr) {
      const std::int64_t line = static_cast<std::int64_t>(split_) * p_.outputs + output;
      float* to = p_.partials + line * (p_.channels + 4) + (run < channel_runs ? channel : p_.channels);
      *reinterpret_cast<float4*>(to) = sum;
    } else if (run == channel_runs) {
      if (p_.bias != nullptr) from_accumulator(sum.x, static_cast<T*>(p_.bias)[output]);
    } else if (p_.weight != nullptr) {
      store<4>(&sum.x, static_cast<T*>(p_.weight) + output * p_.weight_row + channel);
    }
  }

  const PointwiseWeightParameters& p_;
  int group_, rank_, split_, first_output_, first_channel_, first_tile_, tile_step_, tiles_, stage_bytes_;
  int next_tile_ = 0;  ///< what the leader copies next
  bool is_leader_;
  unsigned char* stages_;
  Barrier* barriers_;
  float *sums_, *coefficients_;
  // Of a thread's outputs.
  float grad_scale_[kSeams ? 2 * kRowBlocks : 1], output_scale_[kSeams ? 2 * kRowBlocks : 1],
      offset_[kSeams ? 2 * kRowBlocks : 1], bias_[kSeams ? 2 * kRowBlocks : 1];
};

}  // namespace fusedsc::gpu::hopper
