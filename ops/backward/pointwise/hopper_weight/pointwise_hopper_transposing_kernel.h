/// Contiguous tensors made channels_last ones: for weight gradients of maps that are no whole runs of 16 bytes, which
/// TMA can take as whole images only, and loads of vectors not at all.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/least.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kMostTransposed = 3;

struct TransposedTensor {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t from_image = 0;  ///< elements from image to image; of `to` there is nothing between them
  int channels = 0, blocks = 0;
  Divisor by_tiles;  ///< of an image's channels
};

struct TransposingParameters {
  TransposedTensor tensors[kMostTransposed];
  int positions = 0;  ///< of an image
  int runs = 0;       ///< of channels, to a block: a power of two
  int rotation = 0;   ///< see below

  FUSEDSC_HOST_DEVICE int tile_bytes() const { return 16 * runs * positions; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const { return tile_bytes() + static_cast<int>(sizeof(Barrier)); }
};

/// A block has some runs of channels, 16 bytes each, of one image: together a run of bytes, which one copy brings to
/// shared memory. There a thread picks a position's run at a time; neighbouring threads have all runs of a position.
template <class T>
class Transposing {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kRun = 16 / static_cast<int>(sizeof(T));
  static constexpr int kBlockPositions = 4;  ///< that neighbouring threads have

  FUSEDSC_DEVICE static void run(const TransposingParameters& p) {
    auto block = static_cast<std::uint32_t>(block_index());
    int number = 0;
    while (block >= static_cast<std::uint32_t>(p.tensors[number].blocks)) {
      block -= static_cast<std::uint32_t>(p.tensors[number].blocks);
      ++number;
    }
    const TransposedTensor& tensor = p.tensors[number];
    const auto image = static_cast<std::int64_t>(tensor.by_tiles.divide(block));
    const int first = static_cast<int>(block) * p.runs * kRun;
    const int channels = least(tensor.channels - first, p.runs * kRun);
    const auto* memory = static_cast<const T*>(shared_memory());
    bring(p, static_cast<const T*>(tensor.from) + image * tensor.from_image + std::int64_t{first} * p.positions,
          channels * p.positions * static_cast<int>(sizeof(T)));

    const int run = thread_index() % p.runs, number_of_run = thread_index() / p.runs;
    if (run * kRun >= channels) return;
    // Where runs of neighbouring threads would fall on the same banks, their positions are others.
    const int blocks = (p.positions + kBlockPositions - 1) / kBlockPositions,
              turn = blocks < p.runs ? 0 : run >> p.rotation;
    const int lane = number_of_run % kBlockPositions, advance = kThreads / kBlockPositions / p.runs;
    T* to = static_cast<T*>(tensor.to) + image * p.positions * tensor.channels + first + run * kRun;
#pragma unroll 1
    for (int i = number_of_run / kBlockPositions; i < blocks; i += advance) {
      const int staggered = i + turn < blocks ? i + turn : i + turn - blocks;
      const int position = staggered * kBlockPositions + lane;
      if (position >= p.positions) continue;
      Aligned<T, kRun> elements;
#pragma unroll
      for (int j = 0; j < kRun; ++j) elements.elements[j] = memory[(run * kRun + j) * p.positions + position];
      *reinterpret_cast<Aligned<T, kRun>*>(to + std::int64_t{position} * tensor.channels) = elements;
    }
  }

 private:
  /// To shared memory, for all threads.
  FUSEDSC_DEVICE static void bring(const TransposingParameters& p, const T* from, int bytes) {
    auto* memory = static_cast<unsigned char*>(shared_memory());
    auto* arrived = reinterpret_cast<Barrier*>(memory + p.tile_bytes());
    const bool is_leader = thread_index() == 0;
    if (is_leader) {
      initialise(arrived);
      publish();
    }
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (is_leader) {
      expect(arrived, bytes);
      start_load(memory, from, bytes, arrived);
    }
    block_barrier();  // before which there is no barrier to wait at
    wait(arrived, 0);
  }
};

}  // namespace fusedsc::gpu::hopper
