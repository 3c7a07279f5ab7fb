/// Tiles of the weight gradient's kernels that multiply fragments, coefficients of their prologues, and what becomes of
/// their sums.
#pragma once

#include "fusedsc/backward/pointwise/tiles/pointwise_weight_kernel.h"
#include "fusedsc/common/gpu/tensors/registers.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"

namespace fusedsc::gpu {

/// A warp has 8 * kRowRun outputs and 8 * kColumnRun channels: runs of 8, 4 or 2. kWarpRows times kWarpColumns warps
/// lie side by side and share what they copy; the others of a block have other positions. kSteps times 16 positions are
/// copied at a time, and kStages such copies are under way or in use.
template <int kRowRun_, int kColumnRun_, int kWarpRows_ = 1, int kWarpColumns_ = 1, int kSteps_ = 1, int kStages_ = 4,
          int kThreads_ = kMatrixThreads, bool kPacked_ = false>
struct WeightFragmentTile {
  static constexpr int kThreads = kThreads_;
  static constexpr bool kPacked = kPacked_;  ///< tensors have any even number of channels
  static constexpr int kRowRun = kRowRun_, kColumnRun = kColumnRun_, kWarpRows = kWarpRows_,
                       kWarpColumns = kWarpColumns_;
  static constexpr int kSteps = kSteps_, kStages = kStages_;
  static constexpr int kSliceWarps = kWarpRows * kWarpColumns, kParts = kThreads / 32 / kSliceWarps;
  static constexpr int kRows = 8 * kRowRun * kWarpRows, kColumns = 8 * kColumnRun * kWarpColumns;
  static constexpr int kPositions = 16 * kSteps, kDepth = kPositions * kParts;  ///< of a slice, of a block
  static constexpr int kRowTiles = kRowRun / 2, kColumnTiles = kColumnRun;
  static_assert(kThreads / 32 % kSliceWarps == 0);
};

/// A strip of neighbouring channels, 8 * kRun of them, at every fourth position: a lane's runs, as copied and as read.
/// A run of more than 16 bytes is in pieces, each beside the same piece of the other lanes. Eight lanes side by side
/// copy the eight runs of a position, for others to read: memory is asked for whole lines, as its requests only join
/// what neighbouring lanes want.
template <class T, int kRun>
struct FragmentStrip {
  static constexpr int kOfWord = kPerWord<T>, kWords = kRun / kOfWord;  ///< of a run
  static constexpr int kPiece = kRun < 4 * kOfWord ? kRun : 4 * kOfWord, kPieces = kRun / kPiece;
  static constexpr int kPieceBytes = kPiece * static_cast<int>(sizeof(T));
  static constexpr int kStepBytes = 4 * 32 * kPieces * kPieceBytes;  ///< of 16 positions
  /// Words of a channel that instructions take: of two positions each, or of one.
  static constexpr int kFactors = 4 / kOfWord;

  /// A lane's run, of eight, and position, of four: of those that it copies, and of those that it reads.
  FUSEDSC_DEVICE static int copied_run() { return thread_index() % 8; }
  FUSEDSC_DEVICE static int copied_position() { return thread_index() % 32 / 8; }
  FUSEDSC_DEVICE static int read_run() { return thread_index() % 32 / 4; }
  FUSEDSC_DEVICE static int read_position() { return thread_index() % 4; }

  /// Such that lanes fall on different banks both as they copy and as they read.
  FUSEDSC_DEVICE static unsigned char* place(unsigned char* strip, int s, int piece, int run, int position) {
    return strip + ((s * kPieces + piece) * 32 + position * 8 + (run ^ 2 * position)) * kPieceBytes;
  }
  /// Position of the lane's s-th run, of 16.
  FUSEDSC_DEVICE static int position(int s) { return 4 * s + read_position(); }
  /// In the strip the c-th channel of lanes of a row, of eight.
  FUSEDSC_DEVICE static int channel(int lane_row, int c) {
    return c / kPiece * 8 * kPiece + lane_row * kPiece + c % kPiece;
  }
  /// From the lane's first channel to that of a word.
  FUSEDSC_DEVICE static int channel_of_word(int w) { return channel(0, kOfWord * w); }

