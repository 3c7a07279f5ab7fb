/// Pointwise convolution, weight and bias gradients of 16-bit tensors with neighbouring channels, by warps that read
/// both tensors as they lie in memory. Of an instruction's columns each lane has a run of neighbouring channels; of k,
/// positions, any order is right that both tensors have. Two positions' elements become a word by one permutation of
/// bytes, so that nothing is transposed in shared memory.
#pragma once

#include "fusedsc/backward/pointwise/tiles/pointwise_weight_kernel.h"
#include "fusedsc/common/gpu/tensors/registers.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"

namespace fusedsc::gpu {

/// A warp has 8 * kRowRun outputs and 8 * kColumnRun channels: runs of 8, 4 or 2. kWarpRows times kWarpColumns warps
/// lie side by side and share what they copy; the others of a block have other positions. kSteps times 16 positions are
/// copied at a time, and kStages such copies are under way or in use.
template <int kRowRun_, int kColumnRun_, int kWarpRows_ = 1, int kWarpColumns_ = 1, int kSteps_ = 1, int kStages_ = 4>
struct WeightFragmentTile {
  static constexpr int kRowRun = kRowRun_, kColumnRun = kColumnRun_, kWarpRows = kWarpRows_,
                       kWarpColumns = kWarpColumns_;
  static constexpr int kSteps = kSteps_, kStages = kStages_;
  static constexpr int kSliceWarps = kWarpRows * kWarpColumns, kParts = kMatrixThreads / 32 / kSliceWarps;
  static constexpr int kRows = 8 * kRowRun * kWarpRows, kColumns = 8 * kColumnRun * kWarpColumns;
  static constexpr int kPositions = 16 * kSteps, kDepth = kPositions * kParts;  ///< of a slice, of a block
  static constexpr int kRowTiles = kRowRun / 2, kColumnTiles = kColumnRun;
  static_assert(kMatrixThreads / 32 % kSliceWarps == 0);
};

/// A strip of neighbouring channels, 8 * kRun of them: a lane's runs of every fourth position, as copied and as read.
template <class T, int kRun>
struct FragmentStrip {
  static constexpr int kBytes = 2 * kRun, kStepBytes = 4 * 32 * kBytes;  ///< of a run; of 16 positions

  FUSEDSC_DEVICE static unsigned char* place(unsigned char* strip, int s) {
    return strip + (s * 32 + thread_index() % 32) * kBytes;
  }
  /// Position of the lane's s-th run, of 16.
  FUSEDSC_DEVICE static int position(int s) { return 4 * s + thread_index() % 4; }

  /// Words of neighbouring channels, of four positions each.
  FUSEDSC_DEVICE static void read(unsigned char* strip, std::uint32_t (&to)[4][kRun / 2]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const auto words = *reinterpret_cast<const Aligned<std::uint32_t, kRun / 2>*>(place(strip, s));
#pragma unroll
      for (int w = 0; w < kRun / 2; ++w) to[s][w] = words.elements[w];
    }
  }

  /// Of the lane's c-th channel the elements of positions 0 and 1 (pair 0), or 2 and 3.
  FUSEDSC_DEVICE static std::uint32_t pair(const std::uint32_t (&words)[4][kRun / 2], int c, int pair) {
    return halves_of(words[2 * pair][c / 2], words[2 * pair + 1][c / 2], c % 2 != 0);
  }
};

/// Coefficients of a prologue by channel, of a strip, in shared memory.
struct StripCoefficients {
  const float *scale, *shift, *other_scale;
  Activation activation;

