/// What the depthwise kernels for small problems share. Where there is too little work to hide chains of rows behind
/// other threads, a thread has one output of some neighbouring channels, or a few below each other, and asks for all
/// that it needs at once: a launch is then little more than the latency of one load.
///
/// Loads have no conditions: what is outside of the image is loaded from within it, and masked. Offsets are worked out
/// while the kernel before still runs.
#pragma once

#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu {

/// A tensor whose elements all lie within 2^31 from the first: 32-bit strides, in elements.
template <class Void>
struct BasicCompactTensor {
  Void* data = nullptr;
  std::uint32_t image = 0, channel = 0, row = 0, column = 0;

  FUSEDSC_DEVICE std::uint32_t offset(int n, int c) const {
    return static_cast<std::uint32_t>(n) * image + static_cast<std::uint32_t>(c) * channel;
  }
};
using CompactTensor = BasicCompactTensor<void>;
using ConstCompactTensor = BasicCompactTensor<const void>;

/// How the threads of a launch share its outputs out. Where channels are neighbours in memory, a block's threads are
/// channel_lanes groups of channels times item_lanes positions; else all items are neighbours in one row of them.
struct DirectWork {
  int channel_lanes = 1, item_lanes = kItemThreads;
  int channel_groups = 1;
  std::uint32_t items = 0;                      ///< columns of all groups of rows of all images (and channels)
  Divisor by_channel_lanes, by_channel_blocks;  ///< where channels are neighbours
  Divisor by_channels;                          ///< elsewhere
  Divisor columns, row_groups;
  std::int64_t blocks = 0;
};

/// Groups of channels that a block has at most: its other threads share their weights. Runs of 128 bytes and more.
constexpr int most_direct_lanes(int vector_bytes) { return vector_bytes >= 8 ? 16 : 32; }

/// What a thread is to do. Those that are left over do what their block's first one does, and store nothing.
template <int kChannels, int kRows, bool kChannelsLast>
struct DirectPlace {
  int image, channel, row, column;
  int channel_lane = 0, first_group = 0;  ///< the lane's group of channels is number first_group + channel_lane
  bool is_idle;

  FUSEDSC_DEVICE explicit DirectPlace(const DirectWork& work) {
    std::uint32_t thread = static_cast<std::uint32_t>(thread_index()), block = block_index(), item;
    if constexpr (kChannelsLast) {
      const std::uint32_t lane = work.by_channel_lanes.divide(thread), split = work.by_channel_blocks.divide(block);
      item = split * static_cast<std::uint32_t>(work.item_lanes) + lane;
      first_group = static_cast<int>(block) * work.channel_lanes;
      is_idle = lane >= static_cast<std::uint32_t>(work.item_lanes) || item >= work.items ||
                first_group + static_cast<int>(thread) >= work.channel_groups;
      channel_lane = is_idle ? 0 : static_cast<int>(thread);
    } else {
      item = block * static_cast<std::uint32_t>(kItemThreads) + thread;
      is_idle = item >= work.items;
    }
    std::uint32_t rest = is_idle ? 0 : item, line = work.columns.divide(rest);
    column = static_cast<int>(rest);
    std::uint32_t plane = work.row_groups.divide(line);
    row = static_cast<int>(line) * kRows;
    if constexpr (kChannelsLast) {
      image = static_cast<int>(plane);
      channel = (first_group + channel_lane) * kChannels;
    } else {
      image = static_cast<int>(work.by_channels.divide(plane));
      channel = static_cast<int>(plane);
    }
  }
};

/// Element v of a vector: the compiler leaves out what makes the others.
template <class T, int kCount>
FUSEDSC_DEVICE Accumulator<T> element_of(const Vector<T, kCount>& vector, int v) {
  Accumulator<T> all[kCount];
  vector.widen(all);
  return all[v];
}

/// As it came from memory.
template <class T, int kCount>
FUSEDSC_DEVICE void put(const Vector<T, kCount>& vector, T* to) {
  if constexpr (Vector<T, kCount>::kBytes == 2) {
    to->bits = static_cast<std::uint16_t>(vector.words[0]);
  } else {
    constexpr int kWords = Vector<T, kCount>::kWords;
    Aligned<std::uint32_t, kWords> words;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words.elements[i] = vector.words[i];
    *reinterpret_cast<Aligned<std::uint32_t, kWords>*>(to) = words;
  }
}

/// kRows rows of kColumns vectors of neighbouring channels.
template <class T, int kChannels, int kRows, int kColumns>
class DirectWindow {
 public:
  static constexpr int kVectors = kRows * kColumns;

