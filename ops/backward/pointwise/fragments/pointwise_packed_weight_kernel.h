/// Pointwise convolution, weight and bias gradients of 16-bit tensors with any even number of neighbouring channels.
/// Positions are copied to shared memory as they lie in memory. Of a strip's words a lane has every eighth, so that
/// neighbouring lanes read neighbouring words; of 16 positions it has four neighbours.
#pragma once

#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_weight_sums.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_packed_rows.h"

namespace fusedsc::gpu {

/// Tile: a WeightFragmentTile that is packed. Warps of a slice copy positions of their own, of all tensors.
template <class T, class Tile, FragmentFusion kFusion>
class PackedWeightFragments : WeightFragmentSums<T, Tile> {
  using Base = WeightFragmentSums<T, Tile>;
  static constexpr bool kFused = kFusion != FragmentFusion::none;
  static constexpr int kCopied = Tile::kPositions / Tile::kSliceWarps;  ///< positions of a warp
  static_assert(Tile::kPacked && kCopied % 8 == 0);

 public:
  /// Rows of grad_y, of its prologue's tensor and of x; coefficients; stages; in the end sums of all warps.
  struct Places {
    int coefficients, stages, end;
    int rows, columns, stage;  ///< bytes of a slice's positions: of grad_y, x and all
  };
  /// shape.depth: outputs.
  FUSEDSC_HOST_DEVICE static constexpr Places places(const FragmentShape& shape) {
    Places to{};
    to.rows = Tile::kPositions * packed_pitch_bound(shape.depth < Tile::kRows ? shape.depth : Tile::kRows);
    to.columns =
        Tile::kPositions * packed_pitch_bound(shape.channels < Tile::kColumns ? shape.channels : Tile::kColumns);
    to.stage = to.rows * (shape.has_other ? 2 : 1) + to.columns;
    to.coefficients = 3 * kRowsBytes;
    to.stages = to.coefficients + (kFused ? (3 * Tile::kRows + 2 * Tile::kColumns) * 4 : 0);
    // Words of a whole strip are read, beyond the end of a row.
    to.end = to.stages + Tile::kParts * Tile::kStages * to.stage + 2 * 128;
    return to;
  }
  FUSEDSC_HOST_DEVICE static std::size_t memory_bytes(const FragmentShape& shape) {
    const int bytes = places(shape).end;
    return static_cast<std::size_t>(bytes > Base::kExchangeBytes ? bytes : Base::kExchangeBytes);
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightGradientParameters& p) {
    with_other<kFused>(p.grad_y_prologue.other.data, [&](auto has_other) { run_with<has_other>(p); });
  }

 private:
  static constexpr int kRowsBytes = (static_cast<int>(sizeof(PackedRows)) + 15) / 16 * 16;

  struct Lane {
    FUSEDSC_DEVICE static int position(int s) { return thread_index() % 4 * 4 + s; }
    FUSEDSC_DEVICE static int channel_of_word(int w) { return 16 * w; }
  };

  template <bool kHasOther>
  FUSEDSC_DEVICE static void run_with(const PointwiseWeightGradientParameters& p) {
    const PointwiseWeightShare share(p, Tile::kRows, Tile::kColumns, Tile::kDepth);
    const int first_output = share.first_output, first_channel = share.first_channel, group = share.group,
              split = share.split, begin = share.begin, end = share.end;
    const int steps = (end - begin + Tile::kDepth - 1) / Tile::kDepth;

    const int warp = thread_index() / 32, part = warp / Tile::kSliceWarps, member = warp % Tile::kSliceWarps;
    const int warp_row = member / Tile::kWarpColumns, warp_column = member % Tile::kWarpColumns;
    const int lane = thread_index() % 32, lane_row = lane / 4;
    auto* const memory = static_cast<unsigned char*>(shared_memory());
    const Places at = places({p.outputs, kHasOther, p.channels, 0});
    const auto rows_of = [&](int i) -> PackedRows& { return *reinterpret_cast<PackedRows*>(memory + i * kRowsBytes); };

    wait_for_previous_kernel();
    constexpr int kX = kHasOther ? 2 : 1, kTensors = kX + 1;
    const int outputs = least(p.outputs - first_output, Tile::kRows);
    const int channels = least(p.channels - first_channel, Tile::kColumns);
    if (thread_index() == 0) rows_of(0) = PackedRows(p.grad_y, group, first_output, outputs, kCopied, 0, T());
    if (thread_index() == kX) {
      rows_of(kX) = PackedRows(p.x, group, first_channel, channels, kCopied, kX * at.rows, T());
    }
    if constexpr (kHasOther) {
      if (thread_index() == 1) {
        rows_of(1) = PackedRows(p.grad_y_prologue.other, group, first_output, outputs, kCopied, at.rows, T());
      }
    }
    auto* const coefficients = reinterpret_cast<float*>(memory + at.coefficients);
    StripCoefficients of_rows{}, of_columns{};
    if constexpr (kFused) {
      Base::load_strips(p, share, coefficients, of_rows, of_columns);
    }
    block_barrier();

    unsigned char* const stages = memory + at.stages + part * Tile::kStages * at.stage;
    const auto start = [&](int stage, int step) {
      const int first = begin + step * Tile::kDepth + part * Tile::kPositions + member * kCopied;
      const int rows = least(end - first, kCopied);
#pragma unroll 1
      for (int i = 0; i < kTensors; ++i) {
        const PackedRows& tensor = rows_of(i);
        tensor.start(lane, first, rows, stages + stage * at.stage + member * kCopied * tensor.shared_pitch);
      }
    };
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i) {
      if (i < steps) start(i, i);
      commit_copies();
    }

