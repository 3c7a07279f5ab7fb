/// Contiguous tensors made channels_last ones: for weight gradients of maps that are no whole runs of 16 bytes, which
/// neither the copy engine nor loads of vectors can take as they are.
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/vector.h"

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
  int rotation = 0;   ///< see below
};

/// A block has 128 bytes of channels of one image: a run of bytes, which it copies to block memory. There a thread
/// picks neighbouring channels of one position, 16 bytes, at a time; eight threads have all channels of a position.
template <class T, int kThreads>
class Transposing {
 public:
  static constexpr int kRun = 16 / static_cast<int>(sizeof(T)), kRuns = 8, kChannels = kRuns * kRun;
  static constexpr int kBlockPositions = 4;  ///< that neighbouring threads have

  FUSEDSC_DEVICE static void run(const TransposingParameters& p) {
    let_next_kernel_start();
    auto block = static_cast<std::uint32_t>(block_index());
    int number = 0;
    while (block >= static_cast<std::uint32_t>(p.tensors[number].blocks)) {
      block -= static_cast<std::uint32_t>(p.tensors[number].blocks);
      ++number;
    }
    const TransposedTensor& tensor = p.tensors[number];
    const auto image = static_cast<std::int64_t>(tensor.by_tiles.divide(block));
    const int first = static_cast<int>(block) * kChannels, left = tensor.channels - first;
    const int channels = left < kChannels ? left : kChannels;
    auto* memory = static_cast<T*>(block_memory());
    wait_for_previous_kernel();
    const T* from = static_cast<const T*>(tensor.from) + image * tensor.from_image + std::int64_t{first} * p.positions;
#pragma unroll 2
    for (int i = thread_index() * kRun; i < channels * p.positions; i += kThreads * kRun) {
      *reinterpret_cast<Bytes*>(memory + i) = *reinterpret_cast<const Bytes*>(from + i);
    }
    block_barrier();

    // Where runs of neighbouring threads would fall on the same banks, their positions are others.
    const int run = thread_index() % kRuns, lane = thread_index() / kRuns % kBlockPositions;
    const int blocks = (p.positions + kBlockPositions - 1) / kBlockPositions,
              turn = blocks < kRuns ? 0 : run >> p.rotation;
    if (run * kRun >= channels) return;
    T* to = static_cast<T*>(tensor.to) + image * p.positions * tensor.channels + first + run * kRun;
#pragma unroll 1
    for (int i = thread_index() / (kRuns * kBlockPositions); i < blocks; i += kThreads / (kRuns * kBlockPositions)) {
      const int turned = i + turn < blocks ? i + turn : i + turn - blocks;
      const int position = turned * kBlockPositions + lane;
      if (position >= p.positions) continue;
      Aligned<T, kRun> elements;
#pragma unroll
      for (int j = 0; j < kRun; ++j) elements.elements[j] = memory[(run * kRun + j) * p.positions + position];
      *reinterpret_cast<Aligned<T, kRun>*>(to + std::int64_t{position} * tensor.channels) = elements;
    }
  }

 private:
  using Bytes = Aligned<std::uint32_t, 4>;
};

}  // namespace fusedsc::gpu::hopper
