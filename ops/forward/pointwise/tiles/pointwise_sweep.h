/// How the threads of a block go over a finished tile: each sweep takes a run of neighbours of one row, as many as are
/// stored at once; the run and the rows' distance are such that a thread always meets the same channels.
#pragma once

#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_loop.h"

namespace fusedsc::gpu {

/// Rows are positions and columns channels (kPixelRows), or the other way round. Items: the channels of a thread;
/// each sweep's are those of one of kOwners.
template <class T, class Tile, bool kPixelRows_, class Product = MatrixProduct<T, Tile>>
struct TileSweep {
  using A = Accumulator<T>;
  static constexpr bool kPixelRows = kPixelRows_;
  static constexpr int kRun = 16 / static_cast<int>(sizeof(T)), kRuns = Tile::kCols / kRun;
  static constexpr int kRowStep = kMatrixThreads / kRuns, kSweeps = Tile::kRows / kRowStep;
  static constexpr int kOwners = kPixelRows ? 1 : kSweeps, kItems = kPixelRows ? kRun : kSweeps;
  static constexpr int kUnrolled = kPixelRows ? 2 : kSweeps;  // items are told apart by sweeps
  static constexpr int kChannels = kPixelRows ? Tile::kCols : Tile::kRows;
  static constexpr int kPixels = kPixelRows ? Tile::kRows : Tile::kCols;
  static constexpr int kSlots = kPixelRows ? kRowStep : kRuns;  ///< threads that meet a channel
  static_assert(kMatrixThreads % kRuns == 0 && Tile::kRows % kRowStep == 0);

  FUSEDSC_DEVICE static int row(int sweep) { return thread_index() / kRuns + sweep * kRowStep; }
  FUSEDSC_DEVICE static int col(int /*sweep*/) { return thread_index() % kRuns * kRun; }
  FUSEDSC_DEVICE static int owner(int sweep) { return kPixelRows ? 0 : sweep; }
  FUSEDSC_DEVICE static int slot() { return kPixelRows ? thread_index() / kRuns : thread_index() % kRuns; }
  /// Within the tile.
  FUSEDSC_DEVICE static int channel(int item) { return kPixelRows ? col(0) + item : row(item); }

  /// A run of the sums that a product left, its parts added.
  FUSEDSC_DEVICE static void read(const A* sums, int sweep, A (&to)[kRun]) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(A));
#pragma unroll
    for (int part = 0; part < Product::parts(); ++part) {
      const A* from = sums + (part * Tile::kRows + row(sweep)) * Tile::kSumsPitch + col(0);
#pragma unroll
      for (int i = 0; i < kRun; i += kVector) {
        const auto vector = *reinterpret_cast<const Aligned<A, kVector>*>(from + i);
#pragma unroll
        for (int v = 0; v < kVector; ++v) to[i + v] = part == 0 ? vector.elements[v] : to[i + v] + vector.elements[v];
      }
    }
  }
};

/// Likewise, of sums that whoever computed them keeps.
template <class T, class Tile, bool kPixelRows_, class Product>
requires Product::kKeepsSums struct TileSweep<T, Tile, kPixelRows_, Product> {
  using A = Accumulator<T>;
  static constexpr bool kPixelRows = kPixelRows_;
  static constexpr int kRun = 4, kRuns = Product::kRunsOfRow, kSweeps = Product::kRowsOfThread * kRuns;
  static constexpr int kOwners = kPixelRows ? kRuns : Product::kRowsOfThread, kItems = kPixelRows ? 4 * kRuns : kOwners;
  static constexpr int kUnrolled = kSweeps;  // sums are in registers
  static constexpr int kChannels = kPixelRows ? Tile::kCols : Tile::kRows;
  static constexpr int kPixels = kPixelRows ? Tile::kRows : Tile::kCols;
  static constexpr int kSlots = kPixelRows ? 8 * Product::kWarpRows : 4 * Product::kWarpCols;

  FUSEDSC_DEVICE static int row(int sweep) { return Product::row(sweep / kRuns); }
  FUSEDSC_DEVICE static int col(int sweep) { return Product::col(sweep % kRuns); }
  FUSEDSC_DEVICE static int owner(int sweep) { return kPixelRows ? sweep % kRuns : sweep / kRuns; }
  FUSEDSC_DEVICE static int slot() {
    const int lane = thread_index() % 32;
    return kPixelRows ? Product::warp_row() * 8 + lane / 4 : Product::warp_col() * 4 + lane % 4;
  }
  FUSEDSC_DEVICE static int channel(int item) {
    return kPixelRows ? Product::col(item / kRun) + item % kRun : Product::row(item);
  }
  FUSEDSC_DEVICE static void read(const Product& product, int sweep, A (&to)[kRun]) {
    product.read(sweep / kRuns, sweep % kRuns, to);
  }
};

/// Which of a thread's items the i-th value of a sweep's run belongs to.
template <class Sweep>
FUSEDSC_DEVICE int item_of(int sweep, int i) {
  return Sweep::kPixelRows ? Sweep::owner(sweep) * Sweep::kRun + i : Sweep::owner(sweep);
}

