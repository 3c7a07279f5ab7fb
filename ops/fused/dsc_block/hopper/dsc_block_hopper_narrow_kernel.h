/// The fused block in eval mode on Hopper GPUs where there are few channels, 16 bits, channels neighbours in memory,
/// windows of 3x3: one kernel, in which d stays in registers.
///
/// Tiles of x come to shared memory by TMA, a box of channels at a time. Each warp has kRows rows of 16
/// positions of the output and goes its own way. Depthwise it multiplies by tensor cores, as
/// forward/depthwise/hopper_tiles/depthwise_hopper_kernel.h does: A has 16 positions by the 8 channels that a tap sees
/// there, B the tap's weights on its diagonal. What such products leave in registers, normalised, activated and
/// rounded, is what the pointwise product takes for its A: the sums of all outputs stay with the warp until all
/// channels have been seen.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_narrow_parameters.h"

namespace fusedsc::gpu::hopper {

/// kOutputs: at most so many, a multiple of 16.
template <class T, int kStride, int kRows, int kOutputs>
class DscTiles {
 public:
  static constexpr int kKernel = 3;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const DscTilesParameters& p) {
    return 1024 + p.stages * (p.stage_bytes() + 16) + kOutputs * p.weight_pitch() + (p.channels + 1) * kTapBytes +
           p.padded_channels() * 8 + kOutputs * 8 + p.warps() * kStagedBytes;
  }

  FUSEDSC_DEVICE static void run(const DscTilesParameters& p) {
    DscTiles tiles(p);
    tiles.begin();
    const bool copies = tiles.warp_ == p.warps();
    DscTileCursor cursor(p);
    int slot = 0;
    if (copies && thread_index() % 32 == 0) {
      for (; slot < p.stages && cursor.exists(); ++slot) tiles.start_copy(cursor, slot);
    }
    tiles.prepare();
    if (!copies) tiles.compute();
    else if (thread_index() % 32 == 0) tiles.copy(cursor);
  }

 private:
  static constexpr int kInputRows = (kRows - 1) * kStride + kKernel;
  static constexpr int kTapBytes = 48;  ///< a channel's taps: rows of four words, each weight in its half of one
  static constexpr int kStagedPitch = kOutputs * 2 + 16, kStagedBytes = 16 * kStagedPitch;
  static constexpr float kMost = std::numeric_limits<float>::max();

  /// A block's boxes of tiles, one after the other.
  struct DscTileCursor {
    const DscTilesParameters& p;
    int tile, box = 0;

    FUSEDSC_DEVICE explicit DscTileCursor(const DscTilesParameters& p_)
        : p(p_), tile(static_cast<int>(block_index())) {}
    FUSEDSC_DEVICE bool exists() const { return tile < p.tiles; }
    FUSEDSC_DEVICE void next() {
      if (++box < p.boxes) return;
      box = 0;
      tile += static_cast<int>(block_count());
    }
  };
  /// Of the output, a tile's first position.
  struct Place {
    int image, row, column;

    FUSEDSC_DEVICE Place(const DscTilesParameters& p, int tile) {
      std::uint32_t rest = static_cast<std::uint32_t>(tile);
      std::uint32_t quotient = p.by_column_tiles.divide(rest);
      column = static_cast<int>(rest) * p.strips * 16;
      image = static_cast<int>(p.by_row_tiles.divide(quotient));
      row = static_cast<int>(quotient) * p.row_groups * kRows;
    }
  };

  FUSEDSC_DEVICE explicit DscTiles(const DscTilesParameters& p) : p_(p) {
    warp_ = uniform(thread_index() / 32);
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    stages_ = memory;
    memory += p.stages * p.stage_bytes();
    weights_ = memory;
    memory += kOutputs * p.weight_pitch();
    taps_ = reinterpret_cast<std::uint32_t*>(memory);
    memory += (p.channels + 1) * kTapBytes;
    maps_ = reinterpret_cast<float*>(memory);
    memory += p.padded_channels() * 8;
    output_maps_ = reinterpret_cast<float*>(memory);
    memory += kOutputs * 8;
    staged_ = memory + warp_ * kStagedBytes;
    arrived_ = reinterpret_cast<Barrier*>(memory + p.warps() * kStagedBytes);
    done_ = arrived_ + p.stages;
  }

