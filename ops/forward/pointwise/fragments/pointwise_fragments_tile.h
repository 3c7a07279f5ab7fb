/// Products of matrices of 16-bit elements by warps that need neither each other nor shared memory for their rows. A
/// warp's instruction takes any order of k and of columns, if both factors have the same: with the orders chosen here a
/// thread's part of a factor is 16 bytes as they lie in memory, and so is its part of the result.
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_cursor.h"

namespace fusedsc::gpu {

/// A warp has kRowTiles times 16 rows and kColumns columns; kParts warps share the values of k. Of rows kStages chunks
/// of k are under way or in use.
template <int kRowTiles_, int kColumns_, int kParts_ = 1, int kStages_ = 4>
struct FragmentTile {
  static constexpr int kRowTiles = kRowTiles_, kColumns = kColumns_, kParts = kParts_, kStages = kStages_;
  static constexpr int kWarps = kMatrixThreads / 32, kTeams = kWarps / kParts;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kTeams;
  static constexpr int kChunk = 32;  ///< values of k, of which each of four threads has a run
  static constexpr int kRun = 8, kRuns = kChunk / kRun;
  static constexpr int kThreadRows = 2 * kRowTiles, kColumnTiles = kColumns / 8, kColumnRuns = kColumns / 32;
  static_assert(kColumns % 32 == 0 && kWarps % kParts == 0);
};

/// Where a thread stands in its warp: of rows its first is `row`, and of runs of neighbours it has every fourth.
struct FragmentPlace {
  int warp, row, run;

  FUSEDSC_DEVICE FragmentPlace()
      : warp(thread_index() / 32), row(thread_index() % 32 / 4), run(thread_index() % 32 % 4) {}
};

/// 16 bytes in shared memory.
using FragmentWords = Aligned<std::uint32_t, 4>;

/// A weight in shared memory as instructions take it: [chunk][column tile][lane], 16 bytes each. Column c of 32 is
/// number c / 8 * 2 + c % 2 of tile c % 8 / 2, so that a thread's results of four tiles are neighbours.
template <class T, class Tile>
class FragmentWeight {
 public:
  static constexpr int kChunkWords = Tile::kColumnTiles * 32;  ///< of 16 bytes
  static constexpr int kChunkBytes = kChunkWords * 16;

  FUSEDSC_DEVICE explicit FragmentWeight(void* memory) : words_(static_cast<FragmentWords*>(memory)) {}

  /// Starts copying a weight [column][k]; there are `columns` and `depth` from the first ones on.
  FUSEDSC_DEVICE void start(const T* from, std::int64_t column_stride, int columns, int depth) const {
    constexpr int kThreadsOfChunk = Tile::kColumns * Tile::kRuns;
    for (int chunk = 0; chunk * Tile::kChunk < depth; ++chunk) {
#pragma unroll
      for (int i = 0; i < kThreadsOfChunk; i += kMatrixThreads) {
        const int column = (thread_index() + i) / Tile::kRuns, run = thread_index() % Tile::kRuns;
        const int k = chunk * Tile::kChunk + run * Tile::kRun;
        const bool has = column < columns && k < depth;
        start_copy<16>(place(chunk, column, run), has ? from + column * column_stride + k : from, has);
      }
    }
  }

  /// Copies a weight [k][column].
  FUSEDSC_DEVICE void turn(const T* from, std::int64_t depth_stride, int columns, int depth) const {
    constexpr int kThreadsOfChunk = Tile::kColumns / Tile::kRun * Tile::kRuns;
    const int chunks = (depth + Tile::kChunk - 1) / Tile::kChunk;
    for (int i = thread_index(); i < kThreadsOfChunk * chunks; i += kMatrixThreads) {
      const int run = i % Tile::kRuns, rest = i / Tile::kRuns;
      const int column = rest % (Tile::kColumns / Tile::kRun) * Tile::kRun, chunk = rest / (Tile::kColumns / Tile::kRun);
      const int k = chunk * Tile::kChunk + run * Tile::kRun;
      Vector<T, Tile::kRun> rows[Tile::kRun];
#pragma unroll
      for (int r = 0; r < Tile::kRun; ++r) {
        rows[r] = {};
        if (column < columns && k + r < depth) rows[r] = load<Tile::kRun>(from + (k + r) * depth_stride + column);
      }
#pragma unroll
      for (int c = 0; c < Tile::kRun; ++c) {
        FragmentWords words;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const std::uint32_t first = rows[2 * w].words[c / 2], second = rows[2 * w + 1].words[c / 2];
          words.elements[w] =
              c % 2 == 0 ? (first & 0xffffu) | second << 16 : first >> 16 | (second & 0xffff0000u);
        }
        *place(chunk, column + c, run) = words;
      }
    }
  }

