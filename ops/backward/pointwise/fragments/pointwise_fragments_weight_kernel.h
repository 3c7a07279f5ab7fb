/// Pointwise convolution, weight and bias gradients of tensors with neighbouring channels, of 16 bits or of floats
/// whose factors are rounded to TensorFloat-32, by warps that read both tensors as they lie in memory. Of an
/// instruction's columns each lane has a run of neighbouring channels; of k, positions, any order is right that both
/// tensors have. Two positions' 16-bit elements become a word by one permutation of bytes, so that nothing is
/// transposed in shared memory.
#pragma once

#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_weight_sums.h"

namespace fusedsc::gpu {

template <class T, class Tile, FragmentFusion kFusion>
class WeightFragments : WeightFragmentSums<T, Tile> {
  using Base = WeightFragmentSums<T, Tile>;
  using typename Base::ColumnStrip;
  using typename Base::RowStrip;
  static constexpr bool kFused = kFusion != FragmentFusion::none;

 public:
  /// Stages of both tensors and of the gradient prologue's; coefficients; and in the end sums of all warps.
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(bool has_other) {
    const int stages = Tile::kStages * (has_other ? kStageBytes + kRowsBytes : kStageBytes);
    const int bytes = stages > Base::kExchangeBytes ? stages : Base::kExchangeBytes;
    return static_cast<std::size_t>(bytes + (kFused ? kCoefficientBytes : 0));
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightGradientParameters& p) {
    with_other<kFused>(p.grad_y_prologue.other.data, [&](auto has_other) { run_with<has_other>(p); });
  }

 private:
  static constexpr int kRowsBytes = Tile::kParts * Tile::kWarpRows * Tile::kSteps * RowStrip::kStepBytes;
  static constexpr int kColumnsBytes = Tile::kParts * Tile::kWarpColumns * Tile::kSteps * ColumnStrip::kStepBytes;
  static constexpr int kStageBytes = kRowsBytes + kColumnsBytes;
  static constexpr int kCoefficientBytes = (3 * Tile::kRows + 2 * Tile::kColumns) * 4;

  template <bool kHasOther>
  FUSEDSC_DEVICE static void run_with(const PointwiseWeightGradientParameters& p) {
    const PointwiseWeightShare share(p, Tile::kRows, Tile::kColumns, Tile::kDepth);
    const int first_output = share.first_output, first_channel = share.first_channel, group = share.group,
              split = share.split, begin = share.begin, end = share.end;
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
        const int output = first_output + strip * 8 * Tile::kRowRun + RowStrip::channel(RowStrip::copied_run(), 0);
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
        const int channel =
            first_channel + strip * 8 * Tile::kColumnRun + ColumnStrip::channel(ColumnStrip::copied_run(), 0);
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
      Base::load_strips(p, share, coefficients, of_rows, of_columns);
      block_barrier();
    }

    float sums[Tile::kRowTiles][Tile::kColumnTiles][4] = {};
    float bias[Tile::kRowRun] = {};
    const bool has_bias = p.bias_partials != nullptr && first_channel == 0 && warp_column == 0;
    int stage = 0;
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile::kStages - 2>();
      if constexpr (Tile::kSliceWarps > 1) block_barrier();
      else wave_product_barrier();
      const int ahead = step + Tile::kStages - 1;
      if (ahead < steps) start(stage == 0 ? Tile::kStages - 1 : stage - 1, ahead);
      commit_copies();
#pragma unroll
      for (int i = 0; i < Tile::kSteps; ++i) {
        std::uint32_t rows[4][RowStrip::kWords], columns[4][ColumnStrip::kWords];
        RowStrip::read(row_place(stage, warp_row, i), rows);
        ColumnStrip::read(column_place(stage, warp_column, i), columns);
        if constexpr (kFused) {
          const int left = end - (begin + step * Tile::kDepth + part * Tile::kPositions + 16 * i);
          std::uint32_t other[4][RowStrip::kWords];
          if constexpr (kHasOther) RowStrip::read(other_place(stage, warp_row, i), other);
          of_rows.apply<T, Tile::kRowRun, kHasOther, FragmentFusion::none>(
              warp_row * 8 * Tile::kRowRun + RowStrip::channel(lane_row, 0), left, rows, other);
          of_columns.apply<T, Tile::kColumnRun, false, kFusion>(
              warp_column * 8 * Tile::kColumnRun + ColumnStrip::channel(lane_row, 0), left, columns, columns);
        }
        if (has_bias) Base::add_bias(rows, bias);
        Base::multiply(rows, columns, sums);
      }
      stage = stage == Tile::kStages - 1 ? 0 : stage + 1;
    }
    let_next_kernel_start();
    const int output = first_output + warp_row * 8 * Tile::kRowRun;
    const int channel = first_channel + warp_column * 8 * Tile::kColumnRun;
    Base::leave(p, split, group, output, channel, part, sums);
    if (p.bias_partials == nullptr || first_channel != 0) return;
    block_barrier();
    Base::leave_bias(p, split, group, first_output, bias);
  }

  template <int kRun, class Place>
  FUSEDSC_DEVICE static void start_strip(const PointwiseMatrix& matrix, int group, int channel, int channels, int first,
                                         int end, const Place& place) {
    using Strip = FragmentStrip<T, kRun>;
    const T* const base = static_cast<const T*>(matrix.data) + group * matrix.group;
    const int run = Strip::copied_run(), lane_position = Strip::copied_position(), position = first + lane_position;
    const T* const from = base + position * matrix.first + channel;
#pragma unroll
    for (int piece = 0; piece < Strip::kPieces; ++piece) {
      const int further = Strip::channel(0, piece * Strip::kPiece);  // of channels
      const int left = channel + further < channels ? end - position : 0;
#pragma unroll
      for (int i = 0; i < Tile::kSteps; ++i) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const int distance = 16 * i + 4 * s;  // of positions
          start_copy<Strip::kPieceBytes>(Strip::place(place(i), s, piece, run, lane_position),
                                         distance < left ? from + distance * matrix.first + further : base,
                                         distance < left);
        }
      }
    }
  }
};

}  // namespace fusedsc::gpu
