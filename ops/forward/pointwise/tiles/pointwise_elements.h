/// How the threads of a block go over a finished tile of tensors whose elements are no runs of several: batches of
/// positions of one channel, such that neighbouring threads have neighbouring elements.
#pragma once

#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_sweep.h"

namespace fusedsc::gpu {

/// Rows are positions and columns channels (kPixelRows), where a thread has one channel; or the other way round, where
/// groups of 32 threads take a row at a time.
template <class T, class Tile, bool kPixelRows_, class Product = MatrixProduct<T, Tile>>
struct ElementSweep {
  using A = Accumulator<T>;
  static constexpr bool kPixelRows = kPixelRows_;
  static constexpr int kLanes = kPixelRows ? Tile::kCols : 32;  ///< threads side by side
  static constexpr int kRowStep = kMatrixThreads / kLanes;
  static constexpr int kShare = Tile::kRows * Tile::kCols / kMatrixThreads;
  static constexpr int kMost = sizeof(T) == 8 ? 4 : 8;
  static constexpr int kBatch = !kPixelRows ? Tile::kCols / kLanes : kShare < kMost ? kShare : kMost;
  static constexpr int kBatches = kShare / kBatch;
  static constexpr int kTogether = kBatches < 16 / kBatch ? kBatches : 16 / kBatch;
  static constexpr int kPixelStep = kPixelRows ? kRowStep : kLanes;  ///< from one of a batch to the next
  static constexpr int kChannels = kPixelRows ? Tile::kCols : Tile::kRows;
  static constexpr int kPixels = kPixelRows ? Tile::kRows : Tile::kCols;
  static_assert(kMatrixThreads % kLanes == 0 && kShare % kBatch == 0 && kBatches % kTogether == 0);

  // For merge_items: what a thread with one channel has.
  static constexpr int kItems = 1, kSlots = kRowStep;
  FUSEDSC_DEVICE static int slot() { return thread_index() / kLanes; }
  FUSEDSC_DEVICE static int channel(int /*item*/) { return thread_index() % kLanes; }

  /// Within the tile.
  FUSEDSC_DEVICE static int channel_of(int batch) {
    return kPixelRows ? thread_index() % kLanes : thread_index() / kLanes + batch * kRowStep;
  }
  FUSEDSC_DEVICE static int first_pixel_of(int batch) {
    return kPixelRows ? thread_index() / kLanes + batch * kBatch * kRowStep : thread_index() % kLanes;
  }

  /// Of a batch's positions, the first so many of which exist, if the tile has `pixels`.
  FUSEDSC_DEVICE static int count(int batch, int pixels) {
    const int left = pixels - first_pixel_of(batch);
    return left <= 0 ? 0 : least((left + kPixelStep - 1) / kPixelStep, kBatch);
  }

  /// Of the sums that a product left, its parts added.
  FUSEDSC_DEVICE static void read(const A* sums, int batch, A (&to)[kBatch]) {
    const int row = kPixelRows ? first_pixel_of(batch) : channel_of(batch);
    const int col = kPixelRows ? channel_of(batch) : first_pixel_of(batch);
    constexpr int kStep = kPixelRows ? kRowStep * Tile::kSumsPitch : kLanes;
#pragma unroll
    for (int part = 0; part < Product::parts(); ++part) {
      const A* from = sums + (part * Tile::kRows + row) * Tile::kSumsPitch + col;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) to[i] = part == 0 ? from[i * kStep] : to[i] + from[i * kStep];
    }
  }

  /// take(batch, channel, values, how many of them exist) for each batch of a tile. Some follow each other without a
  /// branch; before the first of these prepare(i, batch, channel, how many exist) is called for each: for loads that
  /// shall be under way together.
  template <class Prepare, class Take>
  FUSEDSC_DEVICE static void for_each_batch(const A* sums, int pixels, int channels, const Prepare& prepare,
                                            const Take& take) {
#pragma unroll 1
    for (int first = 0; first < kBatches; first += kTogether) {
      const auto existing = [&](int batch) { return channel_of(batch) < channels ? count(batch, pixels) : 0; };
#pragma unroll
      for (int i = 0; i < kTogether; ++i) prepare(i, first + i, channel_of(first + i), existing(first + i));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        A values[kBatch];
        read(sums, first + i, values);
        take(i, first + i, channel_of(first + i), values, existing(first + i));
      }
    }
  }
};