  /// Of a column tile: of columns g, runs of k.
  FUSEDSC_DEVICE FragmentWords read(int chunk, int tile) const {
    return words_[(chunk * Tile::kColumnTiles + tile) * 32 + thread_index() % 32];
  }

 private:
  FUSEDSC_DEVICE FragmentWords* place(int chunk, int column, int run) const {
    const int c = column % 32, tile = column / 32 * 4 + c % 8 / 2, number = c / 8 * 2 + c % 2;
    return words_ + (chunk * Tile::kColumnTiles + tile) * 32 + number * 4 + run;
  }

  FragmentWords* words_;
};

/// A thread's results, and how they are added up.
template <class T, class Tile>
class FragmentSums {
 public:
  FUSEDSC_DEVICE FragmentSums() { clear(); }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums_[i][j][v] = 0;
      }
    }
  }

  /// A chunk; of rows a thread has 16 bytes each.
  FUSEDSC_DEVICE void multiply(const FragmentWords (&rows)[Tile::kThreadRows], const FragmentWeight<T, Tile>& weight,
                               int chunk) {
#pragma unroll
    for (int j = 0; j < Tile::kColumnTiles; ++j) {
      const FragmentWords b = weight.read(chunk, j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < Tile::kRowTiles; ++i) {
          const auto &low = rows[2 * i].elements, &high = rows[2 * i + 1].elements;
          wave_multiply_add(sums_[i][j],
                            {{low[2 * half], high[2 * half], low[2 * half + 1], high[2 * half + 1]},
                             {b.elements[2 * half], b.elements[2 * half + 1]}},
                            T());
        }
      }
    }
  }

  /// Of a row of the thread's, a run of neighbouring columns.
  FUSEDSC_DEVICE void read(int row, int run, float (&to)[Tile::kRun]) const {
#pragma unroll
    for (int i = 0; i < Tile::kRun; ++i) to[i] = sums_[row / 2][4 * run + i / 2][row % 2 * 2 + i % 2];
  }

  /// Of kParts warps that have summed over different k: unit `u`, a run of a row, is added up by part u % kParts.
  static constexpr int kUnits = Tile::kThreadRows * Tile::kColumnRuns;
  static constexpr int kExchangeBytes = Tile::kParts == 1 ? 0 : kUnits * Tile::kRun * 4 * kMatrixThreads;

  FUSEDSC_DEVICE void leave(float* memory) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      float values[Tile::kRun];
      read(unit / Tile::kColumnRuns, unit % Tile::kColumnRuns, values);
#pragma unroll
      for (int i = 0; i < Tile::kRun; i += 4) {
        store<4>(values + i, memory + ((unit * 2 + i / 4) * kMatrixThreads + thread_index()) * 4);
      }
    }
  }
  /// Of the team's parts, in their order.
  FUSEDSC_DEVICE static void gather(const float* memory, int unit, float (&to)[Tile::kRun]) {
    const int first = thread_index() / (32 * Tile::kParts) * (32 * Tile::kParts) + thread_index() % 32;
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < Tile::kRun; i += 4) {
        const auto four = *reinterpret_cast<const Aligned<float, 4>*>(
            memory + ((unit * 2 + i / 4) * kMatrixThreads + first + 32 * part) * 4);
#pragma unroll
        for (int v = 0; v < 4; ++v) to[i + v] = part == 0 ? four.elements[v] : to[i + v] + four.elements[v];
      }
    }
  }

 private:
  float sums_[Tile::kRowTiles][Tile::kColumnTiles][4];
};

/// As TileSweep, of a thread's results.
template <class Tile>
struct FragmentSweep {
  using A = float;
  static constexpr bool kPixelRows = true, kWholeRuns = true, kInOrderOfOwners = true;
  static constexpr int kRun = Tile::kRun, kOwners = Tile::kColumnRuns, kItems = kOwners * kRun;
  static constexpr int kChannels = Tile::kColumns, kPixels = Tile::kRows;
  static constexpr int kSlots = 8 * Tile::kWarps;  ///< threads that meet a channel

  FUSEDSC_DEVICE static int owner(int sweep) { return sweep % kOwners; }
  FUSEDSC_DEVICE static int slot() { return thread_index() / 4; }
  FUSEDSC_DEVICE static int channel(int item) { return item / kRun * 32 + thread_index() % 4 * kRun + item % kRun; }
};

}  // namespace fusedsc::gpu
