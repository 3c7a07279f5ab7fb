/// The product of the forward pass and of the input gradient, of tensors whose channels are any even number. A warp
/// copies its positions to shared memory as they lie in memory, reads of them what instructions take, words of two
/// channels, and lays its results out there in memory's order. Warps need no barrier of the block.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_product.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_packed_rows.h"

namespace fusedsc::gpu {

/// As FragmentTile, whose warps have whole rows: kStages tiles of them are under way or in use. Position n / 2 + n % 2
/// * 4 is an instruction's column n, so that the four positions of a result's row of threads are neighbours.
template <int kPositionTiles_, int kColumns_, int kStages_ = 2, int kParts_ = 1, int kThreads_ = 256>
struct PackedTile : FragmentTile<kPositionTiles_, kColumns_, kParts_, kStages_, 2, kThreads_> {
  static constexpr bool kPacked = true;
  static constexpr int kLanes = 32 * kParts_;  ///< that share rows

  /// Of the warps that share rows, for what they have written to shared memory.
  FUSEDSC_DEVICE static void barrier() {
    if constexpr (kParts_ == 1) wave_product_barrier();
    else block_barrier();
  }
};

template <class Tile>
struct PackedSweep : FragmentSweep<Tile> {
  static constexpr bool kPairs = true;
};

/// The weight as FragmentWeight has it, with words of two values of k: of a chunk's 16 thread `inner` has every fourth
/// from `inner` on.
template <class T, class Tile>
class PackedWeight : public FragmentWeight<T, Tile> {
 public:
  using FragmentWeight<T, Tile>::FragmentWeight;

  /// Starts copying a weight [channel][k], both even; zeros beyond its ends.
  FUSEDSC_DEVICE void start(const T* from, std::int64_t channel_stride, int channels, int depth) const {
    for (int i = thread_index(); i < 16 * Tile::kColumns * Tile::chunks(depth); i += Tile::kThreads) {
      const int word = i % 16, channel = i / 16 % Tile::kColumns, chunk = i / (16 * Tile::kColumns);
      const int k = chunk * Tile::kChunk + 2 * word;
      const bool has = channel < channels && k < depth;
      start_copy<4>(words(chunk, channel / 2 * 2, word) + channel % 2, has ? from + channel * channel_stride + k : from,
                    has);
    }
  }

  /// Likewise of a weight [k][channel], at once.
  FUSEDSC_DEVICE void load_transposed(const T* from, std::int64_t depth_stride, int channels, int depth) const {
    constexpr int kPairs = Tile::kColumns / 2, kAtOnce = 8;
    const int all = 16 * kPairs * Tile::chunks(depth);
    static_assert(16 * kPairs % Tile::kThreads == 0);
#pragma unroll 1
    for (int first = thread_index(); first < all; first += kAtOnce * Tile::kThreads) {
      std::uint32_t rows[kAtOnce][2] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * Tile::kThreads, channel = at % kPairs * 2, k = at / kPairs * 2;
        if (channel >= channels || k >= depth) continue;
        const T* const pair = from + k * depth_stride + channel;
        rows[i][0] = load<2>(pair).words[0];
        rows[i][1] = load<2>(pair + depth_stride).words[0];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * Tile::kThreads, channel = at % kPairs * 2, word = at / kPairs;
        if (at >= all) break;
        std::uint32_t* const to = words(word / 16, channel, word % 16);
        to[0] = halves_of(rows[i][0], rows[i][1], false);
        to[1] = halves_of(rows[i][0], rows[i][1], true);
      }
    }
  }

 private:
  /// Of an even channel and the next.
  FUSEDSC_DEVICE std::uint32_t* words(int chunk, int channel, int word) const {
    const int of_thread = word / 4;
    return this->place(chunk, channel, word % 4, of_thread / 2)->elements + of_thread % 2 * 2;
  }
};

/// Pass: Parameters, kInputGradient, Sink, kExtras, extra(parameters, i) and result(parameters).
template <class Pass, class T, class Tile, FragmentFusion kFusion>
struct PackedProduct {
  using Parameters = typename Pass::Parameters;
  using Sweep = PackedSweep<Tile>;
  using Weight = PackedWeight<T, Tile>;
  using Sums = FragmentSums<T, Tile>;
  static constexpr bool kDepthFirst = Pass::kInputGradient, kHasFusion = kFusion != FragmentFusion::none;
  static constexpr bool kMayHaveOther = kHasFusion && kDepthFirst;
  static constexpr int kTensors = 2 + Pass::kExtras;  ///< activations, their prologue's, the epilogue's
  using Sink = typename Pass::template Sink<T, Sweep, kHasFusion, kFusion == FragmentFusion::clamps>;