  /// On the words of four positions; those that are not there become 0. `channel`: of the first of the lane's.
  template <class T, int kRun, bool kHasOther, FragmentFusion kActivations>
  FUSEDSC_DEVICE void apply(int channel, int positions, std::uint32_t (&words)[4][kRun / 2],
                            const std::uint32_t (&other)[4][kRun / 2]) const {
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
      float z[2 * kRun];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int w = 0; w < kRun / 2; ++w) {
          const int c = channel + 2 * w;
          float low, high, more_low = shift[c], more_high = shift[c + 1];
          to_floats(words[first + s][w], low, high, T());
          if constexpr (kHasOther) {
            float other_low, other_high;
            to_floats(other[first + s][w], other_low, other_high, T());
            more_low += other_low * other_scale[c];
            more_high += other_high * other_scale[c + 1];
          }
          z[s * kRun + 2 * w] = low * scale[c] + more_low;
          z[s * kRun + 2 * w + 1] = high * scale[c + 1] + more_high;
        }
      }
      if constexpr (kActivations != FragmentFusion::none) {
        activate_by<kActivations == FragmentFusion::clamps>(activation, z);
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const bool has = FragmentStrip<T, kRun>::position(first + s) < positions;
#pragma unroll
        for (int w = 0; w < kRun / 2; ++w) {
          words[first + s][w] = has ? to_bits(z[s * kRun + 2 * w], z[s * kRun + 2 * w + 1], T()) : 0;
        }
      }
    }
  }
};

template <class T, class Tile, FragmentFusion kFusion>
class WeightFragments {
  static constexpr bool kFused = kFusion != FragmentFusion::none;

 public:
  /// Stages of both tensors and of the gradient prologue's; coefficients; and in the end sums of all warps.
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(bool has_other) {
    const int stages = Tile::kStages * (has_other ? kStageBytes + kRowsBytes : kStageBytes);
    const int bytes = stages > kExchangeBytes ? stages : kExchangeBytes;
    return static_cast<std::size_t>(bytes + (kFused ? kCoefficientBytes : 0));
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightGradientParameters& p) {
    if constexpr (kFused) {
      if (p.grad_y_prologue.other.data != nullptr) run_with<true>(p);
      else run_with<false>(p);
    } else {
      run_with<false>(p);
    }
  }

 private:
  using RowStrip = FragmentStrip<T, Tile::kRowRun>;
  using ColumnStrip = FragmentStrip<T, Tile::kColumnRun>;
  static constexpr int kRowsBytes = Tile::kParts * Tile::kWarpRows * Tile::kSteps * RowStrip::kStepBytes;
  static constexpr int kColumnsBytes = Tile::kParts * Tile::kWarpColumns * Tile::kSteps * ColumnStrip::kStepBytes;
  static constexpr int kStageBytes = kRowsBytes + kColumnsBytes;
  static constexpr int kCoefficientBytes = (3 * Tile::kRows + 2 * Tile::kColumns) * 4;
  /// Units of a thread's sums: of one output neighbouring channels, as many as two lanes' runs.
  static constexpr int kUnits = Tile::kRowRun, kUnit = 2 * Tile::kColumnRun;
  static constexpr int kBiasBytes = kMatrixThreads * Tile::kRowRun * 4;
  static constexpr int kSumsBytes = Tile::kParts == 1 ? 0 : kUnits * kUnit * 4 * kMatrixThreads;
  static constexpr int kExchangeBytes = kSumsBytes > kBiasBytes ? kSumsBytes : kBiasBytes;