  FUSEDSC_DEVICE void begin() {
    if (thread_index() == 0) {
      initialise_stages(p_, arrived_, done_);
      publish();
    }
    const int behind = p_.box_tile_bytes();
    for (int i = behind + thread_index() * 16; i < p_.stage_bytes(); i += threads() * 16) {
      for (int stage = 0; stage < p_.stages; ++stage) {
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(stages_ + stage * p_.stage_bytes() + i) = {};
      }
    }
    block_barrier();
    wait_for_previous_kernel();
    let_next_kernel_start();
  }

  FUSEDSC_DEVICE int threads() const { return (p_.warps() + 1) * 32; }

  // --------------------------------------------------------------------------------------- by the thread that copies

  FUSEDSC_DEVICE void start_copy(DscTileCursor& at, int slot) const {
    const Place place(p_, at.tile);
    expect(arrived_ + slot, p_.box_tile_bytes());
    start_load(stages_ + slot * p_.stage_bytes(), p_.x,
               ImagePlace{at.box * p_.box_bytes / 2, place.column * kStride - p_.padding_left,
                          place.row * kStride - p_.padding_top, place.image},
               arrived_ + slot);
    at.next();
  }

  FUSEDSC_DEVICE void copy(DscTileCursor& at) const {
    StageTurn turn;
#pragma unroll 1
    while (at.exists()) {
      wait(done_ + turn.slot, turn.parity);
      start_copy(at, turn.slot);
      turn.next(p_.stages);
    }
  }

  // --------------------------------------------------------------------------------------- by all threads of the block

  /// Both weights, and BatchNorm and the epilogue as affine maps, to shared memory; zeros where there is nothing.
  FUSEDSC_DEVICE void prepare() {
    const int thread = thread_index(), all = threads();
    const int runs = p_.padded_channels() / 8;
    for (int i = thread; i < kOutputs * runs; i += all) {
      const int output = i / runs, channel = (i - output * runs) * 8;
      Aligned<std::uint32_t, 4> words = {};
      if (output < p_.outputs && channel < p_.channels) {
        words = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(elements_of<T>(p_.pw_weight) +
                                                                    output * p_.pw_weight.image + channel);
      }
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(weights_ + output * p_.weight_pitch() + channel * 2) = words;
    }
    for (int i = thread; i < (p_.channels + 1) * 12; i += all) {
      const int channel = i / 12, kh = i % 12 / 4, kw = i % 4;
      const bool exists = channel < p_.channels && kw < kKernel;
      const std::uint32_t bits =
          exists ? elements_of<T>(p_.dw_weight)[p_.dw_weight.offset(channel, 0, kh, kw)].bits : 0;
      taps_[i] = bits << 16 * (channel % 2);
    }
    for (int c = thread; c < p_.padded_channels(); c += all) {
      const auto map = p_.template channel_map<T>(c);
      maps_[2 * c] = map.scale;
      maps_[2 * c + 1] = map.shift;
    }
    for (int m = thread; m < kOutputs; m += all) {
      const auto map = p_.template output_map<T>(m);
      output_maps_[2 * m] = map.scale;
      output_maps_[2 * m + 1] = map.shift;
    }
    block_barrier();
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  using Sums = float[kRows][kOutputs / 8][4];

  FUSEDSC_DEVICE void aim() {
    const int lane = thread_index() % 32, matrix = lane / 8, g = lane / 4;
    first_column_ = warp_ % p_.strips * 16;
    own_row_ = warp_ / p_.strips * kRows;
    const int tile_place = own_row_ * kStride * p_.pitch * p_.box_bytes;
    // Of 16 positions the first 8, the other 8; of the taps 0 and 1. Then of tap 2.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int tap = i == 0 ? matrix / 2 : 2, column = (first_column_ + matrix % 2 * 8 + lane % 8) * kStride + tap;
      places_[i] = tile_place + column * p_.box_bytes;
      swizzles_[i] = hopper::swizzled_run(p_.box_bytes, 0, column);
    }
    weight_place_ = (matrix / 2 * 8 + lane % 8) * p_.weight_pitch() + matrix % 2 * 16;
    has_taps_ = g / 2 == lane % 4;
  }

