/// Copies in the other layout: tiles of channels and positions go through block memory, where rows of positions become
/// rows of channels, or the other way round.
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/vector.h"

namespace fusedsc::gpu {

inline constexpr int kLayoutThreads = 256;
inline constexpr int kLayoutRowBytes = 128;      ///< of a tile's channels
inline constexpr int kMostLayoutPositions = 64;  ///< of a tile

struct ChangeLayoutParameters {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t from_image = 0, to_image = 0;  ///< elements from image to image
  int channels = 0, positions = 0;            ///< of an image
  int tile_positions = 0;                     ///< all of an image's, or a part that is even
  Divisor by_tile_positions, by_channel_tiles, by_position_tiles;
};

/// T: an unsigned type as wide as the elements. kRun: how many channels of one position a thread moves at once; kPair:
/// how many positions of one channel. Both must be neighbours in memory, aligned together: in an image that is one
/// tile, pairs may go from channel to channel.
template <class T, int kRun, int kPair>
class LayoutTile {
 public:
  static constexpr int kChannels = kLayoutRowBytes / static_cast<int>(sizeof(T));

  FUSEDSC_DEVICE explicit LayoutTile(const ChangeLayoutParameters& p)
      : p_(p), memory_(static_cast<T*>(block_memory())), pitch_(p.tile_positions | 1) {
    std::uint32_t channel_tile = block_index(), position_tile = p.by_channel_tiles.divide(channel_tile);
    image_ = static_cast<std::int64_t>(p.by_position_tiles.divide(position_tile));
    channel_ = static_cast<int>(channel_tile) * kChannels;
    position_ = static_cast<int>(position_tile) * p.tile_positions;
    channels_ = least(kChannels, p.channels - channel_);
    positions_ = least(p.tile_positions, p.positions - position_);
  }

  FUSEDSC_DEVICE void to_channels_last() {
    const T* from = static_cast<const T*>(p_.from) + image_ * p_.from_image + offset_of_rows();
    T* to = static_cast<T*>(p_.to) + image_ * p_.to_image + offset_of_runs();
    constexpr int kStep = kLayoutThreads * kPair, kBatch = 8;
    const int count = channels_ * p_.tile_positions;
    for (int begin = thread_index() * kPair; begin < count; begin += kStep * kBatch) {
      Aligned<T, kPair> pairs[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const Place place(*this, begin + i * kStep);
        if (place.is_inside) pairs[i] = *reinterpret_cast<const Aligned<T, kPair>*>(from + place.in_tensor);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const Place place(*this, begin + i * kStep);
        if (!place.is_inside) continue;
        memory_[place.in_memory] = pairs[i].elements[0];
        if constexpr (kPair == 2) memory_[place.next_in_memory] = pairs[i].elements[1];
      }
    }
    block_barrier();
    for_runs([&](int first, int position) {
      Aligned<T, kRun> run;
#pragma unroll
      for (int j = 0; j < kRun; ++j) run.elements[j] = memory_[(first + j) * pitch_ + position];
      *reinterpret_cast<Aligned<T, kRun>*>(to + std::int64_t{position} * p_.channels + first) = run;
    });
  }

  FUSEDSC_DEVICE void to_contiguous() {
    const T* from = static_cast<const T*>(p_.from) + image_ * p_.from_image + offset_of_runs();
    T* to = static_cast<T*>(p_.to) + image_ * p_.to_image + offset_of_rows();
    for_runs([&](int first, int position) {
      const auto run = *reinterpret_cast<const Aligned<T, kRun>*>(from + std::int64_t{position} * p_.channels + first);
#pragma unroll
      for (int j = 0; j < kRun; ++j) memory_[(first + j) * pitch_ + position] = run.elements[j];
    });
    block_barrier();
    const int count = channels_ * p_.tile_positions;
    for (int i = thread_index() * kPair; i < count; i += kLayoutThreads * kPair) {
      const Place place(*this, i);
      if (!place.is_inside) continue;
      Aligned<T, kPair> pair;
      pair.elements[0] = memory_[place.in_memory];
      if constexpr (kPair == 2) pair.elements[1] = memory_[place.next_in_memory];
      *reinterpret_cast<Aligned<T, kPair>*>(to + place.in_tensor) = pair;
    }
  }

 private:
  /// Where the tile's elements are that a thread moves at once, counted row by row: a channel's positions are a row.
  struct Place {
    bool is_inside;
    int in_tensor, in_memory, next_in_memory;

    FUSEDSC_DEVICE Place(const LayoutTile& tile, int number) {
      auto position = static_cast<std::uint32_t>(number);
      const auto channel = static_cast<int>(tile.p_.by_tile_positions.divide(position));
      const int column = static_cast<int>(position);
      is_inside = channel < tile.channels_ && column < tile.positions_;
      in_tensor = channel * tile.p_.positions + column;
      in_memory = channel * tile.pitch_ + column;
      next_in_memory = in_memory + 1 + (column + 1 == tile.p_.tile_positions ? tile.pitch_ - column - 1 : 0);
    }
  };

  /// Of the tile's first element, where rows are of positions and where they are of channels.
  FUSEDSC_DEVICE std::int64_t offset_of_rows() const { return std::int64_t{channel_} * p_.positions + position_; }
  FUSEDSC_DEVICE std::int64_t offset_of_runs() const { return std::int64_t{position_} * p_.channels + channel_; }

  /// body(first channel, position) of the tile, so that neighbouring threads have neighbouring channels.
  template <class Body>
  FUSEDSC_DEVICE void for_runs(const Body& body) const {
    constexpr int kRuns = kChannels / kRun, kPositions = kLayoutThreads / kRuns;
    const int first = thread_index() % kRuns * kRun;
    if (first >= channels_) return;
#pragma unroll 4
    for (int position = thread_index() / kRuns; position < positions_; position += kPositions) body(first, position);
  }

  FUSEDSC_DEVICE static int least(int a, int b) { return a < b ? a : b; }

  const ChangeLayoutParameters& p_;
  T* memory_;  ///< [kChannels][pitch_]; odd, so that the runs of a warp are on different banks
  int pitch_;
  std::int64_t image_;
  int channel_, position_;    ///< the first of the tile
  int channels_, positions_;  ///< that it has
};

}  // namespace fusedsc::gpu
