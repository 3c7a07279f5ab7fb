/// The weight gradient of sliding-channel convolutions of 16-bit channels_last tensors on Hopper GPUs, window by
/// window: for windows that share half of their channels with the next one. Channels with the same two windows are the
/// columns of a product, whose rows are 32 filters of each of these: two warps gather those of one window from tiles of
/// grad_y.
///
/// Positions are shared by a block's groups of four warps and by the blocks of a cluster, which add their sums through
/// block memory: there is no second kernel.
#pragma once

#include "fusedsc/backward/sliding_channel_windows_parameters.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper_products.h"
#include "fusedsc/common/gpu/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// A block has kBlocks times kWidth channels. kWidth: neighbours that belong to the same two windows.
template <class T, int kWindows_, int kBlocks_, int kWidth_>
class SlidingWindowsWeight {
 public:
  static constexpr int kWindows = kWindows_, kBlocks = kBlocks_, kWidth = kWidth_;
  static constexpr int kChannels = kBlocks * kWidth, kFilters = 32;
  static constexpr int kRows = kWindows == 4 ? 64 : 32;  ///< positions of a tile

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int groups, int stages) {
    return 1024 +
           (groups * stages * kStageBytes > groups * kSumBytes ? groups * stages * kStageBytes : groups * kSumBytes) +
           8 * groups * stages;
  }

  /// block: which of those that make this gradient.
  FUSEDSC_DEVICE static void run(const SlidingWindowsWeightParameters& p, int block) {
    SlidingWindowsWeight product(p, block);
    product.loop();
  }

 private:
  static constexpr int kTileBytes = kRows * 128;  ///< of 64 channels or outputs
  static constexpr int kXTiles = kChannels / 64, kTiles = kFilters * kWindows / 64;
  static constexpr int kStageBytes = (kXTiles + kTiles) * kTileBytes;
  static constexpr int kQuads = kChannels / 8, kSumBytes = kQuads * 128 * 16;  ///< a group's sums, in fours
  static constexpr int kProducts = kRows / 16;
  /// Of few factors, all of a tile are gathered before its products; else while those before are under way.
  static constexpr bool kGathersTile = kBlocks == 1;
  static constexpr int kBuffers = kGathersTile ? kProducts : 2;
  using Four = Aligned<float, 4>;
  using Sums = float[kBlocks][kWidth / 2];
  using Factors = std::uint32_t[kBlocks][4];

  FUSEDSC_DEVICE SlidingWindowsWeight(const SlidingWindowsWeightParameters& p, int block) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    warp_ = uniform(thread_ / 32);
    rank_ = block % p.cluster;
    const int tile = block / p.cluster;
    first_channel_ = tile % p.channel_tiles * kChannels;
    first_filter_ = tile / p.channel_tiles * kFilters;
    first_window_ = first_channel_ / p.step;
    first_tile_ = rank_ * p.groups + group_;
    stride_ = p.cluster * p.groups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += padding_before_tiles(memory);
    quads_ = reinterpret_cast<Four*>(memory);
    stages_ = memory + group_ * p.stages * kStageBytes;
    const int tiles = p.groups * p.stages * kStageBytes, sums = p.groups * kSumBytes;
    memory += tiles > sums ? tiles : sums;
    barriers_ = reinterpret_cast<Barrier*>(memory) + group_ * p.stages;
  }

  FUSEDSC_DEVICE void loop() {
    if (thread_ == 0) {
      prefetch(p_.x);
      prefetch(p_.grad_y);
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      publish();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (thread_ == 0) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    block_barrier();
    StageTurn turn;
    int last_slot = -1;
    Sums sums = {};
    Factors factors[kBuffers];
    const Places places = this->places();
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + turn.slot, turn.parity);
      const unsigned char* x = stages_ + turn.slot * kStageBytes;
      if constexpr (kGathersTile) wait_for_products<0>();
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        gather(factors[i % kBuffers], x + kXTiles * kTileBytes, i * 16, places);
        if constexpr (kGathersTile) continue;
        multiply_sixteen(sums, factors[i % kBuffers], x, i * 16);
        wait_for_products<1>();  // which read the factors that are gathered next
        if (i == 0) start_again(last_slot);
      }
      if constexpr (kGathersTile) {
        start_again(last_slot);
#pragma unroll
        for (int i = 0; i < kProducts; ++i) multiply_sixteen(sums, factors[i % kBuffers], x, i * 16);
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence_all(sums);
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
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
      start_load(to, p_.grad_y, first_filter_ * kWindows + i * 64, pixel, barriers_ + slot);
    }
    ++next_tile_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence(sums[block]);
  }

  /// By all, when the products of the tile in this slot are done; none: below 0.
  FUSEDSC_DEVICE void start_again(int slot) {
    if (slot < 0) return;
    group_barrier(group_);
    if (thread_ == 0) start_next(slot);
  }

  FUSEDSC_DEVICE static void multiply_sixteen(Sums& sums, const Factors& factors, const unsigned char* x, int k) {
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int channel = block * kWidth;
      const std::uint64_t columns = describe_blocks<128>(x + channel / 64 * kTileBytes, kTileBytes) +
                                    static_cast<unsigned>((k * 128 + channel % 64 * 2) / 16);
      multiply<true>(sums[block], factors[block], columns, false, T());
    }
    commit_products();
    fence_all(sums);
  }

  /// Whether the warp has the windows of which channels are the second halves.
  FUSEDSC_DEVICE bool is_before() const { return warp_ < 2; }

  /// Where a thread finds its filters: bytes from a tile's first position, for both of its filters, which are 8 apart,
  /// and for even and odd positions. Of further positions, whose runs are exchanged alike, only the row differs.
  struct Places {
    int own[2][2], before[2][2];  ///< of the block's first window; of the window before it
  };
  FUSEDSC_DEVICE Places places() const {
    Places places;
    const int lane = thread_ % 32, before = (first_window_ + kWindows - 1) % kWindows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int filter = warp_ % 2 * 16 + lane / 4 + i * 8;
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        places.own[i][odd] = place_of(lane % 4 * 2 + odd, filter, first_window_);
        places.before[i][odd] = place_of(lane % 4 * 2 + odd, filter, before);
        if (kBlocks == 1 && is_before()) places.own[i][odd] = places.before[i][odd];
      }
    }
    return places;
  }

  /// factors = of 16 positions, from k on, and 16 filters of the warp's windows, one for each block of channels.
  FUSEDSC_DEVICE void gather(Factors& factors, const unsigned char* tiles, int k, const Places& places) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned char* rows = tiles + (k + i / 2 * 8) * 128;
      const auto half_at = [&](int place) -> std::uint32_t {
        return *reinterpret_cast<const std::uint16_t*>(rows + place);
      };
      const int(&own_places)[2] = places.own[i % 2], (&before_places)[2] = places.before[i % 2];
      if constexpr (kBlocks == 1) {
        factors[0][i] = half_at(own_places[0]) | half_at(own_places[1]) << 16;
      } else {
        // The first window of a block of them is even.
        using Pairs = Aligned<std::uint32_t, kBlocks / 2>;
        const auto a = *reinterpret_cast<const Pairs*>(rows + own_places[0]),
                   b = *reinterpret_cast<const Pairs*>(rows + own_places[1]);
        std::uint32_t own[kBlocks];
#pragma unroll
        for (int pair = 0; pair < kBlocks / 2; ++pair) {
          own[2 * pair] = (a.elements[pair] & 0xffffu) | b.elements[pair] << 16;
          own[2 * pair + 1] = a.elements[pair] >> 16 | (b.elements[pair] & 0xffff0000u);
        }
        const std::uint32_t other = half_at(before_places[0]) | half_at(before_places[1]) << 16;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          factors[block][i] = !is_before() ? own[block] : block == 0 ? other : own[block == 0 ? 0 : block - 1];
        }
      }
    }
  }

  FUSEDSC_DEVICE static int place_of(int row, int filter, int window) {
    const int output = filter * kWindows + window;
    return output / 64 * kTileBytes + place_of_run<128>(row, output % 64 / 8) + output % 8 * 2;
  }

  FUSEDSC_DEVICE Four* fours_of(int group, int quad) const { return quads_ + (group * kQuads + quad) * 128 + thread_; }

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const float* from = sums[quad * 8 / kWidth] + quad * 8 % kWidth / 2;
      *fours_of(group_, quad) = {{from[0], from[1], from[2], from[3]}};
    }
    meet();
