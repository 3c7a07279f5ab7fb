/// As pointwise_hopper_n_resident_kernel.h, for more channels and outputs. A block's two warpgroups share a tile
/// of 64 positions; each has half of the outputs, whose gradients come to it 64 outputs at a time. Their sums for
/// grad_x are exchanged. Where registers do not hold the sums of all channels, blocks side by side have some channels
/// each of the same positions, whose gradients the second one finds in the cache.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_sums.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// kOutputs and kChannels: at least as many as there are; kColumns: channels of a block.
template <class T, int kOutputs_, int kChannels_, int kColumns_>
class PointwiseNResidentWideProduct {
 public:
  static constexpr int kOutputs = kOutputs_, kChannels = kChannels_, kColumns = kColumns_, kThreads = 256;
  static constexpr int kOutputBlocks = (kOutputs + 63) / 64, kChannelBlocks = (kChannels + 63) / 64;
  static constexpr int kWide = kColumns <= 32 ? 32 : 64, kSteps = (kChannels + 15) / 16;
  static constexpr int kQuads = kOutputBlocks * kColumns / 8;
  static constexpr PrepackedWeights kImage = PrepackedWeights::of(kOutputBlocks * 64, kSteps * 16, kWide * 2);
  static_assert(kColumns % 16 == 0 && kChannels > 32);  // x comes 64 channels at a time

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages, bool /*has_added*/) {
    return 1024 + kImageBytes + kXStages * kXBytes + 2 * stages * kTileBytes + kOutBytes + kExchangeBytes + kOnesBytes +
           barrier_bytes(stages) + End::kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseNResidentParameters& p) {
    PointwiseNResidentWideProduct product(p);
    product.loop();
  }

 private:
  using End = NResidentEnd<T, kColumns, kSteps>;
  using Row = typename End::Row;  ///< sums of 64 rows
  using Run = Aligned<std::uint32_t, 4>;
  static constexpr bool kSharesX = kChannels <= kColumns;  ///< a block's channels are all there are
  static constexpr int kRowBytes = kWide * 2, kTileBytes = 64 * 128, kXStages = 2;
  static constexpr int kXBytes = kChannelBlocks * kTileBytes + (kSharesX ? 0 : 64 * kRowBytes);
  static constexpr int kOutBytes = 64 * kRowBytes, kExchangeBytes = 64 * kColumns * 4, kOnesBytes = 512;
  static constexpr int kImageBytes = (kImage.bytes + 1023) / 1024 * 1024;
  static constexpr int kOwnBlocks = (kOutputBlocks + 1) / 2;  ///< of the first group
  static constexpr int kRunsOfRow = kColumns / 8, kOwnRuns = (64 * kRunsOfRow + kThreads - 1) / kThreads;

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return ((kXStages + 2 * stages) * 8 + 15) / 16 * 16;
  }

  struct Sums {
    Row grad_x, weight[kOwnBlocks], squares[kChannelBlocks];
    float channels[4];
  };

  FUSEDSC_DEVICE explicit PointwiseNResidentWideProduct(const PointwiseNResidentParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    first_block_ = group_ * kOwnBlocks;
    part_ = static_cast<int>(block_index()) % p.parts;
    split_ = static_cast<int>(block_index()) / p.parts;
    first_channel_ = part_ * kColumns;
    tiles_ = split_ < p.pixel_tiles ? (p.pixel_tiles - split_ + p.splits - 1) / p.splits : 0;
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    image_ = memory;
    x_ = image_ + kImageBytes;
    tiles_of_block_ = x_ + kXStages * kXBytes;
    stages_ = tiles_of_block_ + group_ * p.stages * kTileBytes;
    out_ = tiles_of_block_ + 2 * p.stages * kTileBytes;
    exchange_ = reinterpret_cast<Aligned<float, 4>*>(out_ + kOutBytes);
    ones_ = out_ + kOutBytes + kExchangeBytes;
    x_barriers_ = reinterpret_cast<Barrier*>(ones_ + kOnesBytes);
    barriers_ = x_barriers_ + kXStages + group_ * p.stages;
    vectors_ = reinterpret_cast<float*>(ones_ + kOnesBytes + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (split_ + tile * p_.splits) * 64; }

  FUSEDSC_DEVICE bool has_block(int i) const { return i < kOutputBlocks - kOwnBlocks || group_ == 0; }

  FUSEDSC_DEVICE void loop() {
    let_next_kernel_start();
    if (thread_ == 0) {
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      for (int i = 0; i < kXStages && group_ == 0; ++i) initialise(x_barriers_ + i);
    }
    if (thread_index() < kOnesBytes / 4) {
      reinterpret_cast<std::uint32_t*>(ones_)[thread_index()] = to_bits(1.0f, 1.0f, T());
    }
    publish();
    wait_for_previous_kernel();
    if (thread_ == 0) {
      for (int i = 0; i < kXStages && group_ == 0; ++i) start_x(i);
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    const Run* image = reinterpret_cast<const Run*>(p_.image + static_cast<std::int64_t>(part_) * kImage.bytes);
    for (int i = thread_index(); i < kImage.bytes / 16; i += kThreads) reinterpret_cast<Run*>(image_)[i] = image[i];
    publish();
    block_barrier();
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Run added[kOwnRuns] = {};
      if (p_.has_added) load_added(tile, added);
      wait(x_barriers_ + tile % kXStages, tile / kXStages % 2);
      const unsigned char* x = x_ + tile % kXStages * kXBytes;
      multiply_x(sums, x);
      int last_slot = 0;
#pragma unroll
      for (int i = 0; i < kOwnBlocks; ++i) {
        if (!has_block(i)) continue;
        wait(barriers_ + turn.slot, turn.parity);
        multiply_block(sums, x, i, stages_ + turn.slot * kTileBytes);
        wait_for_products<1>();
        if (i > 0) {
          group_barrier(group_);
          if (thread_ == 0) start_next(last_slot);
        }
        last_slot = turn.slot;
        turn.next(p_.stages);
      }
      wait_for_products<0>();
      fence_all(sums);
      if (p_.has_added) put_added(added);
      send_half(sums.grad_x);
      block_barrier();  // all are done with the tiles
      if (thread_ == 0) {
        start_next(last_slot);
        if (group_ == 0) start_x(tile + kXStages);
      }
      finish_half(sums.grad_x);
      block_barrier();
      store_tile(tile);
    }
    finish(sums);
    leave(sums);
  }

  // ---------------------------------------------------------------------------------------- by the leader of a group

  FUSEDSC_DEVICE void start_x(int tile) const {
    if (tile >= tiles_) return;
    Barrier* barrier = x_barriers_ + tile % kXStages;
    unsigned char* to = x_ + tile % kXStages * kXBytes;
    expect(barrier, kXBytes);
#pragma unroll
    for (int i = 0; i < kChannelBlocks; ++i) start_load(to + i * kTileBytes, p_.x, i * 64, first_pixel(tile), barrier);
    if (!kSharesX) start_load(to + kChannelBlocks * kTileBytes, p_.own_x, first_channel_, first_pixel(tile), barrier);
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kTileBytes);
    start_load(stages_ + slot * kTileBytes, p_.grad_y, (first_block_ + next_block_) * 64, first_pixel(next_tile_),
               barriers_ + slot);
    if (++next_block_ < kOwnBlocks && has_block(next_block_)) return;
    next_block_ = 0;
    ++next_tile_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
    fence(sums.grad_x);
    fence(sums.channels);
    fence(sums.weight);
    fence(sums.squares);
  }

  FUSEDSC_DEVICE static const unsigned char* own_x(const unsigned char* x) {
    return kSharesX ? x : x + kChannelBlocks * kTileBytes;
  }

  /// One group multiplies x with the image, the other with itself.
  FUSEDSC_DEVICE void multiply_x(Sums& sums, const unsigned char* x) const {
    const std::uint64_t all = describe<128>(x), own = describe<kRowBytes>(own_x(x)),
                        square = describe<kRowBytes>(image_ + kImage.first_square), ones = describe_constant(ones_);
    fence_all(sums);
    begin_products();
    if (group_ == 0) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const std::uint64_t rows = all + (step / 4 * kTileBytes + step % 4 * 32) / 16;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply<true>(sums.grad_x, rows, square + (part * End::kSquareBytes + step * 16 * kRowBytes) / 16,
                         step == 0 && part == 0, T());
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < 64; k += 16) {
        const std::uint64_t cols = own + k * kRowBytes / 16;
#pragma unroll
        for (int i = 0; i < kChannelBlocks; ++i) {
          multiply<true, true>(sums.squares[i], all + (i * kTileBytes + k * 128) / 16, cols, false, T());
        }
        multiply<false, true>(sums.channels, cols, ones, false, T());
      }
    }
    commit_products();
    fence_all(sums);
  }

  FUSEDSC_DEVICE void multiply_block(Sums& sums, const unsigned char* x, int i, const unsigned char* tile) const {
    const std::uint64_t grad_y = describe<128>(tile), own = describe<kRowBytes>(own_x(x)),
                        weight = describe<kRowBytes>(image_ + (first_block_ + i) * 64 * kRowBytes);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      multiply<true, true>(sums.weight[i], grad_y + k * 128 / 16, own + k * kRowBytes / 16, false, T());
      multiply<true>(sums.grad_x, grad_y + k * 2 / 16, weight + k * kRowBytes / 16, i == 0 && k == 0 && group_ != 0,
                     T());
    }
    commit_products();
    fence_all(sums);
  }

  // ------------------------------------------------------------------------------------------------ results of a tile

  /// fn(number, pixel, channel, place in the tile) of each of the thread's runs.
  template <class Function>
  FUSEDSC_DEVICE void for_own_runs(int tile, const Function& fn) const {
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int number = i * kThreads + thread_index(), row = number / kRunsOfRow, run = number % kRunsOfRow;
      const int pixel = first_pixel(tile) + row, channel = first_channel_ + run * 8;
      if (row < 64 && pixel < p_.pixels && channel < p_.channels) {
        fn(i, static_cast<std::int64_t>(pixel), channel, place_of_run<kRowBytes>(row, run));
      }
    }
  }

  FUSEDSC_DEVICE void load_added(int tile, Run (&to)[kOwnRuns]) const {
    for_own_runs(tile, [&](int i, std::int64_t pixel, int channel, int) {
      to[i] = *reinterpret_cast<const Run*>(static_cast<const T*>(p_.added_data) + pixel * p_.added_row + channel);
    });
  }

  FUSEDSC_DEVICE void put_added(const Run (&from)[kOwnRuns]) const {
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int number = i * kThreads + thread_index(), row = number / kRunsOfRow, run = number % kRunsOfRow;
      if (row < 64) *reinterpret_cast<Run*>(out_ + place_of_run<kRowBytes>(row, run)) = from[i];
    }
  }

  FUSEDSC_DEVICE void store_tile(int tile) const {
    for_own_runs(tile, [&](int, std::int64_t pixel, int channel, int place) {
      *reinterpret_cast<Run*>(static_cast<T*>(p_.grad_x_data) + pixel * p_.grad_x_row + channel) =
          *reinterpret_cast<const Run*>(out_ + place);
    });
  }

  /// To the other group: its half of the channels.
  FUSEDSC_DEVICE void send_half(const Row& sums) const {
    constexpr int kHalf = kColumns / 4;
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      Aligned<float, 4> four;
#pragma unroll
      for (int v = 0; v < 4; ++v) four.elements[v] = group_ == 0 ? sums[kHalf + i + v] : sums[i + v];
      exchange_[(group_ * kHalf + i) / 4 * 128 + thread_] = four;
    }
  }

  /// Where what is added may lie.
  FUSEDSC_DEVICE void finish_half(const Row& sums) const {
    constexpr int kRuns = kColumns / 16;
    const auto* vectors = reinterpret_cast<const float*>(image_ + kImage.vectors);
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Aligned<float, 4> others = exchange_[((1 - group_) * kRuns + i) * 128 + thread_];
      const int run = group_ * kRuns + i, channel = run * 8 + lane % 4 * 2;
      const auto scale = pair_at(vectors + channel), constant = pair_at(vectors + kWide + channel);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* to = reinterpret_cast<std::uint32_t*>(out_ + place_of_run<kRowBytes>(row + half * 8, run) + lane % 4 * 4);
        float values[2];
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const int number = i * 4 + half * 2 + v;
          const float own = group_ == 0 ? sums[number] : sums[kRuns * 4 + number];
          values[v] = (own + others.elements[half * 2 + v]) * scale.elements[v] + constant.elements[v];
        }
        if (p_.has_added) {
          float addends[2];
          to_floats(*to, addends[0], addends[1], T());
          values[0] += addends[0];
          values[1] += addends[1];
        }
        *to = to_bits(values[0], values[1], T());
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------- at the end

  /// Makes sums.weight the block's share of the gradient. x^T x goes to where tiles were.
  FUSEDSC_DEVICE void finish(Sums& sums) const {
    End end(p_, vectors_, tiles_of_block_);
    if (group_ == 1) end.leave_largest(sums.squares, sums.channels);
    block_barrier();
    end.read_largest();
    if (group_ == 1) end.leave_squares(sums.squares);
    block_barrier();
#pragma unroll
    for (int block = 0; block < kOwnBlocks; ++block) {
      if (has_block(block)) end.finish(sums.weight[block], sums.grad_x, (first_block_ + block) * 64);
    }
  }

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
    Aligned<float, 4>* to = p_.partials + static_cast<std::int64_t>(block_index()) * (kQuads * 128);
#pragma unroll
    for (int i = 0; i < kOwnBlocks * kColumns / 8; ++i) {
      const int block = i / (kColumns / 8);
      if (!has_block(block)) continue;
      const int quad = first_block_ * (kColumns / 8) + i;
      const NResidentQuad place(quad, thread_, kColumns / 8);
      if (place.output >= p_.outputs || first_channel_ + place.channel >= p_.channels) continue;
      const float* from = sums.weight[block] + i % (kColumns / 8) * 4;
      to[quad * 128 + thread_] = {{from[0], from[1], from[2], from[3]}};
    }
  }

  const PointwiseNResidentParameters& p_;
  int group_, thread_, first_block_, part_, split_, first_channel_, tiles_;
  int next_tile_ = 0, next_block_ = 0;  ///< what the leader copies next
  unsigned char *image_, *x_, *tiles_of_block_, *stages_, *out_, *ones_;
  Barrier *x_barriers_, *barriers_;
  float* vectors_;
  Aligned<float, 4>* exchange_;
};

}  // namespace fusedsc::gpu::hopper