  /// Where a block's memory has what: the tensors' rows, coefficients, the weight, slots of warps.
  struct Places {
    int coefficients, weight, exchange, slots, end;
    int activations, other, extra, slot;  ///< bytes of a warp's tile of each; of a slot
  };
  FUSEDSC_HOST_DEVICE static constexpr Places places(const FragmentShape& shape) {
    const int padded = Tile::chunks(shape.depth) * Tile::kChunk;
    const int columns = shape.channels < Tile::kColumns ? shape.channels : Tile::kColumns;
    const int depth_bytes = Tile::kWarpRows * packed_pitch_bound(shape.depth);
    Places to{};
    to.extra = Tile::kWarpRows * packed_pitch_bound(columns);
    to.activations = depth_bytes > to.extra ? depth_bytes : to.extra;  // results take their place
    to.other = shape.has_other ? depth_bytes : 0;
    to.slot = to.activations + to.other + shape.extras * to.extra;
    to.coefficients = (kTensors + 1) * kRowsBytes;
    to.weight = to.coefficients + (kHasFusion ? FragmentPrologue::bytes(padded) : 0);
    to.exchange = to.weight + Tile::chunks(shape.depth) * Weight::kChunkBytes;
    to.slots = to.exchange + Sums::kExchangeBytes;
    // A last chunk of k is read whole, beyond its row's end.
    to.end = to.slots + Tile::kRowGroups * Tile::kStages * to.slot + 2 * Tile::kChunk;
    return to;
  }
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(const FragmentShape& shape) {
    const auto bytes = static_cast<std::size_t>(places(shape).end);
    return bytes > Sink::kFinishBytes ? bytes : Sink::kFinishBytes;
  }

  FUSEDSC_DEVICE static void run(const Parameters& parameters) {
    with_other<kMayHaveOther>(parameters.product.prologue.other.data,
                              [&](auto has_other) { run_with<has_other>(parameters); });
  }

 private:
  static constexpr int kRowsBytes = (static_cast<int>(sizeof(PackedRows)) + 15) / 16 * 16;

  FUSEDSC_DEVICE static PackedRows& rows_of(unsigned char* memory, int i) {
    return *reinterpret_cast<PackedRows*>(memory + i * kRowsBytes);
  }

  template <bool kHasOther>
  FUSEDSC_DEVICE static void run_with(const Parameters& parameters) {
    const PointwiseProductParameters& p = parameters.product;
    const PointwiseShare share(p);
    const int first_channel = share.channel_tile * Tile::kColumns;
    const int channels = least(p.channels - first_channel, Tile::kColumns);
    Parameters mine = parameters;  // with the epilogue's tensors in shared memory
    FragmentShape shape{p.depth, kHasOther, p.channels, 0};
    if constexpr (kHasFusion) {
#pragma unroll
      for (int i = 0; i < Pass::kExtras; ++i) shape.extras += Pass::extra(mine, i).data != nullptr ? 1 : 0;
    }
    const Places at = places(shape);
    auto* const memory = static_cast<unsigned char*>(shared_memory());
    const Weight weight(memory + at.weight);
    const FragmentPrologue prologue(p.prologue, memory + at.coefficients, Tile::chunks(p.depth) * Tile::kChunk);

    wait_for_previous_kernel();
    const int tensors = lay_out<kHasOther>(mine, share, first_channel, channels, at, memory);
    const T* const from = static_cast<const T*>(p.weight.data) + share.group * p.weight.group;
    if constexpr (kDepthFirst) weight.load_transposed(from + first_channel, p.weight.first, channels, p.depth);
    else weight.start(from + first_channel * p.weight.first, p.weight.first, channels, p.depth);
    block_barrier();

    const int row_group = FragmentPlace().warp / Tile::kParts, part = FragmentPlace().warp % Tile::kParts;
    const int lane = thread_index() % Tile::kLanes;
    unsigned char* const slots = memory + at.slots + row_group * Tile::kStages * at.slot;
    auto* const exchange = reinterpret_cast<float*>(memory + at.exchange);
    const int tiles = (p.pixel_tiles - share.split + p.splits - 1) / p.splits;
    const auto first_pixel = [&](int tile) {
      return (share.split + tile * p.splits) * Tile::kRows + row_group * Tile::kWarpRows;
    };
    const auto start = [&](int tile, int slot) {
      if (tile < tiles) {
        const int first = first_pixel(tile), rows = least(p.pixels - first, Tile::kWarpRows);
#pragma unroll 1
        for (int i = 0; i < tensors; ++i) rows_of(memory, i).start(lane, first, rows, slots + slot * at.slot);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i) start(i, i);
    if constexpr (kHasFusion) prologue.template load_all<Tile::kThreads, 2>(share.group * p.depth, p.depth);
    Sink sink(mine, share, first_channel);
    wait_for_copies<Tile::kStages - 2>();
    block_barrier();

    const int pitch = rows_of(memory, 0).shared_pitch, other_pitch = rows_of(memory, kHasOther ? 1 : 0).shared_pitch;
    const int row = FragmentPlace().outer / 2 + FragmentPlace().outer % 2 * 4;
    const int chunks = (p.depth + Tile::kChunk - 1) / Tile::kChunk;
    Sums sums;
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      wait_for_copies<Tile::kStages - 2>();
      Tile::barrier();
      start(tile + Tile::kStages - 1, slot == 0 ? Tile::kStages - 1 : slot - 1);
      unsigned char* const here = slots + slot * at.slot;
      const unsigned char* const words = here + row * pitch + FragmentPlace().inner * 4;
      const unsigned char* const others = here + at.activations + row * other_pitch + FragmentPlace().inner * 4;
#pragma unroll 1
      for (int chunk = part; chunk < chunks; chunk += Tile::kParts) {
        const int left = (p.depth - chunk * Tile::kChunk) / 2 - FragmentPlace().inner;  // words
        FragmentWords a[Tile::kPositionTiles], b[Tile::kPositionTiles];
        read(words + chunk * 2 * Tile::kChunk, pitch, left, a);
        if constexpr (kHasOther) read(others + chunk * 2 * Tile::kChunk, other_pitch, left, b);
        if constexpr (kHasFusion) {
          prologue.template apply<T, kHasOther, kDepthFirst ? FragmentFusion::none : kFusion>(
              chunk * Tile::kChunk + FragmentPlace().inner * 8, a, b);
        }
        sums.multiply(a, weight, chunk);
      }
      if constexpr (Tile::kParts > 1) sums.leave(exchange);
      Tile::barrier();  // results take the activations' place
      finish_tile(sums, exchange, mine, memory, here, p.pixels - first_pixel(tile), channels, part, sink);
      sums.clear();
      Tile::barrier();
      const int first = first_pixel(tile);
      rows_of(memory, kTensors).leave(lane, first, least(p.pixels - first, Tile::kWarpRows), here);
      slot = slot == Tile::kStages - 1 ? 0 : slot + 1;
    }
    let_next_kernel_start();
    sink.finish(SharedMemory<float, Sink::kFinishBytes>{reinterpret_cast<float*>(memory)});
  }