  /// Words of neighbouring channels, of four positions each.
  FUSEDSC_DEVICE static void read(unsigned char* strip, std::uint32_t (&to)[4][kWords]) {
    constexpr int kOfPiece = kPieceBytes / 4;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const auto words = *reinterpret_cast<const Aligned<std::uint32_t, kOfPiece>*>(
            place(strip, s, piece, read_run(), read_position()));
#pragma unroll
        for (int w = 0; w < kOfPiece; ++w) to[s][piece * kOfPiece + w] = words.elements[w];
      }
    }
  }

  /// Of the lane's c-th channel the elements of positions 0 and 1 (factor 0), or 2 and 3; of floats that of one.
  FUSEDSC_DEVICE static std::uint32_t factor(const std::uint32_t (&words)[4][kWords], int c, int i) {
    if constexpr (sizeof(T) == 4) return factor_of(words[i][c], T());
    else return halves_of(words[2 * i][c / 2], words[2 * i + 1][c / 2], c % 2 != 0);
  }
};

/// Coefficients of a prologue by channel, of a strip, in shared memory. A lane's words and positions are where Lane has
/// them.
struct StripCoefficients {
  const float *scale, *shift, *other_scale;
  Activation activation;

  /// On the words of four positions; those that are not there become 0. `channel`: of the first of the lane's.
  template <class T, int kRun, bool kHasOther, FragmentFusion kActivations, class Lane = FragmentStrip<T, kRun>>
  FUSEDSC_DEVICE void apply(int channel, int positions, std::uint32_t (&words)[4][kRun / kPerWord<T>],
                            const std::uint32_t (&other)[4][kRun / kPerWord<T>]) const {
    constexpr int kOfWord = kPerWord<T>, kWords = kRun / kOfWord;
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
      float z[2 * kRun];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const int c = channel + Lane::channel_of_word(w);
          float values[kOfWord], others[kOfWord];
          to_numbers(words[first + s][w], values, T());
          if constexpr (kHasOther) to_numbers(other[first + s][w], others, T());
#pragma unroll
          for (int v = 0; v < kOfWord; ++v) {
            float more = shift[c + v];
            if constexpr (kHasOther) more += others[v] * other_scale[c + v];
            z[s * kRun + kOfWord * w + v] = values[v] * scale[c + v] + more;
          }
        }
      }
      if constexpr (kActivations != FragmentFusion::none) {
        activate_by<kActivations == FragmentFusion::clamps>(activation, z);
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const bool has = Lane::position(first + s) < positions;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[first + s][w] = has ? word_of(z + s * kRun + kOfWord * w, T()) : 0;
        }
      }
    }
  }
};

/// A lane's c-th channel of a strip is channel `c` of the lane's run; of packed tiles word c / 2 of the lane's, of
/// which neighbouring lanes have neighbours.
template <class T, class Tile>
struct WeightFragmentSums {
  using RowStrip = FragmentStrip<T, Tile::kRowRun>;
  using ColumnStrip = FragmentStrip<T, Tile::kColumnRun>;
  using Sums = float[Tile::kRowTiles][Tile::kColumnTiles][4];
  /// Units of a thread's sums: of one output channels of two lanes' runs.
  static constexpr int kUnits = Tile::kRowRun, kUnit = 2 * Tile::kColumnRun;
  static constexpr int kBiasBytes = Tile::kThreads * Tile::kRowRun * 4;
  static constexpr int kSumsBytes = Tile::kParts == 1 ? 0 : kUnits * kUnit * 4 * Tile::kThreads;
  static constexpr int kExchangeBytes = kSumsBytes > kBiasBytes ? kSumsBytes : kBiasBytes;