    const int row_pitch = rows_of(0).shared_pitch, other_pitch = rows_of(kHasOther ? 1 : 0).shared_pitch,
              column_pitch = rows_of(kX).shared_pitch;
    const int row_channel = warp_row * 8 * Tile::kRowRun + 2 * lane_row,
              column_channel = warp_column * 8 * Tile::kColumnRun + 2 * lane_row;
    float sums[Tile::kRowTiles][Tile::kColumnTiles][4] = {};
    float bias[Tile::kRowRun] = {};
    const bool has_bias = p.bias_partials != nullptr && first_channel == 0 && warp_column == 0;
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile::kStages - 2>();
      if constexpr (Tile::kSliceWarps > 1) block_barrier();
      else wave_product_barrier();
      const int ahead = step + Tile::kStages - 1;
      if (ahead < steps) start(stage == 0 ? Tile::kStages - 1 : stage - 1, ahead);
      commit_copies();
      const unsigned char* const here = stages + stage * at.stage;
#pragma unroll 1
      for (int i = 0; i < Tile::kSteps; ++i) {
        const int left = end - (begin + step * Tile::kDepth + part * Tile::kPositions + 16 * i);
        const int position = 16 * i + Lane::position(0);
        std::uint32_t rows[4][Tile::kRowRun / 2], columns[4][Tile::kColumnRun / 2];
        read<Tile::kRowRun>(here + position * row_pitch + 2 * row_channel, row_pitch, left, rows);
        read<Tile::kColumnRun>(here + kX * at.rows + position * column_pitch + 2 * column_channel, column_pitch, left,
                               columns);
        if constexpr (kFused) {
          std::uint32_t other[4][Tile::kRowRun / 2];
          if constexpr (kHasOther) {
            read<Tile::kRowRun>(here + at.rows + position * other_pitch + 2 * row_channel, other_pitch, left, other);
          }
          of_rows.apply<T, Tile::kRowRun, kHasOther, FragmentFusion::none, Lane>(row_channel, left, rows, other);
          of_columns.apply<T, Tile::kColumnRun, false, kFusion, Lane>(column_channel, left, columns, columns);
        }
        if (has_bias) Base::add_bias(rows, bias);
        Base::multiply(rows, columns, sums);
      }
      stage = stage == Tile::kStages - 1 ? 0 : stage + 1;
    }
    let_next_kernel_start();
    if constexpr (Tile::kParts == 1) block_barrier();
    Base::leave(p, split, group, first_output + warp_row * 8 * Tile::kRowRun,
                first_channel + warp_column * 8 * Tile::kColumnRun, part, sums);
    if (p.bias_partials == nullptr || first_channel != 0) return;
    block_barrier();
    Base::leave_bias(p, split, group, first_output, bias);
  }

  /// Words of channels, of four positions each; 0 of those that are not there, whose place has others' values.
  template <int kRun>
  FUSEDSC_DEVICE static void read(const unsigned char* from, int pitch, int left, std::uint32_t (&to)[4][kRun / 2]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int w = 0; w < kRun / 2; ++w) {
        to[s][w] = *reinterpret_cast<const std::uint32_t*>(from + s * pitch + 32 * w);
      }
    }
    if (kFused || left >= 16) return;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int w = 0; w < kRun / 2; ++w) {
        if (Lane::position(s) >= left) to[s][w] = 0;
      }
    }
  }
};

}  // namespace fusedsc::gpu
