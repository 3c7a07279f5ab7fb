/// The product of the forward pass and of the input gradient where a block's weight is large: it comes through shared
/// memory in stages of k, beside the activations, and all warps of the block share it. Tiles may have many channels
/// whatever the depth, so that activations are read less often.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_streamed_operands.h"

namespace fusedsc::gpu {

/// As FragmentProduct.
template <class T, class Tile, bool kWeightDepthFirst, FragmentFusion kFusion>
struct StreamedProduct {
  using Weight = StreamedWeight<T, Tile, kWeightDepthFirst>;
  using Sums = FragmentSums<T, Tile>;
  using Rows = StreamedRows<T, Tile>;
  static constexpr bool kHasFusion = kFusion != FragmentFusion::none, kMayHaveOther = kHasFusion && kWeightDepthFirst;
  /// Of warps that put their sums in order, and then of parts.
  static constexpr int kReorderBytes = Weight::kRaw ? Tile::kWarps * Sums::kReorderBytes : 0;
  static constexpr int kExchangeBytes = kReorderBytes > Sums::kExchangeBytes ? kReorderBytes : Sums::kExchangeBytes;

  FUSEDSC_HOST_DEVICE static constexpr int stage_bytes(bool has_other) {
    return Weight::kStageBytes + Rows::kStageBytes * (has_other ? 2 : 1);
  }

  /// Of a block: stages, sums on their way to other threads, coefficients; in the end what the sink needs.
  template <class Sink>
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(int depth, bool has_other) {
    const int prologue = kHasFusion ? FragmentPrologue::bytes(Tile::steps(depth) * Tile::kDepth) : 0;
    const auto bytes = static_cast<std::size_t>(Tile::kStages * stage_bytes(has_other) + kExchangeBytes + prologue);
    return bytes > Sink::kFinishBytes ? bytes : Sink::kFinishBytes;
  }

  template <class Sink, class Parameters>
  FUSEDSC_DEVICE static void run(const Parameters& parameters) {
    with_other<kMayHaveOther>(parameters.product.prologue.other.data,
                              [&](auto has_other) { run_with<Sink, has_other>(parameters); });
  }

 private:
  template <class Sink, bool kHasOther, class Parameters>
  FUSEDSC_DEVICE static void run_with(const Parameters& parameters) {
    const PointwiseProductParameters& p = parameters.product;
    const PointwiseShare share(p);
    const int first_channel = share.channel_tile * Tile::kColumns, channels = p.channels - first_channel;
    const int steps = Tile::steps(p.depth);
    constexpr int kStage = stage_bytes(kHasOther);
    auto* const memory = static_cast<unsigned char*>(shared_memory());
    auto* const exchange = reinterpret_cast<float*>(memory + Tile::kStages * kStage);
    const FragmentPrologue prologue(p.prologue, memory + Tile::kStages * kStage + kExchangeBytes, steps * Tile::kDepth);

    wait_for_previous_kernel();
    const T* const from = static_cast<const T*>(p.weight.data) + share.group * p.weight.group +
                          first_channel * (kWeightDepthFirst ? 1 : p.weight.first);
    const Weight weight(from, p.weight.first, channels, memory, kStage);
    Rows rows(p.activations, share.group, memory + Weight::kStageBytes, kStage);
    Rows other(kHasOther ? p.prologue.other : p.activations, share.group,
               memory + Weight::kStageBytes + Rows::kStageBytes, kStage);

    const int tiles = (p.pixel_tiles - share.split + p.splits - 1) / p.splits;
    const auto first_pixel = [&](int tile) { return (share.split + tile * p.splits) * Tile::kRows; };
    FragmentSteps<Tile::kStages> ahead(tiles, steps);
    const auto start_next = [&] {
      ahead.start_next(
          [&](int tile) {
            const int first = first_pixel(tile);
            rows.aim(first, p.pixels - first);
            if constexpr (kHasOther) other.aim(first, p.pixels - first);
          },
          [&](int step, int slot) {
            const int k = step * Tile::kDepth;
            weight.start(slot, k, p.depth);
            rows.start(slot, k, p.depth);
            if constexpr (kHasOther) other.start(slot, k, p.depth);
          });
    };
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i) start_next();
    if constexpr (kHasFusion) {
      prologue.load_all<Tile::kThreads, kPerWord<T>>(share.group * p.depth, p.depth);
    }
    Sink sink(parameters, share, first_channel);

    Sums sums;
    int slot = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        wait_for_copies<Tile::kStages - 2>();
        weight.arrange(slot);
        block_barrier();  // this stage is there, and the last one has been read by all
        start_next();
#pragma unroll
        for (int i = 0; i < Tile::kChunks / Tile::kParts; ++i) {
          const int chunk = i * Tile::kParts + Tile::part();
          FragmentWords a[Tile::kPositionTiles], b[Tile::kPositionTiles];
          rows.read(slot, chunk, a);
          if constexpr (kHasOther) other.read(slot, chunk, b);
          if constexpr (kHasFusion) {
            prologue.apply<T, kHasOther, kWeightDepthFirst ? FragmentFusion::none : kFusion>(
                step * Tile::kDepth + chunk * Tile::kChunk + FragmentPlace().inner * Tile::kDepthRun, a, b);
          }
#pragma unroll
          for (FragmentWords& words : a) words = factors_of<T>(words);
          const auto reader = weight.reader(slot, chunk);
          sums.multiply(a, [&](int i, int half) { return reader.read(i, half); });
        }
        slot = slot == Tile::kStages - 1 ? 0 : slot + 1;
      }
      if constexpr (Weight::kRaw) {
        if constexpr (Tile::kParts > 1) block_barrier();  // the last tile's sums of parts have been read
        sums.reorder(exchange + FragmentPlace().warp * (Sums::kReorderBytes / 4));
      }
      const int first_of_warp = Tile::warp_row() * 8 * Tile::kPositionTiles;
      finish_fragments<Tile>(sums, exchange, first_pixel(tile) + first_of_warp, p.pixels, first_channel, channels,
                             Tile::part(), sink);
      sums.clear();
    }
    let_next_kernel_start();
    sink.finish(SharedMemory<float, kMostBytes<Sink>>{reinterpret_cast<float*>(memory)});
  }

  template <class Sink>
  static constexpr std::size_t kMostBytes = Sink::kFinishBytes;
};

}  // namespace fusedsc::gpu