  /// 0 beyond the end.
  FUSEDSC_DEVICE static void load_coefficients(const PointwisePrologue& prologue, int of_group, int first, int all,
                                               int count, int vectors, float* to) {
    const void* const from[] = {prologue.scale, prologue.shift, prologue.other_scale};
#pragma unroll
    for (int v = 0; v < 3; ++v) {
      if (v >= vectors) break;
      for (int i = thread_index(); i < count; i += Tile::kThreads) {
        float value = 0;
        if (first + i < all) {
          value = from[v] != nullptr ? static_cast<const float*>(from[v])[of_group + first + i] : v == 0 ? 1.f : 0.f;
        }
        to[v * count + i] = value;
      }
    }
  }

  /// Of grad_y's outputs, then of x's channels; a barrier of the block makes them visible.
  FUSEDSC_DEVICE static void load_strips(const PointwiseWeightGradientParameters& p, const PointwiseWeightShare& share,
                                         float* coefficients, StripCoefficients& of_rows,
                                         StripCoefficients& of_columns) {
    float* const columns = coefficients + 3 * Tile::kRows;
    load_coefficients(p.grad_y_prologue, share.group * p.outputs, share.first_output, p.outputs, Tile::kRows, 3,
                      coefficients);
    load_coefficients(p.x_prologue, share.group * p.channels, share.first_channel, p.channels, Tile::kColumns, 2,
                      columns);
    of_rows = {coefficients, coefficients + Tile::kRows, coefficients + 2 * Tile::kRows, p.grad_y_prologue.activation};
    of_columns = {columns, columns + Tile::kColumns, nullptr, p.x_prologue.activation};
  }

  FUSEDSC_DEVICE static void multiply(const std::uint32_t (&rows)[4][RowStrip::kWords],
                                      const std::uint32_t (&columns)[4][ColumnStrip::kWords], Sums& sums) {
#pragma unroll
    for (int first = 0; first < RowStrip::kFactors; first += 2) {
      std::uint32_t a[Tile::kRowTiles][4];
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i) {
#pragma unroll
        for (int v = 0; v < 4; ++v) a[i][v] = RowStrip::factor(rows, 2 * i + v % 2, first + v / 2);
      }
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles; ++j) {
        const std::uint32_t b[2] = {ColumnStrip::factor(columns, j, first), ColumnStrip::factor(columns, j, first + 1)};
#pragma unroll
        for (int i = 0; i < Tile::kRowTiles; ++i) {
          wave_multiply_add(sums[i][j], {{a[i][0], a[i][1], a[i][2], a[i][3]}, {b[0], b[1]}}, T());
        }
      }
    }
  }

  FUSEDSC_DEVICE static void add_bias(const std::uint32_t (&rows)[4][RowStrip::kWords], float (&bias)[Tile::kRowRun]) {
    constexpr int kOfWord = kPerWord<T>;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int w = 0; w < RowStrip::kWords; ++w) {
        float values[kOfWord];
        to_numbers(rows[s][w], values, T());
#pragma unroll
        for (int v = 0; v < kOfWord; ++v) bias[kOfWord * w + v] += values[v];
      }
    }
  }

  /// Unit u: of the lane's u-th output channels of the runs of lane rows 2 * (lane % 4) and the next.
  FUSEDSC_DEVICE static void leave(const PointwiseWeightGradientParameters& p, int split, int group, int first_output,
                                   int first_channel, int part, const Sums& sums) {
    auto* const exchange = static_cast<float*>(shared_memory());
    if constexpr (Tile::kParts > 1) {
      block_barrier();  // stages are not needed any more
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < kUnit; i += 4) {
          float four[4];
#pragma unroll
          for (int v = 0; v < 4; ++v) four[v] = sum_of(sums, u, i + v);
          store<4>(four, exchange + ((u * kUnit + i) / 4 * Tile::kThreads + thread_index()) * 4);
        }
      }
      block_barrier();
    }
    const int lane_row = thread_index() % 32 / 4, lane_column = thread_index() % 4;
    const auto output_of = [&](int u) {
      if constexpr (Tile::kPacked) return first_output + 2 * lane_row + u / 2 * 16 + u % 2;
      else return first_output + RowStrip::channel(lane_row, u);
    };
    const auto channel_of = [&](int i) {
      if constexpr (Tile::kPacked) return first_channel + 4 * lane_column + 4 * i;
      else return first_channel + ColumnStrip::channel(2 * lane_column + i / Tile::kColumnRun, i % Tile::kColumnRun);
    };
    const int mine = thread_index() % (32 * Tile::kSliceWarps);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (Tile::kParts > 1 && u % Tile::kParts != part) continue;
      if (output_of(u) >= p.outputs) continue;
