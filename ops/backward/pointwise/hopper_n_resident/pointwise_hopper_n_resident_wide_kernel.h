/// As pointwise_hopper_n_resident_kernel.h, for more channels and outputs. A block's two warpgroups share a tile
/// of 64 positions; each has half of the outputs, whose gradients come to it 64 outputs at a time. Their sums for
/// grad_x are exchanged. Where registers do not hold the sums of all channels, blocks side by side have some channels
/// each of the same positions, whose gradients the second one finds in the cache.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_block.h"

namespace fusedsc::gpu::hopper {

/// Block: an NResidentBlock of one slice.
template <class Block>
class PointwiseNResidentWideProduct {
 public:
  static constexpr int kThreads = Block::kThreads;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages, bool /*has_added*/) {
    return 1024 + Block::kImageBytes + kXStages * kXBytes + 2 * stages * kTileBytes + kOutBytes + kExchangeBytes +
           Block::kOnesBytes + barrier_bytes(stages) + Block::kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseNResidentParameters& p) {
    PointwiseNResidentWideProduct product(p);
    product.loop();
  }

 private:
  using T = typename Block::T;
  using Sums = typename Block::Sums;
  using Row = typename Block::Row;
  using Run = typename Block::Run;
  static constexpr int kColumns = Block::kColumns, kRowBytes = Block::kRowBytes, kTileBytes = Block::kTileBytes,
                       kChannelBlocks = Block::kChannelBlocks, kOwnBlocks = Block::kOwnBlocks;
  static constexpr bool kSharesX = Block::kChannels <= kColumns;  ///< a block's channels are all there are
  static constexpr int kXStages = 2;
  static constexpr int kXBytes = kChannelBlocks * kTileBytes + (kSharesX ? 0 : 64 * kRowBytes);
  static constexpr int kOutBytes = 64 * kRowBytes, kExchangeBytes = 64 * kColumns * 4;
  static constexpr int kRunsOfRow = kColumns / 8, kOwnRuns = (64 * kRunsOfRow + kThreads - 1) / kThreads;

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return ((kXStages + 2 * stages) * 8 + 15) / 16 * 16;
  }

  FUSEDSC_DEVICE explicit PointwiseNResidentWideProduct(const PointwiseNResidentParameters& p) : p_(p), b_(p) {
    split_ = static_cast<int>(block_index()) / p.parts;
    tiles_ = split_ < p.pixel_tiles ? (p.pixel_tiles - split_ + p.splits - 1) / p.splits : 0;
    x_ = b_.image + Block::kImageBytes;
    tiles_of_block_ = x_ + kXStages * kXBytes;
    stages_ = tiles_of_block_ + b_.group * p.stages * kTileBytes;
    out_ = tiles_of_block_ + 2 * p.stages * kTileBytes;
    exchange_ = reinterpret_cast<Aligned<float, 4>*>(out_ + kOutBytes);
    b_.ones = out_ + kOutBytes + kExchangeBytes;
    x_barriers_ = reinterpret_cast<Barrier*>(b_.ones + Block::kOnesBytes);
    barriers_ = x_barriers_ + kXStages + b_.group * p.stages;
    b_.vectors = reinterpret_cast<float*>(b_.ones + Block::kOnesBytes + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (split_ + tile * p_.splits) * 64; }

  FUSEDSC_DEVICE void loop() {
    const bool is_leader = b_.thread == 0;
    let_next_kernel_start();
    if (is_leader) {
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      for (int i = 0; i < kXStages && b_.group == 0; ++i) initialise(x_barriers_ + i);
    }
    b_.fill_ones();
    publish();
    wait_for_previous_kernel();
    if (is_leader) {
      for (int i = 0; i < kXStages && b_.group == 0; ++i) start_x(i);
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    b_.copy_image();
    publish();
    block_barrier();
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Run added[kOwnRuns] = {};
      if (p_.has_added) load_added(tile, added);
      wait(x_barriers_ + tile % kXStages, tile / kXStages % 2);
      const unsigned char *x = x_ + tile % kXStages * kXBytes, *own_x = kSharesX ? x : x + kChannelBlocks * kTileBytes;
      multiply_x(sums, x, own_x);
      int last_slot = 0;
#pragma unroll
      for (int i = 0; i < kOwnBlocks; ++i) {
        if (!b_.has_block(i)) continue;
        wait(barriers_ + turn.slot, turn.parity);
        multiply_block(sums, i, stages_ + turn.slot * kTileBytes, own_x);
        wait_for_products<1>();
        if (i > 0) {
          group_barrier(b_.group);
          if (is_leader) start_next(last_slot);
        }
        last_slot = turn.slot;
        turn.next(p_.stages);
      }
      wait_for_products<0>();
      Block::fence_all(sums);
      if (p_.has_added) put_added(added);
      send_half(sums.grad_x);
      block_barrier();  // all are done with the tiles
      if (is_leader) {
        start_next(last_slot);
        if (b_.group == 0) start_x(tile + kXStages);
      }
      finish_half(sums.grad_x);
      block_barrier();
      store_tile(tile);
    }
    b_.finish(sums, tiles_of_block_);
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
    if (!kSharesX) start_load(to + kChannelBlocks * kTileBytes, p_.own_x, b_.first_channel, first_pixel(tile), barrier);
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kTileBytes);
    start_load(stages_ + slot * kTileBytes, p_.grad_y, (b_.first_output_block + next_block_) * 64,
               first_pixel(next_tile_), barriers_ + slot);
    if (++next_block_ < kOwnBlocks && b_.has_block(next_block_)) return;
    next_block_ = 0;
    ++next_tile_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  /// One group multiplies x with the image, the other with itself.
  FUSEDSC_DEVICE void multiply_x(Sums& sums, const unsigned char* x, const unsigned char* own_x) const {
    Block::fence_all(sums);
    begin_products();
    if (b_.group == 0) b_.multiply_image(sums, x);
    else b_.multiply_squares(sums, x, own_x);
    commit_products();
    Block::fence_all(sums);
  }

  FUSEDSC_DEVICE void multiply_block(Sums& sums, int i, const unsigned char* grad_y, const unsigned char* own_x) const {
    Block::fence_all(sums);
    begin_products();
    b_.multiply_block(sums, i, grad_y, own_x);
    commit_products();
    Block::fence_all(sums);
  }

  // ------------------------------------------------------------------------------------------------ results of a tile

  /// fn(number, pixel, channel, place in the tile) of each of the thread's runs.
  template <class Function>
  FUSEDSC_DEVICE void for_own_runs(int tile, const Function& fn) const {
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int number = i * kThreads + thread_index(), row = number / kRunsOfRow, run = number % kRunsOfRow;
      const int pixel = first_pixel(tile) + row, channel = b_.first_channel + run * 8;
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
      for (int v = 0; v < 4; ++v) four.elements[v] = b_.group == 0 ? sums[kHalf + i + v] : sums[i + v];
      exchange_[(b_.group * kHalf + i) / 4 * 128 + b_.thread] = four;
    }
  }

  FUSEDSC_DEVICE void finish_half(const Row& sums) const {
    constexpr int kRuns = kColumns / 16;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      Aligned<float, 4> four = exchange_[((1 - b_.group) * kRuns + i) * 128 + b_.thread];
#pragma unroll
      for (int v = 0; v < 4; ++v) four.elements[v] += b_.group == 0 ? sums[i * 4 + v] : sums[(kRuns + i) * 4 + v];
      b_.put_results(four, b_.group * kRuns + i, out_);
    }
  }

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
    Aligned<float, 4>* to = b_.partials();
#pragma unroll
    for (int i = 0; i < kOwnBlocks * kColumns / 8; ++i) {
      const int quad = b_.first_output_block * (kColumns / 8) + i;
      if (!b_.has_block(i / (kColumns / 8)) || !b_.exists(quad, b_.thread)) continue;
      to[quad * 128 + b_.thread] = Block::four_of(sums, i);
    }
  }

  const PointwiseNResidentParameters& p_;
  Block b_;
  int split_, tiles_;
  int next_tile_ = 0, next_block_ = 0;  ///< what the leader copies next
  unsigned char *x_, *tiles_of_block_, *stages_, *out_;
  Barrier *x_barriers_, *barriers_;
  Aligned<float, 4>* exchange_;
};

}  // namespace fusedsc::gpu::hopper
