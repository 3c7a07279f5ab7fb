/// The product of the forward pass and of the input gradient: activations times a weight, position by position.
#pragma once

#include "fusedsc/common/gpu/tensors/registers.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_elements.h"

namespace fusedsc::gpu {

struct PointwiseProductParameters {
  PointwiseMatrix activations, weight;
  PointwisePrologue prologue;               ///< of the activations
  int pixels = 0, depth = 0, channels = 0;  ///< positions of all images; channels in and out of one group
  int pixel_tiles = 1, channel_tiles = 1, splits = 1, groups = 1;
  Divisor by_channel_tiles, by_splits;

  std::int64_t blocks() const { return std::int64_t{channel_tiles} * splits * groups; }
};

/// A block's share: every splits-th tile of positions, one tile of channels.
struct PointwiseShare {
  int channel_tile, split, group;

  FUSEDSC_DEVICE explicit PointwiseShare(const PointwiseProductParameters& p) {
    std::uint32_t channel = block_index(), quotient = p.by_channel_tiles.divide(channel);
    channel_tile = static_cast<int>(channel);
    group = static_cast<int>(p.by_splits.divide(quotient));
    split = static_cast<int>(quotient);
  }
};

/// Of the input gradient the weight's depth comes first, and the prologue may have a second tensor. kElements: elements
/// of the tensors may be no runs.
template <class T, class Tile, bool kPixelRows, bool kWeightDepthFirst, bool kFused, bool kElements = false>
struct PointwiseProduct {
  using Sweep = std::conditional_t<kElements, ElementSweep<T, Tile, kPixelRows>, TileSweep<T, Tile, kPixelRows>>;
  using Pixels = OperandSource<T, typename OperandTileOf<T, Tile, Sweep::kPixels, kPixelRows, kElements>::Type, false,
                               kFused ? PrologueIndex::depth : PrologueIndex::none, kWeightDepthFirst>;
  using Weight = OperandSource<T, typename OperandTileOf<T, Tile, Sweep::kChannels, !kWeightDepthFirst, true>::Type,
                               kWeightDepthFirst, PrologueIndex::none, false, true>;
  using Rows = std::conditional_t<kPixelRows, Pixels, Weight>;
  using Cols = std::conditional_t<kPixelRows, Weight, Pixels>;
  using Loop = TileLoop<T, Tile, Rows, Cols, kElements, kElements>;

  /// Of a block. The sink's is behind the loop's; what it needs in the end may be more than the loop has, which is
  /// done.
  template <class Sink>
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(bool rows_other, bool cols_other) {
    std::size_t bytes = Loop::memory_bytes(rows_other, cols_other);
    if constexpr (kElements) bytes += Sink::kMemoryBytes;
    return bytes > Sink::kFinishBytes ? bytes : Sink::kFinishBytes;
  }

  /// Sink: take(sweep, pixel, channel, y, count) gets each run of finished values, `count` of which exist; of elements
  /// finish_tile(sums, first pixel, pixels) gets each tile. finish(shared memory) is called in the end, and needs
  /// kFinishBytes of it.
  template <class Sink, class Parameters>
  FUSEDSC_DEVICE static void run(const Parameters& parameters) {
    const PointwiseProductParameters& p = parameters.product;
    const PointwiseShare share(p);
    const int first_channel = share.channel_tile * Sweep::kChannels;
    wait_for_previous_kernel();
    Pixels pixels(p.activations, p.prologue, share.group, p.depth);
    Weight weight(p.weight, p.prologue, share.group, p.depth);
    auto sink = [&] {
      if constexpr (kElements) {
        const bool has_other = kFused && kWeightDepthFirst && p.prologue.other.data != nullptr;
        const std::size_t before = Loop::memory_bytes(kPixelRows && has_other, !kPixelRows && has_other);
        return Sink(parameters, share, first_channel, static_cast<unsigned char*>(shared_memory()) + before);
      } else {
        return Sink(parameters, share, first_channel);
      }
    }();
    if constexpr (kPixelRows) multiply_all(p, share, first_channel, pixels, weight, sink);
    else multiply_all(p, share, first_channel, weight, pixels, sink);
  }

 private:
  template <class Sink>
  FUSEDSC_DEVICE static void multiply_all(const PointwiseProductParameters& p, const PointwiseShare& share,
                                          int first_channel, Rows& rows, Cols& cols, Sink& sink) {
    Loop loop(rows, cols);
    const int tiles = (p.pixel_tiles - share.split + p.splits - 1) / p.splits;
    const auto first_pixel = [&](int tile) { return (share.split + tile * p.splits) * Sweep::kPixels; };
    loop.run(
        tiles, (p.depth + Tile::kDepth - 1) / Tile::kDepth, p.depth,
        [&](int tile) {
          const OperandWindow pixel_window{first_pixel(tile), p.pixels, 0, p.depth};
          const OperandWindow channel_window{first_channel, p.channels, 0, p.depth};
          if constexpr (kPixelRows) return OperandWindows{pixel_window, channel_window};
          else return OperandWindows{channel_window, pixel_window};
        },
        [](const auto&, int) {},
        [&](int tile, const auto& sums) {
          const int pixels = p.pixels - first_pixel(tile);
          if constexpr (kElements) sink.finish_tile(sums, first_pixel(tile), pixels);
          else finish_runs(sums, first_pixel(tile), pixels, first_channel, p.channels - first_channel, sink);
        });
    let_next_kernel_start();
    sink.finish(SharedMemory<typename Sweep::A, memory_bytes<Sink>(false, false)>{loop.memory()});
  }

  /// pixels, channels: how many there are from the tile's first ones on.
  template <class Sums, class Sink>
  FUSEDSC_DEVICE static void finish_runs(const Sums& sums, int first_pixel, int pixels, int first_channel, int channels,
                                         Sink& sink) {
    const int row_end = kPixelRows ? pixels : channels, col_end = kPixelRows ? channels : pixels;
    const int from_channel = computed_here(first_channel);
#pragma unroll Sweep::kUnrolled
    for (int sweep = 0; sweep < Sweep::kSweeps; ++sweep) {
      const int row = Sweep::row(sweep), col = Sweep::col(sweep);
      const int count = least(col_end - col, Sweep::kRun);
      if (row >= row_end || count <= 0) continue;
      typename Sweep::A y[Sweep::kRun];
      Sweep::read(sums, sweep, y);
      sink.take(sweep, first_pixel + (kPixelRows ? row : col), from_channel + (kPixelRows ? col : row), y, count);
    }
  }
};

}  // namespace fusedsc::gpu