  template <bool kHasOther>
  FUSEDSC_DEVICE static void run_with(const PointwiseWeightGradientParameters& p) {
    std::uint32_t rest = block_index(), quotient = p.by_channel_tiles.divide(rest);
    const int first_channel = static_cast<int>(rest) * Tile::kColumns;
    rest = quotient;
    quotient = p.by_output_tiles.divide(rest);
    const int first_output = static_cast<int>(rest) * Tile::kRows;
    const int group = static_cast<int>(p.by_splits.divide(quotient)), split = static_cast<int>(quotient);
    const int begin = split * p.split_steps * Tile::kDepth;
    const int end = least(p.pixels, begin + p.split_steps * Tile::kDepth);
    const int steps = (end - begin + Tile::kDepth - 1) / Tile::kDepth;

    const int warp = thread_index() / 32, part = warp / Tile::kSliceWarps, member = warp % Tile::kSliceWarps;
    const int warp_row = member / Tile::kWarpColumns, warp_column = member % Tile::kWarpColumns;
    const int lane_row = thread_index() % 32 / 4;
    constexpr int kStage = kStageBytes + (kHasOther ? kRowsBytes : 0);
    auto* const memory = static_cast<unsigned char*>(shared_memory());
    auto* const coefficients =
        reinterpret_cast<float*>(memory + memory_bytes(kHasOther) - (kFused ? kCoefficientBytes : 0));

    wait_for_previous_kernel();
    const auto row_place = [&](int stage, int strip, int step) {
      return memory + stage * kStage + ((part * Tile::kWarpRows + strip) * Tile::kSteps + step) * RowStrip::kStepBytes;
    };
    const auto column_place = [&](int stage, int strip, int step) {
      return memory + stage * kStage + kRowsBytes +
             ((part * Tile::kWarpColumns + strip) * Tile::kSteps + step) * ColumnStrip::kStepBytes;
    };
    const auto other_place = [&](int stage, int strip, int step) {
      return row_place(stage, strip, step) + kStageBytes;
    };
    // Members of a slice share its strips out.
    const auto start = [&](int stage, int step) {
      const int first = begin + step * Tile::kDepth + part * Tile::kPositions;
#pragma unroll
      for (int strip = 0; strip < Tile::kWarpRows; ++strip) {
        if (Tile::kSliceWarps > 1 && strip % Tile::kSliceWarps != member) continue;
        const int output = first_output + (strip * 8 + lane_row) * Tile::kRowRun;
        start_strip<Tile::kRowRun>(p.grad_y, group, output, p.outputs, first, end,
                                   [&](int i) { return row_place(stage, strip, i); });
        if constexpr (kHasOther) {
          start_strip<Tile::kRowRun>(p.grad_y_prologue.other, group, output, p.outputs, first, end,
                                     [&](int i) { return other_place(stage, strip, i); });
        }
      }
#pragma unroll
      for (int strip = 0; strip < Tile::kWarpColumns; ++strip) {
        if (Tile::kSliceWarps > 1 && (Tile::kWarpRows + strip) % Tile::kSliceWarps != member) continue;
        const int channel = first_channel + (strip * 8 + lane_row) * Tile::kColumnRun;
        start_strip<Tile::kColumnRun>(p.x, group, channel, p.channels, first, end,
                                      [&](int i) { return column_place(stage, strip, i); });
      }
    };
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i) {
      if (i < steps) start(i, i);
      commit_copies();
    }
    StripCoefficients of_rows{}, of_columns{};
    if constexpr (kFused) {
      load_coefficients(p.grad_y_prologue, group * p.outputs, first_output, p.outputs, Tile::kRows, 3, coefficients);
      load_coefficients(p.x_prologue, group * p.channels, first_channel, p.channels, Tile::kColumns, 2,
                        coefficients + 3 * Tile::kRows);
      of_rows = {coefficients, coefficients + Tile::kRows, coefficients + 2 * Tile::kRows,
                 p.grad_y_prologue.activation};
      const float* const columns = coefficients + 3 * Tile::kRows;
      of_columns = {columns, columns + Tile::kColumns, nullptr, p.x_prologue.activation};
      block_barrier();
    }

