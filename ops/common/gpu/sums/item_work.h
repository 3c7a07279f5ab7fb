/// How kernels share items out. A thread owns a few neighbouring channels and keeps their weights (or
/// the sums of their weight gradient) in registers; it works off one item after another: a strip of some rows of some
/// neighbouring columns of one image.
///
/// A block's threads are `channel_lanes` groups of channels times `item_lanes` items. Where channels lie next to each
/// other in memory the channel lanes are neighbouring threads, else the item lanes are.
#pragma once

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/least.h"

namespace fusedsc::gpu {

/// Threads of a block, of every kernel that shares its work so.
inline constexpr int kItemThreads = 128;

/// After so many rows registers that rotate with periods a and b have their first roles again.
FUSEDSC_HOST_DEVICE constexpr int common_multiple(int a, int b) {
  int multiple = a;
  while (multiple % b != 0) multiple += a;
  return multiple;
}

struct ItemWork {
  bool channels_fastest = false;
  int channel_lanes = 1, item_lanes = 1;
  int channel_blocks = 1;  ///< blocks side by side that see the same items
  int splits = 1;          ///< blocks one behind the other that share the items out
  std::uint32_t items = 0;
  int strip_rows = 1;             ///< of a strip; the last one of an image may reach beyond it
  Divisor strips, column_groups;  ///< of one image
  Divisor by_channel_lanes, by_item_lanes, by_channel_blocks;

  int blocks() const { return channel_blocks * splits; }
  /// Every thread has one item at most.
  FUSEDSC_HOST_DEVICE bool is_short() const { return items <= static_cast<std::uint32_t>(splits * item_lanes); }
};

/// What a thread is to do.
struct ItemShare {
  int channel_lane, item_lane;
  unsigned channel_block, split;
  std::uint32_t item, step;  ///< its first item, and from each to the next

  FUSEDSC_DEVICE explicit ItemShare(const ItemWork& work, unsigned block = block_index()) {
    std::uint32_t rest = static_cast<std::uint32_t>(thread_index());
    if (work.channels_fastest) {
      item_lane = static_cast<int>(work.by_channel_lanes.divide(rest));
      channel_lane = static_cast<int>(rest);
    } else {
      channel_lane = static_cast<int>(work.by_item_lanes.divide(rest));
      item_lane = static_cast<int>(rest);
    }
    split = work.by_channel_blocks.divide(block);
    channel_block = block;
    item = split * static_cast<unsigned>(work.item_lanes) + static_cast<unsigned>(item_lane);
    step = static_cast<unsigned>(work.splits * work.item_lanes);
  }

  /// Some threads are left over where lanes do not divide the block, or channels the blocks.
  FUSEDSC_DEVICE bool is_idle(const ItemWork& work, int channel, int channels) const {
    return channel_lane >= work.channel_lanes || item_lane >= work.item_lanes || channel >= channels;
  }
  /// Of channel lane 0.
  FUSEDSC_DEVICE int first_channel(const ItemWork& work, int per_thread) const {
    return static_cast<int>(channel_block) * work.channel_lanes * per_thread;
  }
  FUSEDSC_DEVICE int channel(const ItemWork& work, int per_thread) const {
    return first_channel(work, per_thread) + channel_lane * per_thread;
  }
};

/// An item: strip_rows rows from `row` on of image `image`, columns from `column_group` * (columns of a thread) on.
struct ItemStrip {
  int image, row, column_group;

  FUSEDSC_DEVICE ItemStrip(const ItemWork& work, std::uint32_t item) {
    std::uint32_t quotient = work.column_groups.divide(item);
    column_group = static_cast<int>(item);
    image = static_cast<int>(work.strips.divide(quotient));
    row = static_cast<int>(quotient) * work.strip_rows;
  }
};

}  // namespace fusedsc::gpu
