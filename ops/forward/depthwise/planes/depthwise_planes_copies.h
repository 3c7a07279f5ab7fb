/// How tiles of planes come to the shared memory of depthwise kernels for contiguous tensors on Hopper GPUs.
#pragma once

#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes.h"

namespace fusedsc::gpu::hopper {

/// TMA moves whole runs of 16 bytes: planes that begin within one begin there in shared memory as well.
template <class T>
FUSEDSC_DEVICE int skew_of(std::int64_t plane, int plane_size) {
  return static_cast<int>(static_cast<unsigned>(plane) * static_cast<unsigned>(plane_size) % (16 / sizeof(T)));
}

/// Rows [row, end) of a tile's planes on their way to shared memory. Planes are `pitch` elements apart there; those
/// that are whole are neighbours there as well, one run from `to` and their skew on.
template <class T>
class PlanesCopy {
 public:
  FUSEDSC_DEVICE PlanesCopy(T* to, int pitch, const T* tensor, const PlanesTile& tile, int row, int end, int height,
                            int width)
      : to_(to), from_(tensor + tile.plane * (height * width)), pitch_(pitch), plane_size_(height * width) {
    if (end - row == height) {
      const int skew = skew_of<T>(tile.plane, plane_size_);
      from_ -= skew;
      runs_ = 1;
      run_bytes_ = ((skew + tile.count * plane_size_) * static_cast<int>(sizeof(T)) + 15) & ~15;
    } else {
      from_ += row * width;
      runs_ = end > row ? tile.count : 0;
      run_bytes_ = (end - row) * width * static_cast<int>(sizeof(T));
    }
  }

  FUSEDSC_DEVICE int bytes() const { return runs_ * run_bytes_; }
  /// What keep_order is to be told.
  FUSEDSC_DEVICE std::uint32_t place() const {
    return upper_word(from_) | address_of(to_) | static_cast<std::uint32_t>(bytes());
  }
  FUSEDSC_DEVICE void start(Barrier* barrier) const {
#pragma unroll 1
    for (int i = 0; i < runs_; ++i) {
      start_load(to_ + i * pitch_, from_ + i * static_cast<std::int64_t>(plane_size_), run_bytes_, barrier);
    }
  }

 private:
  T* to_;
  const T* from_;
  int pitch_, plane_size_, runs_, run_bytes_;
};

/// All that comes to a stage: rows of some tensors.
template <class T, int kTensors>
struct PlanesCopies {
  Barrier* barrier;
  PlanesCopy<T> tensors[kTensors];

  FUSEDSC_DEVICE void announce() const {
    int bytes = 0;
#pragma unroll
    for (int i = 0; i < kTensors; ++i) bytes += tensors[i].bytes();
    expect(barrier, bytes);
  }
  FUSEDSC_DEVICE std::uint32_t place() const {
    std::uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < kTensors; ++i) all |= tensors[i].place();
    return all & 0x7fffffffu;
  }
  FUSEDSC_DEVICE void start() const {
#pragma unroll
    for (int i = 0; i < kTensors; ++i) tensors[i].start(barrier);
  }
};

/// Of one tensor, all of a tile's rows.
template <class T>
FUSEDSC_DEVICE PlanesCopies<T, 1> copies_of_tile(Barrier* barrier, T* to, int pitch, const T* tensor,
                                                 const PlanesTile& tile, int height, int width) {
  return {barrier, {{to, pitch, tensor, tile, tile.row, tile.row + tile.rows, height, width}}};
}

/// As WarpStages wants it: what starts copies(item, stage), those of an item of a cursor.
template <class Copies>
FUSEDSC_DEVICE auto starter_of(const Copies& copies) {
  return [&copies](const auto& item, int stage) {
    const auto all = copies(item, stage);
    all.announce();
    all.start();
  };
}

/// A warp's first tiles, by all its lanes. Little is left to do for the first when the kernel before has ended.
template <class Cursor, class Copies>
FUSEDSC_DEVICE void start_first_tiles(const WarpStages& stages, Cursor& ahead, const Copies& copies) {
  const auto first = copies(ahead, 0);
  const bool starts = stages.is_leader && ahead.exists();
  stages.start();
  if (starts) first.announce();
  keep_order(first.place());
  wait_for_previous_kernel();
  if (starts) first.start();
  ahead.next();
  stages.start_first(ahead, starter_of(copies), 1);
}

}  // namespace fusedsc::gpu::hopper
