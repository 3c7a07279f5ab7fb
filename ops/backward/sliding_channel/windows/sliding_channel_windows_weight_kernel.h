/// The weight gradient of sliding-channel convolutions of 16-bit channels_last tensors on Hopper GPUs, for windows that
/// share half of their channels with the next one: products of tiles of x and of grad_y as they are, transposed, of
/// which only the sums leave a block that are in a window. Filters of one window lie `kWindows` apart, so that a tile
/// of outputs has some of each: multiplying what is in no window costs products, of which there are enough, and sorting
/// filters before would cost threads more.
///
/// Positions are shared by a block's warpgroups and by the blocks of a cluster, which add their sums through
/// shared memory: there is no second kernel.
#pragma once

#include "fusedsc/backward/sliding_channel/windows/sliding_channel_windows_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

template <class T, int kWindows_, int kChannels_, int kOutputs_>
class SlidingWindowsWeight {
 public:
  static constexpr int kWindows = kWindows_, kChannels = kChannels_, kOutputs = kOutputs_;
  static constexpr int kRows = 64;  ///< positions of a tile

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int groups, int stages) {
    return 1024 + groups * most(stages * kStageBytes, kSumFloats * 4) + 8 * groups * stages;
  }

  /// block: which of those that make this gradient.
  FUSEDSC_DEVICE static void run(const SlidingWindowsWeightParameters& p, int block) {
    SlidingWindowsWeight product(p, block);
    product.loop();
  }

 private:
  static constexpr int kFilters = kOutputs / kWindows;  ///< of each window
  static constexpr int kTileBytes = kRows * 128;        ///< of 64 channels or outputs
  static constexpr int kXTiles = kChannels / 64, kTiles = kOutputs / 64;
  static constexpr int kStageBytes = (kXTiles + kTiles) * kTileBytes;
  /// Sums in shared memory: [filter][own window, that before it][channel], eight banks from row to row.
  static constexpr int kPitch = kChannels + 8, kSumFloats = kFilters * 2 * kPitch;
  static_assert(kChannels % 64 == 0 && kChannels <= 128 && kWindows <= 16 && 16 % kWindows == 0);
  using Four = Aligned<float, 4>;
  using Sums = float[kXTiles][kOutputs / 2];

  FUSEDSC_HOST_DEVICE static constexpr int most(int a, int b) { return a > b ? a : b; }

  FUSEDSC_DEVICE SlidingWindowsWeight(const SlidingWindowsWeightParameters& p, int block) : p_(p) {
    group_ = uniform(thread_index() / 128);
    is_leader_ = thread_index() % 128 == 0;
    rank_ = block % p.cluster;
    const int tile = block / p.cluster;
    first_channel_ = tile % p.channel_tiles * kChannels;
    first_output_ = tile / p.channel_tiles * kOutputs;
    first_tile_ = rank_ * p.groups + group_;
    stride_ = p.cluster * p.groups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    sums_ = reinterpret_cast<float*>(memory);
    stages_ = memory + group_ * p.stages * kStageBytes;
    memory += p.groups * most(p.stages * kStageBytes, kSumFloats * 4);
    barriers_ = reinterpret_cast<Barrier*>(memory) + group_ * p.stages;
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      prefetch(p_.x);
      prefetch(p_.grad_y);
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      publish();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    block_barrier();
    StageTurn turn;
    int last_slot = -1;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply_tile(sums, stages_ + turn.slot * kStageBytes);
      if (last_slot >= 0) {
        wait_for_products<1>();
        group_barrier(group_);
        if (is_leader_) start_next(last_slot);
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence(sums);
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
    meet();
    add_and_store();
    if (p_.cluster > 1) meet();  // none ends while another one reads its memory
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    unsigned char* to = stages_ + slot * kStageBytes;
    const int pixel = (first_tile_ + next_tile_ * stride_) * kRows;
    expect(barriers_ + slot, kStageBytes);
    for (int i = 0; i < kXTiles; ++i, to += kTileBytes) {
      start_load(to, p_.x, first_channel_ + i * 64, pixel, barriers_ + slot);
    }
    for (int i = 0; i < kTiles; ++i, to += kTileBytes) {
      start_load(to, p_.grad_y, first_output_ + i * 64, pixel, barriers_ + slot);
    }
    ++next_tile_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void multiply_tile(Sums& sums, const unsigned char* x) {
    const std::uint64_t rows = describe<128>(x), columns = describe_blocks<128>(x + kXTiles * kTileBytes, kTileBytes);
    fence(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
#pragma unroll
      for (int i = 0; i < kXTiles; ++i) {
        multiply<true, true>(sums[i], rows + (i * kTileBytes + k * 128) / 16, columns + k * 128 / 16, false, T());
      }
    }
    commit_products();
    fence(sums);
  }

  /// What is in a window, to shared memory.
  FUSEDSC_DEVICE void leave(const Sums& sums) const {
    const int lane = thread_index() % 32, first_row = thread_index() % 128 / 32 * 16 + lane / 4;
    float* to_group = sums_ + group_ * kSumFloats;
#pragma unroll
    for (int half = 0; half < 2 * kXTiles; ++half) {
      const int row = half / 2 * 64 + half % 2 * 8 + first_row;
      const int own = (first_channel_ + row) / p_.step, before = own == 0 ? kWindows - 1 : own - 1;
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        // Columns that are 16 apart have the same window.
        const int output = column / 2 * 8 + lane % 4 * 2 + column % 2, window = output % kWindows;
        if (window != own && window != before) continue;
        float* to = to_group + (output / kWindows * 2 + (window == own ? 0 : 1)) * kPitch + row;
#pragma unroll
        for (int i = 0; i < kOutputs / 16; ++i) {
          to[i * 16 / kWindows * 2 * kPitch] = sums[half / 2][(i * 2 + column / 2) * 4 + half % 2 * 2 + column % 2];
        }
      }
    }
  }

  FUSEDSC_DEVICE void meet() const { p_.cluster > 1 ? cluster_barrier() : block_barrier(); }

  // -------------------------------------------------------------------------------------- by all threads of a cluster

  /// Four neighbouring channels of a filter at a time, by a lane; or, where there are more lanes than that, by some
  /// neighbours, each of which adds up what some of the blocks have left.
  FUSEDSC_DEVICE void add_and_store() const {
    constexpr int kFours = kChannels / 4, kAll = kFilters * 2 * kFours;
    const int threads = p_.groups * 128;
    int lanes = 1;
    while (lanes < p_.cluster && kAll * lanes < p_.cluster * threads) lanes *= 2;
    const int lane = thread_index() % lanes, first = (rank_ * threads + thread_index()) / lanes;
    // A thread's fours differ in their filters only.
    const int column = first % kFours * 4, first_row = first / kFours, advance = p_.cluster * threads / lanes / kFours;
    const int channel = first_channel_ + column, own = channel / p_.step, which = first_row % 2;
    const int window = which == 0 ? own : own == 0 ? kWindows - 1 : own - 1;
    T* const to = static_cast<T*>(p_.weight) + window * p_.weight_row + channel - own * p_.step + which * p_.step;
    const auto store_row = [&](int row, const Four& sum) {
      const int filter = first_output_ / kWindows + row / 2;
      if (own >= kWindows || filter >= p_.filters) return;
      store<2>(sum.elements, to + std::int64_t{filter} * kWindows * p_.weight_row);
      store<2>(sum.elements + 2, to + std::int64_t{filter} * kWindows * p_.weight_row + 2);
    };
    const float* const from = sums_ + column;
    if (p_.cluster == 1) {
#pragma unroll 4
      for (int row = first_row; row < kFilters * 2; row += advance) {
        Four sum = *reinterpret_cast<const Four*>(from + row * kPitch);
        for (int group = 1; group < p_.groups; ++group) {
          add(sum, *reinterpret_cast<const Four*>(from + group * kSumFloats + row * kPitch));
        }
        store_row(row, sum);
      }
      return;
    }
#pragma unroll 1
    for (int row = first_row; row < kFilters * 2; row += advance) {
      Four sum = {};
#pragma unroll 1
      for (int group = 0; group < p_.groups; ++group) {
#pragma unroll 4
        for (int rank = lane; rank < p_.cluster; rank += lanes) {
          add(sum, load_of_block(reinterpret_cast<const Four*>(from + group * kSumFloats + row * kPitch), rank));
        }
      }
#pragma unroll 1
      for (int distance = 1; distance < lanes; distance *= 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += shuffle_xor(sum.elements[i], distance);
      }
      if (lane == 0) store_row(row, sum);
    }
  }

  FUSEDSC_DEVICE static void add(Four& sum, const Four& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
  }

  const SlidingWindowsWeightParameters& p_;
  int group_, rank_, first_channel_, first_output_, first_tile_, stride_, tiles_;
  int next_tile_ = 0;
  bool is_leader_;
  float* sums_;
  unsigned char* stages_;
  Barrier* barriers_;
};

}  // namespace fusedsc::gpu::hopper