  FUSEDSC_DEVICE void compute() {
    aim();
    StageTurn turn;
#pragma unroll 1
    for (int tile = static_cast<int>(block_index()); tile < p_.tiles; tile += static_cast<int>(block_count())) {
      const Place place(p_, tile);
      image_ = place.image;
      row_ = place.row + own_row_;
      column_ = place.column + first_column_;
      Sums sums;
#pragma unroll
      for (int i = 0; i < kRows * kOutputs / 2; ++i) sums[i / (kOutputs / 2)][i / 4 % (kOutputs / 8)][i % 4] = 0;
      // The pointwise product runs one step behind, beside the depthwise products of the next 16 channels.
      std::uint32_t middle[kRows][4] = {};
      int channel = 0;
#pragma unroll 1
      for (int box = 0; box < p_.boxes; ++box) {
        wait(arrived_ + turn.slot, turn.parity);
        const unsigned char* box_tile = stages_ + turn.slot * p_.stage_bytes();
        const int first = box * p_.box_bytes / 2, runs = least(p_.box_bytes / 16, (p_.channels - first + 7) / 8);
#pragma unroll 1
        for (int run = 0; run < runs; run += 2) {
          float d[2][kRows][4];
          multiply_depthwise(box_tile, run, first + run * 8, d);
          multiply_pointwise(middle, channel, sums);
          channel = first + run * 8;
          float any = 0;  // of positions; what is not finite in one channel is in all 8 of them
#pragma unroll
          for (int i = 0; i < 4 * kRows; ++i) any += d[i / (2 * kRows)][i / 2 % kRows][i % 2 * 2];
          if (any_of_warp(!(fabsf(any) <= kMost))) compute_again(channel, d);
          finish(channel, d, middle);
        }
        warp_barrier();
        if (thread_index() % 32 == 0) arrive(done_ + turn.slot);
        turn.next(p_.stages);
      }
      multiply_pointwise(middle, channel, sums);
      if (column_ < p_.output_width) store(sums);
    }
  }

  /// d of all rows of 16 channels. Beyond the last channel there are no taps.
  FUSEDSC_DEVICE void multiply_depthwise(const unsigned char* tile, int run, int channel,
                                         float (&d)[2][kRows][4]) const {
    const int lane = thread_index() % 32, row_bytes = p_.pitch * p_.box_bytes;
    Aligned<std::uint32_t, 4> taps[2][kKernel];
    const unsigned char *pairs[2], *last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool exists = has_taps_ && channel + half * 8 < p_.channels;
      const std::uint32_t* from = taps_ + (exists ? channel + half * 8 + lane / 4 : p_.channels) * (kTapBytes / 4);
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
        taps[half][kh] = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(from + kh * 4);
      }
      pairs[half] = tile + places_[0] + ((run + half) * 16 ^ swizzles_[0]);
      last[half] = tile + places_[1] + ((run + half) * 16 ^ swizzles_[1]);
#pragma unroll
      for (int i = 0; i < kRows * 4; ++i) d[half][i / 4][i % 4] = 0;
    }
#pragma unroll
    for (int i = 0; i < kInputRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4], b[2];
        load_matrices(pairs[half] + i * row_bytes, a);
        load_matrices(last[half] + i * row_bytes, b);
#pragma unroll
        for (int kh = 0; kh < kKernel; ++kh) {
          const int row = (i - kh + kStride * kKernel) / kStride - kKernel;
          if ((i - kh + kStride * kKernel) % kStride != 0 || row < 0 || row >= kRows) continue;
          const auto& tap = taps[half][kh].elements;
          wave_multiply_add(d[half][row], {{a[0], a[1], a[2], a[3]}, {tap[0], tap[1]}}, T());
          wave_multiply_add_half(d[half][row], b, tap[2], T());
        }
      }
    }
  }

  /// d normalised and activated, as registers of A.
  FUSEDSC_DEVICE void finish(int channel, const float (&d)[2][kRows][4], std::uint32_t (&middle)[kRows][4]) const {
    const bool clamps = p_.activation == Activation::relu || p_.activation == Activation::relu6;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto map =
          *reinterpret_cast<const Aligned<float, 4>*>(maps_ + 2 * (channel + half * 8) + thread_index() % 4 * 4);
      float z[kRows * 4];
#pragma unroll
      for (int i = 0; i < kRows * 4; ++i) {
        z[i] = d[half][i / 4][i % 4] * map.elements[i % 2 * 2] + map.elements[i % 2 * 2 + 1];
      }
      if (!clamps) activate(p_.activation, z);
#pragma unroll
      for (int i = 0; i < kRows * 2; ++i) middle[i / 2][2 * half + i % 2] = to_bits(z[2 * i], z[2 * i + 1], T());
    }
    if (!clamps) return;
    // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
    const bool to_six = p_.activation == Activation::relu6;
