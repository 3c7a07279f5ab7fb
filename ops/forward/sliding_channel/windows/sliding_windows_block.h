/// What the kernels of sliding-channel convolutions window by window on Hopper GPUs have in common that keep a weight
/// in shared memory: which positions a block has, where its things lie, how its first copies start and its results
/// leave. TMA brings activations, 64 positions at a time to each warpgroup.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

/// How positions and channels are cut.
struct SlidingWindowsCut {
  int pixel_tiles = 0, channel_tiles = 1;
  int splits = 1;       ///< blocks that share the positions
  int groups = 1;       ///< of four warps, in a block
  int stages = 2;       ///< of activations that each group has under way
  int step = 16;        ///< channels from a window to the next, half a window
  int depth_steps = 1;  ///< that a tile of positions comes in
};

class SlidingWindowsBlock {
 protected:
  static constexpr int kRows = 64, kTileBytes = kRows * 128;  ///< of a tile: positions; of 64 channels
  /// Warps of the first group, but for its leader's, that ask for some of the weight each: one alone would take longer
  /// than the copies.
  static constexpr int kWeightShares = 3;

  /// Bytes of things in shared memory.
  struct Sizes {
    int weight, weight_barriers;  ///< and how many barriers it has
    int stage, out;               ///< of activations; of a group's results, of all channels of a tile of positions
  };
  FUSEDSC_HOST_DEVICE static constexpr int bytes_of(const Sizes& sizes, int groups, int stages) {
    return 1024 + sizes.weight + groups * (stages * sizes.stage + sizes.out) +
           8 * (sizes.weight_barriers + groups * stages);
  }

  /// block: which of those of this kernel, `channels` of whose results it has.
  FUSEDSC_DEVICE SlidingWindowsBlock(const SlidingWindowsCut& cut, const Sizes& sizes, int block, int channels)
      : cut_(cut), weight_barrier_count_(sizes.weight_barriers) {
    group_ = uniform(thread_index() / 128);
    is_leader_ = thread_index() % 128 == 0;
    weight_share_ = thread_index() < 128 && thread_index() % 32 == 0 ? thread_index() / 32 - 1 : -1;
    first_channel_ = block % cut.channel_tiles * channels;
    first_tile_ = block / cut.channel_tiles * cut.groups + group_;
    stride_ = cut.splits * cut.groups;
    tiles_ = first_tile_ < cut.pixel_tiles ? (cut.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;

    weight_ = static_cast<unsigned char*>(shared_memory());
    weight_ += padding_before_tiles(weight_);
    unsigned char* memory = weight_ + sizes.weight;
    stages_ = memory + group_ * (cut.stages * sizes.stage + sizes.out);
    out_ = stages_ + cut.stages * sizes.stage;
    memory += cut.groups * (cut.stages * sizes.stage + sizes.out);
    weight_barriers_ = reinterpret_cast<Barrier*>(memory);
    barriers_ = weight_barriers_ + sizes.weight_barriers + group_ * cut.stages;
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * kRows; }

  /// start_next(slot), by a group's leader: the next stage of its activations. start_weight(number), by one thread:
  /// what a barrier of the weight waits for.
  template <class StartNext, class StartWeight>
  FUSEDSC_DEVICE void begin(const TensorMap& activations, const TensorMap& weight, const StartNext& start_next,
                            const StartWeight& start_weight) const {
    if (is_leader_) {
      prefetch(activations);
      for (int i = 0; i < cut_.stages; ++i) initialise(barriers_ + i);
    }
    if (weight_share_ >= 0) {
      prefetch(weight);
      for (int i = weight_share_; i < weight_barrier_count_; i += kWeightShares) initialise(weight_barriers_ + i);
    }
    publish();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) {
      for (int i = 0; i < cut_.stages; ++i) start_next(i);
    }
    if (weight_share_ >= 0) {
#pragma unroll 1
      for (int i = weight_share_; i < weight_barrier_count_; i += kWeightShares) start_weight(i);
    }
    block_barrier();
  }

  /// By the leader: counts a stage that it starts.
  FUSEDSC_DEVICE void count_step() {
    if (++next_step_ < cut_.depth_steps) return;
    next_step_ = 0;
    ++next_tile_;
  }

  /// By all threads of a group: store() puts a tile's results into shared memory, from where they leave, 64 channels at
  /// a time, which begin so many apart.
  template <class Store>
  FUSEDSC_DEVICE void leave_tile(const TensorMap& to, int channels, int tile, const Store& store,
                                 int apart = 64) const {
    if (is_leader_) wait_for_stores();
    group_barrier(group_);  // all are done with the last tile
    store();
    publish();
    group_barrier(group_);
    if (!is_leader_) return;
    for (int block = 0; block < channels / 64; ++block) {
      start_store(to, first_channel_ + block * apart, first_pixel(tile), out_ + block * kTileBytes);
    }
    commit_stores();
  }

  const SlidingWindowsCut& cut_;
  int group_, weight_share_, weight_barrier_count_, first_channel_, first_tile_, stride_, tiles_;
  int next_tile_ = 0, next_step_ = 0;
  bool is_leader_;
  unsigned char *weight_, *stages_, *out_;
  Barrier *weight_barriers_, *barriers_;
};

}  // namespace fusedsc::gpu::hopper
