/// Pointwise convolution on GPUs, weight and bias gradients: each block multiplies its share of the positions, and
/// sum_partials (partials_kernel.h) adds the blocks' sums in their order.
#pragma once

#include "fusedsc/common/gpu/tensors/registers.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_sweep.h"

namespace fusedsc::gpu {

struct PointwiseWeightGradientParameters {
  PointwiseMatrix grad_y, x;
  PointwisePrologue grad_y_prologue, x_prologue;
  int pixels = 0, outputs = 0, channels = 0, groups = 1;  ///< outputs and channels of one group
  int output_tiles = 1, channel_tiles = 1, splits = 1;
  int split_steps = 0;  ///< of Tile::kDepth positions
  Divisor by_channel_tiles, by_output_tiles, by_splits;
  void* partials = nullptr;       ///< [split][output][channel], or none: the weight gradient is not wanted, or
  OutputMatrix weight;            ///< there is one split, which writes it at once
  void* bias_partials = nullptr;  ///< [split][output], or none

  std::int64_t blocks() const { return std::int64_t{output_tiles} * channel_tiles * splits * groups; }
};

/// Of grad_y, over the positions that a block sees; each row (an output) has a few threads.
template <class T, class Tile>
class BiasGradient {
 public:
  using A = Accumulator<T>;

  template <class Operand>
  FUSEDSC_DEVICE void add(const Operand& grad_y, int depth) {
#pragma unroll 1
    for (int k = thread_index() / Tile::kRows; k < Tile::kDepth && k < depth; k += kLanes) {
      A g[1] = {Operand::Tile::read(grad_y.tile, row(), k)};
      if constexpr (Operand::kHasPrologue) {
        A other[1] = {};
        if (grad_y.other_tile != nullptr) other[0] = Operand::Tile::read(grad_y.other_tile, row(), k);
        grad_y.apply(g, other, [&](int) { return OperandPlace{row(), k}; });
      }
      sum_ += g[0];
    }
  }

  /// Through shared memory, whose users must be done.
  template <std::size_t kBytes>
  FUSEDSC_DEVICE void leave(SharedMemory<A, kBytes> shared, int rows, A* to) const {
    static_assert(kMatrixThreads * sizeof(A) <= kBytes);
    A* const memory = shared.data;
    memory[thread_index()] = sum_;
    block_barrier();
    if (thread_index() >= Tile::kRows || row() >= rows) return;
    A sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += memory[lane * Tile::kRows + row()];
    to[row()] = sum;
  }

 private:
  static constexpr int kLanes = kMatrixThreads / Tile::kRows;

  FUSEDSC_DEVICE static int row() { return thread_index() % Tile::kRows; }

  A sum_ = 0;
};

/// kElements: elements of the tensors may be no runs.
template <class T, class Tile, bool kChannelsInner, bool kFused, bool kElements = false>
struct WeightGradientProduct {
  static constexpr PrologueIndex kPrologue = kFused ? PrologueIndex::outer : PrologueIndex::none;
  using Sweep = TileSweep<T, Tile, true>;
  template <int kOuter>
  using TileOf = typename OperandTileOf<T, Tile, kOuter, !kChannelsInner, kElements>::Type;
  using Rows = OperandSource<T, TileOf<Tile::kRows>, true, kPrologue, true>;
  using Cols = OperandSource<T, TileOf<Tile::kCols>, true, kPrologue, false>;
  using Loop = TileLoop<T, Tile, Rows, Cols, kElements>;
};

/// Rows are outputs, columns channels; `first_output` counts through all groups.
template <class T, class Sweep>
FUSEDSC_DEVICE void leave_weight_gradient(const PointwiseWeightGradientParameters& p, int split, int group, int output,
                                          int channel, const Accumulator<T> (&sums)[Sweep::kRun]) {
  using A = Accumulator<T>;
  const int count = least(p.channels - channel, Sweep::kRun);
  if (p.partials != nullptr) {
    const std::int64_t row = static_cast<std::int64_t>(split) * p.groups * p.outputs + group * p.outputs + output;
    A* to = static_cast<A*>(p.partials) + row * p.channels + channel;
#pragma unroll
    for (int i = 0; i < Sweep::kRun; ++i) {
      if (i < count) to[i] = sums[i];
    }
  } else if (p.weight.data != nullptr) {
    store_run<Sweep>(sums, p.weight, group, output, channel, count, T());
  }
}

/// What a block has of a weight gradient: a tile of outputs and channels of a group, and of its positions a split's.
struct PointwiseWeightShare {
  int first_output, first_channel, group, split;
  int begin, end;  ///< positions