  /// The tensors' rows, each by a thread of its own; and how many there are to copy.
  template <bool kHasOther>
  FUSEDSC_DEVICE static int lay_out(Parameters& mine, const PointwiseShare& share, int first_channel, int channels,
                                    const Places& at, unsigned char* memory) {
    const PointwiseProductParameters& p = mine.product;
    int count = 0, place = 0;
    const auto add = [&](const auto& matrix, int first, int of_row, int index, int of_slot) {
      if (thread_index() == index) {
        rows_of(memory, index) =
            PackedRows(matrix, share.group, first, of_row, Tile::kWarpRows, of_slot, T(), Tile::kLanes);
      }
    };
    add(p.activations, 0, p.depth, count++, place);
    place += at.activations;
    if constexpr (kHasOther) {
      add(p.prologue.other, 0, p.depth, count++, place);
      place += at.other;
    }
    if constexpr (kHasFusion) {
#pragma unroll
      for (int i = 0; i < Pass::kExtras; ++i) {
        if (Pass::extra(mine, i).data == nullptr) continue;
        add(Pass::extra(mine, i), first_channel, channels, count++, place);
        place += at.extra;
      }
    }
    add(Pass::result(mine), first_channel, channels, kTensors, 0);
    return count;
  }

  /// Of a thread's positions words of k, 0 beyond the end: what is there is the next position's.
  FUSEDSC_DEVICE static void read(const unsigned char* from, int pitch, int left,
                                  FragmentWords (&to)[Tile::kPositionTiles]) {
#pragma unroll
    for (int i = 0; i < Tile::kPositionTiles; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(from + 8 * i * pitch + 16 * w);
        to[i].elements[w] = 4 * w < left ? word : 0;
      }
    }
  }

  /// Results, where the activations were.
  FUSEDSC_DEVICE static void finish_tile(const Sums& sums, float* exchange, Parameters& mine, unsigned char* memory,
                                         unsigned char* here, int pixels, int channels, int part, Sink& sink) {
    const auto in_shared = [&](auto& matrix, int index) {
      const PackedRows& rows = rows_of(memory, index);
      matrix.data = here + rows.place;
      matrix.first = rows.shared_pitch / 2;
      matrix.second = 1;
      matrix.group = 0;
    };
    in_shared(Pass::result(mine), kTensors);
    if constexpr (kHasFusion) {
      int index = kMayHaveOther && mine.product.prologue.other.data != nullptr ? 2 : 1;
#pragma unroll
      for (int i = 0; i < Pass::kExtras; ++i) {
        if (Pass::extra(mine, i).data != nullptr) in_shared(Pass::extra(mine, i), index++);
      }
    }
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const int channel = group * Tile::kGroup + FragmentPlace().outer * Tile::kRun;
      if (channel >= channels) continue;
      const int first = Sums::first_position();
      const FragmentRuns<Sums, Tile> runs{first, pixels - first, group, part};
      sink.take(group, runs, channel, least(channels - channel, Tile::kRun), [&](int i, float(&to)[Tile::kRun]) {
        if constexpr (Tile::kParts > 1) Sums::gather(exchange, Sums::unit(i, group), to);
        else sums.read(i, group, to);
      });
    }
  }
};

}  // namespace fusedsc::gpu