  /// The first vector is that of `row` and `column` of an image, each other one is `step` (1 or -1) farther than the
  /// one before it; they may be outside of the image.
  FUSEDSC_DEVICE void aim(const ConstCompactTensor& tensor, std::uint32_t image, int row, int column, int step,
                          int height, int width) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows_[r] = image + offset_of(row + r * step, height, tensor.row, row_masks_[r]);
      hide_origin(rows_[r]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      columns_[c] = offset_of(column + c * step, width, tensor.column, column_masks_[c]);
      hide_origin(columns_[c]);
    }
  }

  /// Of all that load() needs; below 2^31.
  FUSEDSC_DEVICE std::uint32_t bits() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) bits |= rows_[r];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) bits |= columns_[c];
    return bits;
  }

  FUSEDSC_DEVICE void load(const ConstCompactTensor& tensor) {
    const T* elements = static_cast<const T*>(tensor.data);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) vectors_[r][c] = gpu::load<kChannels>(elements + (rows_[r] + columns_[c]));
    }
  }

  /// Once all else is under way, too.
  FUSEDSC_DEVICE void mask() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) vectors_[r][c].keep(row_masks_[r], column_masks_[c]);
    }
  }

  FUSEDSC_DEVICE Accumulator<T> at(int row, int column, int channel) const {
    return element_of(vectors_[row][column], channel);
  }

 private:
  /// Of what is loaded as row or column `at`.
  FUSEDSC_DEVICE static std::uint32_t offset_of(int at, int size, std::uint32_t stride, std::uint32_t& mask) {
    mask = static_cast<unsigned>(at) < static_cast<unsigned>(size) ? ~0u : 0u;
    return static_cast<std::uint32_t>(at < 0 ? 0 : least(at, size - 1)) * stride;
  }

  std::uint32_t rows_[kRows], columns_[kColumns], row_masks_[kRows], column_masks_[kColumns];
  Vector<T, kChannels> vectors_[kRows][kColumns];
};

/// Of an address, for keep_order(): it has no use for its highest bit.
FUSEDSC_DEVICE std::uint32_t high_bits(const void* address) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) >> 33);
}

/// The weights of a thread's channels, which are dense in memory: kTaps of a channel. All threads of a wave have the
/// same, or nearly so.
template <class T, int kTaps, int kChannels, bool kChannelsLast>
class DirectWeights {
 public:
  static_assert(kChannels == 1);
  static constexpr std::size_t kBytes = 0;  ///< of shared memory

  template <class Place>
  FUSEDSC_DEVICE DirectWeights(const void* weight, const DirectWork& /*work*/, const Place& place)
      : from_(static_cast<const T*>(weight) + static_cast<std::uint32_t>(place.channel * kTaps)) {}

  /// Of all that load() needs; below 2^31.
  FUSEDSC_DEVICE std::uint32_t bits() const { return high_bits(from_); }

  FUSEDSC_DEVICE void load() {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) taps_[tap] = gpu::load<1>(from_ + tap);
  }

  /// Once all else is under way, too; by all threads of the block.
  FUSEDSC_DEVICE void share() const {}

  /// add(channel, tap, weight) of each.
  template <class Add>
  FUSEDSC_DEVICE void for_each(int /*channel_lane*/, const Add& add) const {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) add(0, tap, element_of(taps_[tap], 0));
  }

 private:
  const T* from_;
  Vector<T, 1> taps_[kTaps];
};

/// Where channels are neighbours, each thread's weights are a run of their own. Those of all channels of a block come
/// through shared memory, as they lie; the runs are an odd number of vectors, so that neighbours' are in other banks.
template <class T, int kTaps, int kChannels>
class DirectWeights<T, kTaps, kChannels, true> {
 public:
  static constexpr int kVectorBytes = Vector<T, kChannels>::kBytes, kLanes = most_direct_lanes(kVectorBytes);
  static constexpr std::size_t kBytes = kVectorBytes * kLanes * kTaps;

  template <class Place>
  FUSEDSC_DEVICE DirectWeights(const void* weight, const DirectWork& work, const Place& place)
      : from_(static_cast<const T*>(weight) +
              static_cast<std::uint32_t>(place.first_group * kTaps + thread_index()) * kChannels),
        count_(kTaps * least(work.channel_lanes, work.channel_groups - place.first_group)) {}

  FUSEDSC_DEVICE std::uint32_t bits() const { return high_bits(from_); }

  FUSEDSC_DEVICE void load() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (has(i)) shared_[i] = gpu::load<kChannels>(from_ + i * (kItemThreads * kChannels));
    }
  }

  FUSEDSC_DEVICE void share() const {
    T* to = memory() + thread_index() * kChannels;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (has(i)) put(shared_[i], to + i * (kItemThreads * kChannels));
    }
    block_barrier();
  }

  /// Channel by channel, so that few weights need registers at a time.
  template <class Add>
  FUSEDSC_DEVICE void for_each(int channel_lane, const Add& add) const {
    const T* own = memory() + channel_lane * (kTaps * kChannels);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const Vector<T, kChannels> weights = gpu::load<kChannels>(own + i * kChannels);
#pragma unroll
      for (int v = 0; v < kChannels; ++v) {
        add((i * kChannels + v) / kTaps, (i * kChannels + v) % kTaps, element_of(weights, v));
      }
    }
  }

 private:
  static constexpr int kEach = (kLanes * kTaps - 1) / kItemThreads + 1;  ///< vectors that a thread brings

  FUSEDSC_DEVICE static T* memory() { return static_cast<T*>(shared_memory()); }
  FUSEDSC_DEVICE bool has(int i) const { return thread_index() + i * kItemThreads < count_; }

  const T* from_;
  int count_;  ///< of vectors that the block needs
  Vector<T, kChannels> shared_[kEach];
};

}  // namespace fusedsc::gpu