/// Where the elements of a thread's batches are in a tensor.
template <class T, class Sweep, class Matrix>
class ElementPlaces {
 public:
  FUSEDSC_DEVICE ElementPlaces(const Matrix& matrix, int group, int first_channel)
      : matrix_(matrix), data_(static_cast<T*>(matrix.data) + group * matrix.group + first_channel * matrix.second) {}

  FUSEDSC_DEVICE explicit operator bool() const { return matrix_.data != nullptr; }

  /// At a tile, whose batches have the same positions where rows are channels.
  FUSEDSC_DEVICE void aim(int first_pixel) {
    first_pixel_ = first_pixel;
    if constexpr (!Sweep::kPixelRows) {
#pragma unroll
      for (int i = 0; i < Sweep::kBatch; ++i) offsets_[i] = matrix_.first_offset(pixel(0, i));
    }
  }

  template <class Element>
  FUSEDSC_DEVICE void load(int batch, int channel, int count, Element (&to)[Sweep::kBatch]) const {
    for_each(batch, channel, [&](int i, const T* from) { to[i] = i < count ? to_accumulator(*from) : Element(0); });
  }

  template <class Element>
  FUSEDSC_DEVICE void store(int batch, int channel, int count, const Element (&from)[Sweep::kBatch]) const {
    for_each(batch, channel, [&](int i, T* to) {
      if (i < count) from_accumulator(from[i], *to);
    });
  }

 private:
  FUSEDSC_DEVICE int pixel(int batch, int i) const {
    return first_pixel_ + Sweep::first_pixel_of(batch) + i * Sweep::kPixelStep;
  }

  /// use(i, where the batch's i-th element is).
  template <class Use>
  FUSEDSC_DEVICE void for_each(int batch, int channel, const Use& use) const {
    T* const data = data_ + channel * matrix_.second;
    if constexpr (!Sweep::kPixelRows) {
#pragma unroll
      for (int i = 0; i < Sweep::kBatch; ++i) use(i, data + offsets_[i]);
    } else if (matrix_.is_linear) {
      T* at = data + pixel(batch, 0) * matrix_.first;
      const std::int64_t step = Sweep::kPixelStep * matrix_.first;
#pragma unroll
      for (int i = 0; i < Sweep::kBatch; ++i, at += step) use(i, at);
    } else {
#pragma unroll
      for (int i = 0; i < Sweep::kBatch; ++i) use(i, data + matrix_.first_offset(pixel(batch, i)));
    }
  }

  const Matrix& matrix_;
  T* data_;
  int first_pixel_ = 0;
  std::int64_t offsets_[Sweep::kPixelRows ? 1 : Sweep::kBatch];
};

/// kVectors values of each channel of a tile: a thread's own, in registers, or those of all, in shared memory.
template <class Sweep, int kVectors>
class ChannelValues {
 public:
  using A = typename Sweep::A;
  static constexpr int kMemoryBytes = Sweep::kPixelRows ? 0 : kVectors * Sweep::kChannels * static_cast<int>(sizeof(A));

  FUSEDSC_DEVICE explicit ChannelValues(unsigned char* memory) : memory_(reinterpret_cast<A*>(memory)) {}

  /// From a vector that has `channels` elements from `first` on. To be followed by a barrier.
  template <class Stored>
  FUSEDSC_DEVICE void set(int vector, const void* data, int first, int channels, A otherwise, Stored) {
    const auto value = [&](int channel) {
      const bool has = data != nullptr && channel < channels;
      return has ? static_cast<A>(to_accumulator(static_cast<const Stored*>(data)[first + channel])) : otherwise;
    };
    if constexpr (Sweep::kPixelRows) {
      own_[vector] = value(Sweep::channel_of(0));
    } else {
      for (int channel = thread_index(); channel < Sweep::kChannels; channel += kMatrixThreads) {
        memory_[vector * Sweep::kChannels + channel] = value(channel);
      }
    }
  }

  FUSEDSC_DEVICE A get(int vector, int channel) const {
    if constexpr (Sweep::kPixelRows) return own_[vector];
    else return memory_[vector * Sweep::kChannels + channel];
  }
  FUSEDSC_DEVICE void put(int vector, int channel, A value) {
    if constexpr (Sweep::kPixelRows) own_[vector] = value;
    else memory_[vector * Sweep::kChannels + channel] = value;
  }

 private:
  A own_[Sweep::kPixelRows ? kVectors : 1];
  A* memory_;
};

/// Whether the thread is the one that gathers what 32 threads have of a row.
template <class Sweep>
FUSEDSC_DEVICE bool gathers_row() {
  return thread_index() % Sweep::kLanes == 0;
}

}  // namespace fusedsc::gpu