/// Of a block.
template <class Sweep>
inline constexpr int kSweepThreads = [] {
  if constexpr (requires { Sweep::kThreads; }) return Sweep::kThreads;
  else return kMatrixThreads;
}();

/// Values of a thread's channels; `first` is the tile's first channel, `channels` how many the vector has from there
/// on.
template <class Sweep, class Stored, class A>
FUSEDSC_DEVICE void load_items(const void* vector, int first, int channels, A otherwise, A (&to)[Sweep::kItems],
                               Stored) {
#pragma unroll
  for (int i = 0; i < Sweep::kItems; ++i) {
    const int channel = Sweep::channel(i);
    const bool has = vector != nullptr && channel < channels;
    to[i] = has ? static_cast<A>(to_accumulator(static_cast<const Stored*>(vector)[first + channel])) : otherwise;
  }
}

/// Where the elements of a run are that begins at {pixel, channel}.
template <class Sweep, class T, class Matrix>
struct RunPlace {
  T* data;
  const Matrix& matrix;
  int pixel;

  FUSEDSC_DEVICE RunPlace(T* data_, const Matrix& matrix_, int group, int pixel_, int channel)
      : data(data_ + group * matrix_.group + channel * matrix_.second), matrix(matrix_), pixel(pixel_) {
    if constexpr (Sweep::kPixelRows) data += matrix.first_offset(pixel);
  }

  FUSEDSC_DEVICE T* element(int i) const {
    return data + (Sweep::kPixelRows ? i * matrix.second : matrix.first_offset(pixel + i));
  }
};

/// A run from {pixel, channel} on, of which `count` elements exist, to and from memory: as many at once as the matrix
/// allows.
template <class Sweep, class T>
FUSEDSC_DEVICE void store_run(const Accumulator<T> (&from)[Sweep::kRun], const OutputMatrix& matrix, int group,
                              int pixel, int channel, int count, T) {
  const RunPlace<Sweep, T, OutputMatrix> to(static_cast<T*>(matrix.data), matrix, group, pixel, channel);
  if (matrix.run_bytes == 16 && count == Sweep::kRun) {
    store<Sweep::kRun>(from, to.element(0));
  } else if (sizeof(T) <= 4 && matrix.run_bytes == 8 && count == Sweep::kRun) {
    constexpr int kHalf = sizeof(T) <= 4 ? Sweep::kRun / 2 : 1;
    store<kHalf>(from, to.element(0));
    store<kHalf>(from + kHalf, to.element(kHalf));
  } else {
#pragma unroll
    for (int i = 0; i < Sweep::kRun; ++i) {
      if (i < count) store<1>(from + i, to.element(i));
    }
  }
}

template <class Sweep, class T>
FUSEDSC_DEVICE void load_run(const PointwiseMatrix& matrix, int group, int pixel, int channel, int count,
                             Accumulator<T> (&to)[Sweep::kRun], T) {
  const RunPlace<Sweep, const T, PointwiseMatrix> from(static_cast<const T*>(matrix.data), matrix, group, pixel,
                                                       channel);
  if (matrix.run_bytes == 16 && count == Sweep::kRun) {
    load<Sweep::kRun>(from.element(0)).widen(to);
  } else {
#pragma unroll
    for (int i = 0; i < Sweep::kRun; ++i) to[i] = i < count ? to_accumulator(*from.element(i)) : Accumulator<T>(0);
  }
}

/// Shared memory that merge_items needs.
template <class Sweep, int kSums>
inline constexpr std::size_t kMergedItemsBytes = sizeof(typename Sweep::A) *
                                                 static_cast<std::size_t>(kSums* Sweep::kSlots* Sweep::kChannels);

/// Puts together what a block's threads have summed per channel: kSums values of each item, and
/// merge(sums, other's sums), called in the order of the threads. keep(channel of the tile, sums) in one of them.
template <class Sweep, int kSums, class A, std::size_t kBytes, class Merge, class Keep>
FUSEDSC_DEVICE void merge_items(SharedMemory<A, kBytes> shared, const A (&values)[Sweep::kItems][kSums],
                                const Merge& merge, const Keep& keep) {
  static_assert(kMergedItemsBytes<Sweep, kSums> <= kBytes);
  constexpr int kPlaces = Sweep::kSlots * Sweep::kChannels;
  A* const memory = shared.data;
  block_barrier();  // whoever used the memory before is done
#pragma unroll
  for (int i = 0; i < Sweep::kItems; ++i) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      memory[s * kPlaces + Sweep::slot() * Sweep::kChannels + Sweep::channel(i)] = values[i][s];
    }
  }
  block_barrier();
  for (int channel = thread_index(); channel < Sweep::kChannels; channel += kSweepThreads<Sweep>) {
    A merged[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) merged[s] = memory[s * kPlaces + channel];
    for (int slot = 1; slot < Sweep::kSlots; ++slot) {
      A other[kSums];
#pragma unroll
      for (int s = 0; s < kSums; ++s) other[s] = memory[s * kPlaces + slot * Sweep::kChannels + channel];
      merge(merged, other);
    }
    keep(channel, merged);
  }
}

}  // namespace fusedsc::gpu
