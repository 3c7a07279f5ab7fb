/// What a thread has of a product by fragments: its sums, and which positions and channels they are of.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_tile.h"

namespace fusedsc::gpu {

/// A thread's results: of 2 * kPositionTiles positions, and of each kGroups runs of channels.
template <class T, class Tile>
class FragmentSums {
 public:
  static constexpr int kPositions = 2 * Tile::kPositionTiles;
  static constexpr int kAtOnce = Tile::kRun < 4 ? Tile::kRun : 4;  ///< floats, to and from shared memory

  FUSEDSC_DEVICE FragmentSums() { clear(); }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Tile::kChannelTiles; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kPositionTiles; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums_[i][j][v] = 0;
      }
    }
  }

  /// A chunk; of activations a thread has 16 bytes of one position of each tile.
  FUSEDSC_DEVICE void multiply(const FragmentWords (&activations)[Tile::kPositionTiles],
                               const FragmentWeight<T, Tile>& weight, int chunk) {
    multiply(activations, [&](int i, int half) { return weight.read(chunk, i, half); });
  }
  /// read(channel tile, half of the chunk): the weight.
  template <class Read>
  FUSEDSC_DEVICE void multiply(const FragmentWords (&activations)[Tile::kPositionTiles], const Read& read) {
#pragma unroll
    for (int i = 0; i < Tile::kChannelTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const FragmentWords a = read(i, half);
#pragma unroll
        for (int j = 0; j < Tile::kPositionTiles; ++j) {
          const auto& b = activations[j].elements;
          wave_multiply_add(
              sums_[i][j],
              {{a.elements[0], a.elements[1], a.elements[2], a.elements[3]}, {b[2 * half], b[2 * half + 1]}}, T());
        }
      }
    }
  }

  /// Of the warp's positions the thread's first, and from there to its i-th.
  FUSEDSC_DEVICE static int first_position() { return FragmentPlace().inner * (Tile::kPacked ? 1 : 2); }
  FUSEDSC_DEVICE static constexpr int offset(int i) { return i / 2 * 8 + i % 2 * (Tile::kPacked ? 4 : 1); }
  FUSEDSC_DEVICE static int position(int i) { return first_position() + offset(i); }

  FUSEDSC_DEVICE void read(int position, int group, float (&to)[Tile::kRun]) const {
#pragma unroll
    for (int i = 0; i < Tile::kRun; ++i) {
      to[i] = sums_[group * (Tile::kRun / 2) + i / 2][position / 2][i % 2 * 2 + position % 2];
    }
  }

  /// From rows of instructions that are channels in their order to those that read() expects, by a warp, whose memory
  /// holds a group of channels. Rows are such that lanes fall on different banks.
  static constexpr int kReorderPitch = Tile::kGroup + 4, kReorderBytes = 8 * Tile::kPositionTiles * kReorderPitch * 4;

  FUSEDSC_DEVICE void reorder(float* memory) {
    constexpr int kTiles = Tile::kRun / 2;  // of a group
    const int outer = FragmentPlace().outer;
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      wave_product_barrier();  // what was there has been read
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int p = 0; p < kPositions; ++p) {
          float* const to = memory + position(p) * kReorderPitch + 16 * i + outer;
          const auto& sums = sums_[group * kTiles + i][p / 2];
          to[0] = sums[p % 2];
          to[8] = sums[2 + p % 2];
        }
      }
      wave_product_barrier();
#pragma unroll
      for (int p = 0; p < kPositions; ++p) {
#pragma unroll
        for (int i = 0; i < Tile::kRun; i += kAtOnce) {
          const auto some = *reinterpret_cast<const Aligned<float, kAtOnce>*>(memory + position(p) * kReorderPitch +
                                                                              outer * Tile::kRun + i);
#pragma unroll
          for (int v = 0; v < kAtOnce; ++v) {
            sums_[group * kTiles + (i + v) / 2][p / 2][v % 2 * 2 + p % 2] = some.elements[v];
          }
        }
      }
    }
  }

  /// Of kParts warps that have summed over different k: unit u, a run of a position, is added up by part u % kParts.
  static constexpr int kUnits = kPositions * Tile::kGroups;
  static constexpr int kExchangeBytes = Tile::kParts == 1 ? 0 : kUnits * Tile::kRun * 4 * Tile::kThreads;

  FUSEDSC_DEVICE static int unit(int position, int group) { return position * Tile::kGroups + group; }

  FUSEDSC_DEVICE void leave(float* memory) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float values[Tile::kRun];
      read(u / Tile::kGroups, u % Tile::kGroups, values);
#pragma unroll
      for (int i = 0; i < Tile::kRun; i += kAtOnce) store<kAtOnce>(values + i, place(memory, u, i, thread_index()));
    }
  }
  /// Of the parts of a group of rows, in their order.
  FUSEDSC_DEVICE static void gather(float* memory, int unit, float (&to)[Tile::kRun]) {
    const int first = thread_index() / (32 * Tile::kParts) * (32 * Tile::kParts) + thread_index() % 32;
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < Tile::kRun; i += kAtOnce) {
        const auto some = *reinterpret_cast<const Aligned<float, kAtOnce>*>(place(memory, unit, i, first + 32 * part));
#pragma unroll
        for (int v = 0; v < kAtOnce; ++v) to[i + v] = part == 0 ? some.elements[v] : to[i + v] + some.elements[v];
      }
    }
  }

 private:
  FUSEDSC_DEVICE static float* place(float* memory, int unit, int i, int thread) {
    return memory + ((unit * (Tile::kRun / kAtOnce) + i / kAtOnce) * Tile::kThreads + thread) * kAtOnce;
  }

  float sums_[Tile::kChannelTiles][Tile::kPositionTiles][4];
};

/// The owners of a thread's results: groups of channels. Items: an owner's channels, kRun of them.
template <class Tile>
struct FragmentSweep {
  using A = float;
  static constexpr int kRun = Tile::kRun, kOwners = Tile::kGroups, kItems = kOwners * kRun;
  static constexpr int kChannels = Tile::kColumns, kThreads = Tile::kThreads;
  static constexpr int kSlots = 4 * Tile::kWarps / Tile::kWarpColumns;  ///< threads that meet a channel

  FUSEDSC_DEVICE static int slot() {
    // Warps that share k are neighbours, and each takes some of their results.
    const int place = FragmentPlace().warp / Tile::kParts / Tile::kWarpColumns;
    return (place * Tile::kParts + FragmentPlace().warp % Tile::kParts) * 4 + FragmentPlace().inner;
  }
  FUSEDSC_DEVICE static int channel(int item) {
    return FragmentPlace().warp / Tile::kParts % Tile::kWarpColumns * Tile::kWarpChannels + item / kRun * Tile::kGroup +
           FragmentPlace().outer * kRun + item % kRun;
  }
};

}  // namespace fusedsc::gpu