  FUSEDSC_DEVICE PointwiseWeightShare(const PointwiseWeightGradientParameters& p, int rows, int columns, int depth) {
    std::uint32_t rest = block_index(), quotient = p.by_channel_tiles.divide(rest);
    first_channel = static_cast<int>(rest) * columns;
    rest = quotient;
    quotient = p.by_output_tiles.divide(rest);
    first_output = static_cast<int>(rest) * rows;
    group = static_cast<int>(p.by_splits.divide(quotient));
    split = static_cast<int>(quotient);
    begin = split * p.split_steps * depth;
    end = least(p.pixels, begin + p.split_steps * depth);
  }
};

template <class T, class Tile, bool kChannelsInner, bool kFused, bool kElements = false>
FUSEDSC_DEVICE void pointwise_weight_gradient(const PointwiseWeightGradientParameters& p) {
  using Product = WeightGradientProduct<T, Tile, kChannelsInner, kFused, kElements>;
  using Sweep = typename Product::Sweep;
  const PointwiseWeightShare share(p, Tile::kRows, Tile::kCols, Tile::kDepth);
  const int first_output = share.first_output, first_channel = share.first_channel, group = share.group,
            split = share.split, begin = share.begin, end = share.end;

  wait_for_previous_kernel();
  typename Product::Rows grad_y(p.grad_y, p.grad_y_prologue, group, p.outputs);
  typename Product::Cols x(p.x, p.x_prologue, group, p.channels);
  typename Product::Loop loop(grad_y, x);
  const OperandWindow row_window{first_output, p.outputs, begin, end},
      col_window{first_channel, p.channels, begin, end};
  loop.start_fixed(row_window, col_window);
  BiasGradient<T, Tile> bias;
  const bool has_bias = p.bias_partials != nullptr && first_channel == 0;
  loop.run(
      1, (end - begin + Tile::kDepth - 1) / Tile::kDepth, end - begin,
      [&](int) {
        return OperandWindows{row_window, col_window};
      },
      [&](const auto& operand, int depth) {
        if (has_bias) bias.add(operand, depth);
      },
      [&](int, const auto& product) {
        const int from_output = computed_here(first_output), from_channel = computed_here(first_channel);
#pragma unroll
        for (int sweep = 0; sweep < Sweep::kSweeps; ++sweep) {
          const int output = from_output + Sweep::row(sweep), channel = from_channel + Sweep::col(sweep);
          if (output >= p.outputs || channel >= p.channels) continue;
          Accumulator<T> sums[Sweep::kRun];
          Sweep::read(product, sweep, sums);
          leave_weight_gradient<T, Sweep>(p, split, group, output, channel, sums);
        }
      });
  let_next_kernel_start();
  if (!has_bias) return;
  block_barrier();
  const std::int64_t first = (static_cast<std::int64_t>(split) * p.groups + group) * p.outputs + first_output;
  const SharedMemory<Accumulator<T>, Product::Loop::memory_bytes(false, false)> memory{loop.memory()};
  bias.leave(memory, p.outputs - first_output, static_cast<Accumulator<T>*>(p.bias_partials) + first);
}

}  // namespace fusedsc::gpu
