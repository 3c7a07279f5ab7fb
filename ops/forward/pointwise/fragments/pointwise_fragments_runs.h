/// A thread's results of a tile, run by run, between registers and memory. A column of them is one channel's, at
/// positions that differ by constants: an address is one instruction, and what an epilogue reads is asked for together.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_sums.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_sweep.h"

namespace fusedsc::gpu {

/// Positions of a thread's column of runs, from `first` on, of which so many are left. Of kParts warps with the same
/// positions each has some.
template <class Sums, class Tile>
struct FragmentRuns {
  static constexpr int kCount = Sums::kPositions;
  int first, left;
  int group, part = 0;

  FUSEDSC_DEVICE static constexpr int offset(int i) { return Sums::offset(i); }
  FUSEDSC_DEVICE bool has(int i) const {
    return offset(i) < left && (Tile::kParts == 1 || Sums::unit(i, group) % Tile::kParts == part);
  }
  /// Whether it is known that all exist, which takes a second copy of the code. Packed rows are in shared memory, near.
  FUSEDSC_DEVICE bool has_all() const { return !Tile::kPacked && Tile::kParts == 1 && offset(kCount - 1) < left; }
};

/// Whether runs are of packed rows, of which any even number of elements may exist, aligned to pairs.
template <class Sweep>
inline constexpr bool kHasPairs = requires {
  requires Sweep::kPairs;
};

/// Values of an owner's channels; `first` is the tile's first channel, `channels` how many the vector has from there
/// on.
template <class Sweep, class Stored, class A>
FUSEDSC_DEVICE void load_run_items(const void* vector, int first, int channels, A otherwise, A (&to)[Sweep::kRun],
                                   Stored, int owner) {
  const int own = Sweep::channel(owner * Sweep::kRun);
  const auto* const from = static_cast<const Stored*>(vector) + first + own;
  constexpr int kMost = 16 / static_cast<int>(sizeof(Stored)), kAtOnce = kMost < Sweep::kRun ? kMost : Sweep::kRun;
  constexpr int kLast = kHasPairs<Sweep> ? Sweep::kRun - 1 : 0;  // whose runs may be cut by the end
  if (vector != nullptr && own + kLast < channels && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < Sweep::kRun; i += kAtOnce) gpu::load<kAtOnce>(from + i).widen(to + i);
    return;
  }
#pragma unroll
  for (int i = 0; i < Sweep::kRun; ++i) {
    to[i] = vector != nullptr && own + i < channels ? static_cast<A>(to_accumulator(from[i])) : otherwise;
  }
}

/// Distances between positions, in elements, that RunColumn takes.
inline constexpr std::int64_t kMostRowElements = std::int64_t{1} << 24;

/// Where a column's runs are in a tensor; of packed rows their first `count` elements exist, an even number.
template <class Sweep, class T>
class RunColumn {
 public:
  static constexpr int kRun = Sweep::kRun;

  template <class Void>
  FUSEDSC_DEVICE RunColumn(const BasicPointwiseMatrix<Void>& matrix, int group, int position, int channel, int count)
      : row_bytes_(static_cast<int>(matrix.first) * static_cast<int>(sizeof(T))), count_(count) {
    auto* const data = static_cast<T*>(const_cast<void*>(static_cast<const void*>(matrix.data)));
    base_ = reinterpret_cast<unsigned char*>(data + group * matrix.group + position * matrix.first + channel);
  }

  FUSEDSC_DEVICE Vector<T, kRun> load(int offset) const {
    const T* const from = at(offset);
    if constexpr (kHasPairs<Sweep>) {
      Vector<T, kRun> result{};
#pragma unroll
      for (int i = 0; i < kRun; i += 2) {
        if (i < count_) result.words[i / 2] = gpu::load<2>(from + i).words[0];
      }
      return result;
    } else {
      return gpu::load<kRun>(from);
    }
  }
  FUSEDSC_DEVICE void store(int offset, const Accumulator<T> (&values)[kRun]) const {
    T* const to = at(offset);
    if constexpr (kHasPairs<Sweep>) {
#pragma unroll
      for (int i = 0; i < kRun; i += 2) {
        if (i < count_) gpu::store<2>(values + i, to + i);
      }
    } else {
      gpu::store<kRun>(values, to);
    }
  }

 private:
  FUSEDSC_DEVICE T* at(int offset) const {
    return reinterpret_cast<T*>(base_ + static_cast<std::int64_t>(row_bytes_) * offset);
  }

  unsigned char* base_;
  int row_bytes_, count_;
};

/// Runs of a column that are on their way together: as many as registers hold beside a tile's sums.
template <class Sweep, class T, class Runs>
inline constexpr int kRunsTogether = [] {
  constexpr int kMost = Sweep::kRun * static_cast<int>(sizeof(T)) == 8 ? 8 : 2;
  return Runs::kCount < kMost ? Runs::kCount : kMost;
}();

/// use(i, run of a tensor) for all runs of a column, all of which exist. Nothing is read, and runs are 0, where there
/// is no tensor.
template <class Sweep, class T, class Runs, class Use>
FUSEDSC_DEVICE void for_each_run(const PointwiseMatrix& matrix, int group, const Runs& runs, int channel, int count,
                                 const Use& use) {
  constexpr int kTogether = kRunsTogether<Sweep, T, Runs>;
  const RunColumn<Sweep, T> from(matrix, group, runs.first, channel, count);
#pragma unroll
  for (int first = 0; first < Runs::kCount; first += kTogether) {
    Vector<T, Sweep::kRun> loaded[kTogether] = {};
    if (matrix.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) loaded[i] = from.load(Runs::offset(first + i));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) use(first + i, loaded[i]);
  }
}

}  // namespace fusedsc::gpu