    float sums[Tile::kRowTiles][Tile::kColumnTiles][4] = {};
    float bias[Tile::kRowRun] = {};
    const bool has_bias = p.bias_partials != nullptr && first_channel == 0 && warp_column == 0;
    int stage = 0;
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile::kStages - 2>();
      if constexpr (Tile::kSliceWarps > 1) block_barrier();
      const int ahead = step + Tile::kStages - 1;
      if (ahead < steps) start(stage == 0 ? Tile::kStages - 1 : stage - 1, ahead);
      commit_copies();
#pragma unroll
      for (int i = 0; i < Tile::kSteps; ++i) {
        std::uint32_t rows[4][Tile::kRowRun / 2], columns[4][Tile::kColumnRun / 2];
        RowStrip::read(row_place(stage, warp_row, i), rows);
        ColumnStrip::read(column_place(stage, warp_column, i), columns);
        if constexpr (kFused) {
          const int left = end - (begin + step * Tile::kDepth + part * Tile::kPositions + 16 * i);
          std::uint32_t other[4][Tile::kRowRun / 2];
          if constexpr (kHasOther) RowStrip::read(other_place(stage, warp_row, i), other);
          of_rows.apply<T, Tile::kRowRun, kHasOther, FragmentFusion::none>((warp_row * 8 + lane_row) * Tile::kRowRun,
                                                                           left, rows, other);
          of_columns.apply<T, Tile::kColumnRun, false, kFusion>((warp_column * 8 + lane_row) * Tile::kColumnRun, left,
                                                                columns, columns);
        }
        if (has_bias) add_bias(rows, bias);
        multiply(rows, columns, sums);
      }
      stage = stage == Tile::kStages - 1 ? 0 : stage + 1;
    }
    let_next_kernel_start();
    const int output = first_output + warp_row * 8 * Tile::kRowRun;
    const int channel = first_channel + warp_column * 8 * Tile::kColumnRun;
    leave(p, split, group, output, channel, part, sums);
    if (p.bias_partials == nullptr || first_channel != 0) return;
    block_barrier();
    leave_bias(p, split, group, first_output, bias);
  }

  template <int kRun, class Place>
  FUSEDSC_DEVICE static void start_strip(const PointwiseMatrix& matrix, int group, int channel, int channels, int first,
                                         int end, const Place& place) {
    const T* const base = static_cast<const T*>(matrix.data) + group * matrix.group;
    const int position = first + FragmentStrip<T, kRun>::position(0), left = channel < channels ? end - position : 0;
    const T* const from = base + position * matrix.first + channel;
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int distance = 16 * i + 4 * s;  // of positions
        start_copy<2 * kRun>(FragmentStrip<T, kRun>::place(place(i), s),
                             distance < left ? from + distance * matrix.first : base, distance < left);
      }
    }
  }

  /// 0 beyond the end.
  FUSEDSC_DEVICE static void load_coefficients(const PointwisePrologue& prologue, int of_group, int first, int all,
                                               int count, int vectors, float* to) {
    const void* const from[] = {prologue.scale, prologue.shift, prologue.other_scale};
#pragma unroll
    for (int v = 0; v < 3; ++v) {
      if (v >= vectors) break;
      for (int i = thread_index(); i < count; i += kMatrixThreads) {
        float value = 0;
        if (first + i < all) {
          value = from[v] != nullptr ? static_cast<const float*>(from[v])[of_group + first + i] : v == 0 ? 1.f : 0.f;
        }
        to[v * count + i] = value;
      }
    }
  }

  FUSEDSC_DEVICE static void multiply(const std::uint32_t (&rows)[4][Tile::kRowRun / 2],
                                      const std::uint32_t (&columns)[4][Tile::kColumnRun / 2],
                                      float (&sums)[Tile::kRowTiles][Tile::kColumnTiles][4]) {
    std::uint32_t a[Tile::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v) a[i][v] = RowStrip::pair(rows, 2 * i + v % 2, v / 2);
    }