#pragma unroll
      for (int i = 0; i < kUnit; i += 4) {
        float four[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) four[v] = Tile::kParts == 1 ? sum_of(sums, u, i + v) : 0;
        if constexpr (Tile::kParts > 1) {
#pragma unroll
          for (int q = 0; q < Tile::kParts; ++q) {
            const auto other = *reinterpret_cast<const Aligned<float, 4>*>(
                exchange + ((u * kUnit + i) / 4 * Tile::kThreads + q * 32 * Tile::kSliceWarps + mine) * 4);
#pragma unroll
            for (int v = 0; v < 4; ++v) four[v] += other.elements[v];
          }
        }
        if (channel_of(i) < p.channels) leave_four(p, split, group, output_of(u), channel_of(i), four);
      }
    }
  }

  FUSEDSC_DEVICE static float sum_of(const Sums& sums, int unit, int i) {
    if constexpr (Tile::kPacked) return sums[unit / 2][i / 4 * 2 + i % 2][unit % 2 * 2 + i % 4 / 2];
    else return sums[unit / 2][i % Tile::kColumnRun][unit % 2 * 2 + i / Tile::kColumnRun];
  }

  FUSEDSC_DEVICE static void leave_four(const PointwiseWeightGradientParameters& p, int split, int group, int output,
                                        int channel, const float (&four)[4]) {
    if (p.partials != nullptr) {
      const std::int64_t row = static_cast<std::int64_t>(split) * p.groups * p.outputs + group * p.outputs + output;
      float* const to = static_cast<float*>(p.partials) + row * p.channels + channel;
      if constexpr (Tile::kPacked) {
        store<2>(four, to);
        if (channel + 2 < p.channels) store<2>(four + 2, to + 2);
      } else {
        store<4>(four, to);
      }
    } else if (p.weight.data != nullptr) {
      T* const to =
          static_cast<T*>(p.weight.data) + group * p.weight.group + output * p.weight.first + channel * p.weight.second;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (!Tile::kPacked || v < 2 || channel + 2 < p.channels) store<1>(four + v, to + v * p.weight.second);
      }
    }
  }

  /// Sums of a lane's outputs, over the lanes with the same ones and over parts, in their order.
  FUSEDSC_DEVICE static void leave_bias(const PointwiseWeightGradientParameters& p, int split, int group,
                                        int first_output, const float (&bias)[Tile::kRowRun]) {
    auto* const memory = static_cast<float*>(shared_memory());
#pragma unroll
    for (int i = 0; i < Tile::kRowRun; ++i) memory[thread_index() * Tile::kRowRun + i] = bias[i];
    block_barrier();
    for (int row = thread_index(); row < Tile::kRows; row += Tile::kThreads) {
      if (first_output + row >= p.outputs) continue;
      const int strip = row / (8 * Tile::kRowRun), in_strip = row % (8 * Tile::kRowRun);
      constexpr int kPiece = RowStrip::kPiece;
      const int lane_row = Tile::kPacked ? row % 16 / 2 : row / kPiece % 8;
      const int i = Tile::kPacked ? in_strip / 16 * 2 + row % 2 : in_strip / (8 * kPiece) * kPiece + row % kPiece;
      float sum = 0;
      for (int part = 0; part < Tile::kParts; ++part) {
        const int warp = part * Tile::kSliceWarps + strip * Tile::kWarpColumns;
        for (int t = 0; t < 4; ++t) sum += memory[(warp * 32 + lane_row * 4 + t) * Tile::kRowRun + i];
      }
      const std::int64_t first = (static_cast<std::int64_t>(split) * p.groups + group) * p.outputs + first_output;
      static_cast<float*>(p.bias_partials)[first + row] = sum;
    }
  }
};

}  // namespace fusedsc::gpu