#pragma unroll 1
    for (int quad = first_tile_; quad < kQuads; quad += stride_) {
      Four sum = {};
#pragma unroll 1
      for (int group = 0; group < p_.groups; ++group) add_all(sum, fours_of(group, quad));
      store_four(quad, sum);
    }
    if (p_.cluster > 1) meet();  // none ends while another one reads its memory
  }

  FUSEDSC_DEVICE void meet() const { p_.cluster > 1 ? cluster_barrier() : block_barrier(); }

  /// Of all blocks of the cluster.
  FUSEDSC_DEVICE void add_all(Four& sum, const Four* place) const {
#pragma unroll 4
    for (int rank = 0; rank < p_.cluster; ++rank) {
      const Four other = load_of_block(place, rank);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
    }
  }

  /// Two neighbouring channels of a filter, and of that 8 further.
  FUSEDSC_DEVICE void store_four(int quad, const Four& sum) const {
    const int lane = thread_ % 32, channel = first_channel_ + quad * 8 + lane % 4 * 2;
    const int own = channel / p_.step, window = is_before() ? (own + kWindows - 1) % kWindows : own;
    const int place = channel - own * p_.step + (is_before() ? p_.step : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = first_filter_ + warp_ % 2 * 16 + lane / 4 + half * 8;
      if (filter >= p_.filters) continue;
      store<2>(sum.elements + half * 2,
               static_cast<T*>(p_.weight) + (std::int64_t{filter} * kWindows + window) * p_.weight_row + place);
    }
  }

  const SlidingWindowsWeightParameters& p_;
  int group_, thread_, warp_, rank_, first_channel_, first_filter_, first_window_, first_tile_, stride_, tiles_;
  int next_tile_ = 0;
  unsigned char* stages_;
  Four* quads_;
  Barrier* barriers_;
};

}  // namespace fusedsc::gpu::hopper