#pragma unroll
    for (int j = 0; j < Tile::kColumnTiles; ++j) {
      const std::uint32_t b[2] = {ColumnStrip::pair(columns, j, 0), ColumnStrip::pair(columns, j, 1)};
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i) {
        wave_multiply_add(sums[i][j], {{a[i][0], a[i][1], a[i][2], a[i][3]}, {b[0], b[1]}}, T());
      }
    }
  }

  FUSEDSC_DEVICE static void add_bias(const std::uint32_t (&rows)[4][Tile::kRowRun / 2], float (&bias)[Tile::kRowRun]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int w = 0; w < Tile::kRowRun / 2; ++w) {
        float low, high;
        to_floats(rows[s][w], low, high, T());
        bias[2 * w] += low;
        bias[2 * w + 1] += high;
      }
    }
  }

  /// Unit u: of the lane's u-th output, channels from 2 * kColumnRun * (lane % 4) on.
  FUSEDSC_DEVICE static void leave(const PointwiseWeightGradientParameters& p, int split, int group, int first_output,
                                   int first_channel, int part,
                                   const float (&sums)[Tile::kRowTiles][Tile::kColumnTiles][4]) {
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
          store<4>(four, exchange + ((u * kUnit + i) / 4 * kMatrixThreads + thread_index()) * 4);
        }
      }
      block_barrier();
    }
    const int output = first_output + thread_index() % 32 / 4 * Tile::kRowRun;
    const int channel = first_channel + thread_index() % 4 * kUnit;
    const int mine = thread_index() % (32 * Tile::kSliceWarps);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (Tile::kParts > 1 && u % Tile::kParts != part) continue;
      if (output + u >= p.outputs) continue;
#pragma unroll
      for (int i = 0; i < kUnit; i += 4) {
        float four[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) four[v] = Tile::kParts == 1 ? sum_of(sums, u, i + v) : 0;
        if constexpr (Tile::kParts > 1) {
#pragma unroll
          for (int q = 0; q < Tile::kParts; ++q) {
            const auto other = *reinterpret_cast<const Aligned<float, 4>*>(
                exchange + ((u * kUnit + i) / 4 * kMatrixThreads + q * 32 * Tile::kSliceWarps + mine) * 4);
#pragma unroll
            for (int v = 0; v < 4; ++v) four[v] += other.elements[v];
          }
        }
        if (channel + i < p.channels) leave_four(p, split, group, output + u, channel + i, four);
      }
    }
  }

  FUSEDSC_DEVICE static float sum_of(const float (&sums)[Tile::kRowTiles][Tile::kColumnTiles][4], int unit, int i) {
    return sums[unit / 2][i % Tile::kColumnRun][unit % 2 * 2 + i / Tile::kColumnRun];
  }

  FUSEDSC_DEVICE static void leave_four(const PointwiseWeightGradientParameters& p, int split, int group, int output,
                                        int channel, const float (&four)[4]) {
    if (p.partials != nullptr) {
      const std::int64_t row = static_cast<std::int64_t>(split) * p.groups * p.outputs + group * p.outputs + output;
      store<4>(four, static_cast<float*>(p.partials) + row * p.channels + channel);
    } else if (p.weight.data != nullptr) {
      T* const to =
          static_cast<T*>(p.weight.data) + group * p.weight.group + output * p.weight.first + channel * p.weight.second;
#pragma unroll
      for (int v = 0; v < 4; ++v) store<1>(four + v, to + v * p.weight.second);
    }
  }

  /// Sums of a lane's outputs, over the lanes with the same ones and over parts, in their order.
  FUSEDSC_DEVICE static void leave_bias(const PointwiseWeightGradientParameters& p, int split, int group,
                                        int first_output, const float (&bias)[Tile::kRowRun]) {
    auto* const memory = static_cast<float*>(shared_memory());
#pragma unroll
    for (int i = 0; i < Tile::kRowRun; ++i) memory[thread_index() * Tile::kRowRun + i] = bias[i];
    block_barrier();
    for (int row = thread_index(); row < Tile::kRows; row += kMatrixThreads) {
      if (first_output + row >= p.outputs) continue;
      const int strip = row / (8 * Tile::kRowRun), lane_row = row / Tile::kRowRun % 8, i = row % Tile::kRowRun;
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
