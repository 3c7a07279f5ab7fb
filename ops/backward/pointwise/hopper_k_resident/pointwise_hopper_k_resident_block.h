/// What a block of PointwiseGradients (pointwise_hopper_k_resident_kernel.h) has: its place in the problem, and what
/// lies where in shared memory.
#pragma once

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// kDepth: outputs of all positions of a row, at most. kSharing: groups that share positions. kSlices: of these, which
/// take turns. kHasOutput: that there is a gradient prologue. kPlain: that there is no prologue. kWindows: different
/// windows of channels that filters have, if they are as in pointwise_hopper_k_resident_windows.h; 0: any weight.
template <class T, int kDepth_, int kSharing_, int kSlices_, bool kHasOutput_, bool kPlain_, int kWindows_>
class PointwiseGradientsBlock {
 public:
  using Element = T;
  static constexpr int kDepth = kDepth_, kSharing = kSharing_, kSlices = kSlices_, kGroups = kSharing * kSlices;
  static constexpr int kProductThreads = kGroups * 128, kThreads = kProductThreads + 128;
  static constexpr bool kHasOutput = kHasOutput_, kPlain = kPlain_;
  static constexpr int kWindows = kWindows_;
  static_assert(!kPlain || !kHasOutput);
  static_assert(kWindows == 0 || (kPlain && kSharing == 1));
  /// Columns of grad_y as it is copied.
  static constexpr int kWide = kDepth % 64 == 0 ? 64 : 32;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages) {
    return 1024 + kGradTilesAt + most(kStagesAt - kGradTilesAt + stages * kStageBytes, kGroups * kSumFloats * 4);
  }

 protected:
  static constexpr int kRows = 64, kChannels = 64;   ///< of a tile
  static constexpr int kParts = kHasOutput ? 2 : 1;  ///< grad_y; output
  static constexpr int kBoxes = (kDepth + kWide - 1) / kWide, kBoxBytes = kRows * kWide * 2;
  static constexpr int kTileBytes = kRows * kChannels * 2, kXBytes = kSharing * kTileBytes,
                       kStageBytes = kXBytes + kParts * kBoxes * kBoxBytes;
  static constexpr int kWeightBytes = kParts * kDepth * kChannels * 2;
  static constexpr int kColumns = kSharing * kChannels;  ///< of a block
  /// Tiles of x's gradient of a group, so that one is filled while the other leaves.
  static constexpr int kGradTiles = 2;
  static_assert(kDepth % 32 == 0);

  // Vectors in shared memory: by channels, the product of weight and offset; three scales by k; scratch.
  static constexpr int kScales = kColumns, kScratch = kScales + 3 * kDepth;
  static constexpr int kLanes = kProductThreads / kColumns;  ///< threads of a channel, while the weight is prepared
  static constexpr int kVectorFloats = kHasOutput ? kScratch + kLanes * kColumns + 32 : 0;
  /// What a group leaves at its end, for each k and for both sums.
  static constexpr int kVectorSums = kPlain ? 0 : 2;  ///< rows of partial results that are no weights
  static constexpr int kSumPitch = kChannels + 4;
  /// Of windows: filters of one, at most; [half of the window][filter][channel], in rows that begin on different banks.
  static constexpr int kWindowFilters = kWindows == 0 ? 0 : kDepth / (kWindows == 0 ? 1 : kWindows);
  static constexpr int kWindowPitch = kChannels + 8, kWindowSumFloats = 2 * kWindowFilters * kWindowPitch;
  static constexpr int kSumFloats = kWindows == 0 ? (kDepth + kVectorSums) * kSumPitch : kWindowSumFloats;

  // Where in shared memory things lie, in bytes. What groups leave at their ends takes the place of all tiles.
  static constexpr int kBarriersAt = kSharing * kWeightBytes,
                       kVectorsAt = kBarriersAt + (3 * kMostGradientStages + 1) * 8;
  static constexpr int kGradTilesAt = (kVectorsAt + kVectorFloats * 4 + 1023) / 1024 * 1024;
  static constexpr int kStagesAt = kGradTilesAt + kGroups * kGradTiles * kTileBytes;

  FUSEDSC_HOST_DEVICE static constexpr int most(int a, int b) { return a < b ? b : a; }

  FUSEDSC_DEVICE explicit PointwiseGradientsBlock(const PointwiseGradientsParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    slice_ = group_ / kSharing;
    share_ = group_ % kSharing;
    const int block = static_cast<int>(block_index()), with_last = p.last_splits * p.channel_tiles;
    if (block < with_last) {
      channel_tile_ = block % p.channel_tiles;
      split_ = block / p.channel_tiles;
    } else {
      channel_tile_ = (block - with_last) % (p.channel_tiles - 1);
      split_ = p.last_splits + (block - with_last) / (p.channel_tiles - 1);
    }
    splits_ = channel_tile_ == p.channel_tiles - 1 ? p.last_splits : p.splits;
    first_column_ = channel_tile_ * kColumns;
    tiles_ = split_ < p.row_tiles ? (p.row_tiles - split_ + splits_ - 1) / splits_ : 0;

    memory_ = static_cast<unsigned char*>(shared_memory());
    memory_ += padding_before_tiles(memory_);
  }

  FUSEDSC_DEVICE unsigned char* weight_tile(int share) const { return memory_ + share * kWeightBytes; }
  FUSEDSC_DEVICE unsigned char* grad_tiles() const { return memory_ + kGradTilesAt + group_ * kGradTiles * kTileBytes; }
  FUSEDSC_DEVICE unsigned char* stage(int slot) const { return memory_ + kStagesAt + slot * kStageBytes; }
  FUSEDSC_DEVICE float* left() const { return reinterpret_cast<float*>(memory_ + kGradTilesAt); }
  FUSEDSC_DEVICE float* vectors() const { return reinterpret_cast<float*>(memory_ + kVectorsAt); }
  FUSEDSC_DEVICE Barrier* barriers() const { return reinterpret_cast<Barrier*>(memory_ + kBarriersAt); }
  FUSEDSC_DEVICE Barrier* full(int turn) const { return barriers() + turn; }
  FUSEDSC_DEVICE Barrier* empty(int slot) const { return barriers() + 2 * kMostGradientStages + slot; }
  FUSEDSC_DEVICE Barrier* weight_barrier() const { return barriers() + 3 * kMostGradientStages; }

  FUSEDSC_DEVICE int first_row(int tile) const { return (split_ + tile * splits_) * kRows; }

  // Of unsigned numbers these are an instruction each, which costs less than a register throughout the loop.
  FUSEDSC_DEVICE static int lane() { return static_cast<int>(static_cast<unsigned>(thread_index()) % 32); }
  FUSEDSC_DEVICE static int warp() { return static_cast<int>(static_cast<unsigned>(thread_index()) % 128 / 32); }
  FUSEDSC_DEVICE static bool is_leader() { return thread_index() % 128 == 0; }

  const PointwiseGradientsParameters& p_;
  int group_, slice_, share_, channel_tile_, split_, splits_, first_column_, tiles_;
  unsigned char* memory_;
};

}  // namespace fusedsc::gpu::hopper