#pragma unroll
    for (int i = 0; i < kRows * 4; ++i) middle[i / 4][i % 4] = clamped_pair(middle[i / 4][i % 4], to_six, T());
  }

  /// Rarely: what zeros of the other operand have made a NaN of, element by element from x, each from its own channel.
  FUSEDSC_DEVICE void compute_again(int channel, float (&d)[2][kRows][4]) const {
    const int lane = thread_index() % 32;
#pragma unroll 1
    for (int i = 0; i < kRows * 8; ++i) {
      const int own = channel + i / (kRows * 4) * 8 + lane % 4 * 2 + i % 2;
      const float sum = p_.template window_sum<T, kKernel, kStride>(image_, own, row_ + i / 4 % kRows,
                                                                    column_ + i / 2 % 2 * 8 + lane / 4);
#pragma unroll
      for (int j = 0; j < kRows * 8; ++j) {
        float& to = d[j / (kRows * 4)][j / 4 % kRows][j % 4];
        to = i == j ? sum : to;
      }
    }
  }

  /// sums += 16 channels from `channel` on, times their weights.
  FUSEDSC_DEVICE void multiply_pointwise(const std::uint32_t (&middle)[kRows][4], int channel, Sums& sums) const {
    const unsigned char* weight = weights_ + weight_place_ + channel * 2;
#pragma unroll
    for (int tile = 0; tile < kOutputs / 8; tile += 2) {
      std::uint32_t b[4];
      load_matrices(weight + tile * 8 * p_.weight_pitch(), b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const std::uint32_t(&a)[4] = middle[row];
        wave_multiply_add(sums[row][tile], {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, T());
        wave_multiply_add(sums[row][tile + 1], {{a[0], a[1], a[2], a[3]}, {b[2], b[3]}}, T());
      }
    }
  }

  /// The epilogue: of a pair of outputs from `output` on, of positions lane / 4 and 8 further, then of the pair 8
  /// outputs on.
  FUSEDSC_DEVICE void finish_outputs(int output, int row, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* map = output_maps_ + 2 * (output + i / 4 * 8);
      values[i] = values[i] * map[i % 2 * 2] + map[i % 2 * 2 + 1];
    }
    activate(p_.epilogue_activation, values);
    if (p_.residual.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int channel = output + i / 4 * 8, column = column_ + thread_index() % 32 / 4 + i / 2 % 2 * 8;
      if (channel >= p_.outputs || column >= p_.output_width) continue;
      float added[2];
      load<2>(elements_of<T>(p_.residual) + p_.residual.offset(image_, channel, row, column)).widen(added);
      values[i] += added[0];
      values[i + 1] += added[1];
    }
  }

  /// By way of shared memory, so that neighbouring lanes store neighbouring runs of 16 bytes.
  FUSEDSC_DEVICE void store(const Sums& sums) const {
    const int lane = thread_index() % 32;
    unsigned char* to = staged_ + (lane % 16) * kStagedPitch + lane / 16 * 16;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row_ + row >= p_.output_height) continue;
      warp_barrier();  // what was here has been stored
#pragma unroll
      for (int tile = 0; tile < kOutputs / 8; tile += 2) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums[row][tile + i / 4][i % 4];
        finish_outputs(tile * 8 + lane % 4 * 2, row_ + row, values);
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
        store_matrices(to + tile * 16, words);
      }
      warp_barrier();
#pragma unroll
      for (int i = 0; i < kOutputs / 16; ++i) {
        constexpr int kRuns = kOutputs / 8;
        const int item = lane + i * 32, position = item / kRuns, run = item % kRuns;
        if (run * 8 >= p_.outputs || column_ + position >= p_.output_width) continue;
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(elements_of<T>(p_.y) +
                                                      p_.y.offset(image_, run * 8, row_ + row, column_ + position)) =
            *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(staged_ + position * kStagedPitch + run * 16);
      }
    }
  }

  const DscTilesParameters& p_;
  int warp_;
  unsigned char *stages_, *weights_, *staged_;
  std::uint32_t* taps_;
  float *maps_, *output_maps_;  ///< scale and shift of each channel, and of each output
  Barrier *arrived_, *done_;
  int first_column_ = 0, own_row_ = 0;  ///< of the warp, in a tile
  int places_[2], swizzles_[2], weight_place_ = 0;
  bool has_taps_ = false;
  int image_ = 0, row_ = 0, column_ = 0;  ///< of the output, the warp's first position
};

}  // namespace fusedsc::gpu::hopper
