/// What a block of the weight gradient's kernel (pointwise_hopper_weight_kernel.h) has: its place in the problem, what
/// lies where in shared memory, and how its sums leave it.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// A tile of the weight: rows are outputs, in blocks of 64; columns are channels. kDepth positions come at a time.
/// kSlices: of the positions, each a warpgroup's, which has sums of the whole tile. Of one slice, groups have 64 rows
/// each, and a warp more copies for all.
template <class T_, PointwiseWeightKind kKind, int kRowBlocks_, int kColumns_, int kSlices_, int kDepth_>
struct PointwiseWeightBlock {
  using T = T_;
  static constexpr bool kFused = kKind != PointwiseWeightKind::plain, kBias = kKind == PointwiseWeightKind::bias;
  static constexpr int kRowBlocks = kRowBlocks_, kRows = kRowBlocks * 64, kColumns = kColumns_;
  static constexpr int kSlices = kSlices_, kDepth = kDepth_;
  static constexpr bool kHasCopyWarp = kSlices == 1;
  static constexpr int kGroups = kHasCopyWarp ? kRowBlocks : kSlices, kOwnBlocks = kHasCopyWarp ? 1 : kRowBlocks;
  static constexpr int kProductThreads = kGroups * 128, kThreads = kProductThreads + (kHasCopyWarp ? 32 : 0);
  static_assert(!kHasCopyWarp || !kFused);  // a prologue changes x where it lies, once

  static constexpr int kParts = kFused ? 2 : 1;                                        ///< grad_y; output
  static constexpr int kBox = kColumns % 64 == 0 ? 64 : 32, kBoxes = kColumns / kBox;  ///< columns of a copy of x
  static constexpr int kBoxRowBytes = kBox * 2, kBoxBytes = kDepth * kBoxRowBytes, kXBytes = kBoxes * kBoxBytes;
  static constexpr int kRowTileBytes = kDepth * 128, kPartBytes = kRowBlocks * kRowTileBytes;
  static constexpr int kStageBytes = kXBytes + kParts * kPartBytes;
  static_assert(kColumns % kBox == 0);

  // Sums go through shared memory in fours, as threads have them; of each, a group owns those that it puts together.
  static constexpr int kQuads = kOwnBlocks * kColumns / 8, kOwnQuads = (kQuads + kSlices - 1) / kSlices;
  static constexpr int kOthers = kHasCopyWarp ? 1 : kSlices - 1;  ///< places of a four
  static constexpr int kSumBytes = kGroups * kOthers * kOwnQuads * 128 * 16;

  // Vectors in shared memory: ones; by channel scale, shift and sums of each group; by output three scales and the
  // bias.
  static constexpr int kScales = 128, kChannelSums = kScales + 2 * kColumns;
  static constexpr int kOutputScales = kChannelSums + kGroups * kColumns, kBiasSums = kOutputScales + 3 * kRows;
  static constexpr int kVectorFloats = !kFused ? 0 : kBiasSums + (kBias ? (kGroups + 1) * kRows : 0);

  using Result = float[kOwnBlocks][kColumns / 2];
  struct Sums {
    Result products[kParts];
    float of_channels[kFused ? kBoxes : 1][4], of_rows[kParts][kBias ? kOwnBlocks : 1][4];
  };

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages) {
    return 1024 + tile_bytes(stages) + barrier_bytes(stages) + kVectorFloats * 4;
  }

  FUSEDSC_DEVICE explicit PointwiseWeightBlock(const PointwiseWeightParameters& parameters) : p(parameters) {
    group = uniform(thread_index() / 128);
    thread = thread_index() % 128;
    int rest = static_cast<int>(block_index());
    rank = rest % p.cluster;
    rest /= p.cluster;
    tile = rest % (p.tiles.output_tiles * p.tiles.channel_tiles);
    split = rest / (p.tiles.output_tiles * p.tiles.channel_tiles);
    first_channel = tile % p.tiles.channel_tiles * kColumns;
    first_output = tile / p.tiles.channel_tiles * kRows;
    first_step = (split * p.cluster + rank) * kSlices + slice();
    stride = p.splits * p.cluster * kSlices;
    steps = first_step < p.pixel_tiles ? (p.pixel_tiles - first_step + stride - 1) / stride : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    quads = reinterpret_cast<Four*>(memory);
    stages = memory + slice() * p.stages * kStageBytes;
    memory += tile_bytes(p.stages);
    full = reinterpret_cast<Barrier*>(memory) + slice() * p.stages;
    done = full + p.stages;
    vectors = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE int slice() const { return kHasCopyWarp ? 0 : group; }
  FUSEDSC_DEVICE int row_block() const { return kHasCopyWarp ? group : 0; }
  FUSEDSC_DEVICE unsigned char* stage(int slot) const { return stages + slot * kStageBytes; }
  FUSEDSC_DEVICE int first_pixel(int step) const { return (first_step + step * stride) * kDepth; }

  // ------------------------------------------------------------- the block's sums, by all threads that have multiplied

  /// To the weight, or the workspace. The cluster's are added up, of which each block leaves some.
  FUSEDSC_DEVICE void leave(const Result& sums) const {
    const auto leave_own = [&](int quad, const Four& sum) { leave_quad(quad, sum); };
    const auto keep_own = [&](int quad, const Four& sum) { *place_of(quad, quad % kSlices + 1) = sum; };
    if constexpr (kHasCopyWarp) {
      if (p.cluster == 1) return p.stores_runs ? store_runs(sums[0]) : for_own(sums, leave_own);
      group_barrier<kProductThreads>(0);  // all are done with the tiles, where the sums go
      for_own(sums, keep_own);
    } else {
      block_barrier();  // likewise
      share_out(sums);
      block_barrier();
      for_own(sums, [&](int quad, const Four& sum) { p.cluster == 1 ? leave_own(quad, sum) : keep_own(quad, sum); });
    }
    float bias = 0;
    const bool has_bias = kBias && first_channel == 0 && thread_index() < kRows;
    const int output = first_output + thread_index();
    if (has_bias) {
      for (int i = 0; i < kGroups; ++i) bias += vectors[kBiasSums + i * kRows + thread_index()];
      if (p.cluster == 1) leave_bias_of(p.tiles, split, output, bias, T());
      else vectors[kBiasSums + kGroups * kRows + thread_index()] = bias;
    }
    if (p.cluster == 1) return;
    cluster_barrier();
#pragma unroll 1
    for (int quad = rank * kSlices + slice(); quad < kQuads; quad += p.cluster * kSlices) {
      if (exists(quad)) leave_quad(quad, sum_of_cluster(place_of(quad, quad % kSlices + 1)));
    }
    if (has_bias && rank == 0) {
      const float* place = vectors + kBiasSums + kGroups * kRows + thread_index();
      for (int i = 1; i < p.cluster; ++i) bias += load_of_block(place, i);
      leave_bias_of(p.tiles, split, output, bias, T());
    }
    cluster_barrier();  // no block's memory goes before all have read it
  }

  const PointwiseWeightParameters& p;
  int group, thread, rank, tile, split, first_output, first_channel;
  int first_step, stride, steps;
  unsigned char* stages;
  Barrier *full, *done;  ///< of each stage: its copies have come; all groups are done with it
  Four* quads;
  float* vectors;

 private:
  FUSEDSC_HOST_DEVICE static constexpr int tile_bytes(int stages) {
    const int tiles = kSlices * stages * kStageBytes;
    return tiles > kSumBytes ? tiles : kSumBytes;
  }
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return ((kHasCopyWarp ? 2 : kSlices) * stages * 8 + 15) / 16 * 16;
  }

  FUSEDSC_DEVICE static Four four_of(const Result& sums, int quad) {
    const float* from = sums[quad / (kColumns / 8)] + quad % (kColumns / 8) * 4;
    return {from[0], from[1], from[2], from[3]};
  }

  /// Each slice's sums, for the groups that own them.
  FUSEDSC_DEVICE void share_out(const Result& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kSlices != slice() && exists(quad)) *place_of(quad, slice()) = four_of(sums, quad);
    }
  }

  /// visit(quad, sum of all slices) of those that the group owns.
  template <class Visit>
  FUSEDSC_DEVICE void for_own(const Result& sums, const Visit& visit) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kSlices != slice() || !exists(quad)) continue;
      Four sum = four_of(sums, quad);
#pragma unroll
      for (int i = 1; i < kSlices; ++i) add(sum, *place_of(quad, quad % kSlices + i));
      visit(quad, sum);
    }
  }

  FUSEDSC_DEVICE bool exists(int quad) const {
    return first_channel + quad % (kColumns / 8) * 8 < p.tiles.channels &&
           first_output + (row_block() + quad / (kColumns / 8)) * 64 + thread / 32 * 16 < p.tiles.outputs;
  }

  /// Where `from` of the slices leaves a four for the group that owns it.
  FUSEDSC_DEVICE Four* place_of(int quad, int from) const {
    const int owner = quad % kSlices, number = (from - owner - 1 + kSlices) % kSlices;
    return quads + (((row_block() + owner) * kOthers + number) * kOwnQuads + quad / kSlices) * 128 + thread;
  }

  FUSEDSC_DEVICE void leave_quad(int quad, const Four& sum) const {
    leave_four(p.tiles, tile, split, (row_block() * kQuads + quad) * 128 + thread, sum, T());
  }

  FUSEDSC_DEVICE Four sum_of_cluster(const Four* place) const {
    if constexpr (!kHasCopyWarp) {
      Four sum = load_of_block(place, 0);
#pragma unroll 4
      for (int i = 1; i < p.cluster; ++i) add(sum, load_of_block(place, i));
      return sum;
    }
    constexpr int kMostBlocks = 8;
    Four parts[kMostBlocks];  // loads that do not wait for each other
#pragma unroll
    for (int i = 0; i < kMostBlocks; ++i) parts[i] = i < p.cluster ? load_of_block(place, i) : Four{};
#pragma unroll
    for (int i = 1; i < kMostBlocks; ++i) add(parts[0], parts[i]);
    return parts[0];
  }

  /// To the weight, of which four neighbouring lanes have two channels each, by 16 bytes: a lane takes all channels of
  /// one quad of four from them. By words, memory is written in halves of sectors, which took a microsecond.
  FUSEDSC_DEVICE void store_runs(const float (&sums)[kColumns / 2]) const {
    constexpr int kLanes = 4;
    const int lane = thread % kLanes;
    const int output = first_output + row_block() * 64 + thread / 32 * 16 + thread % 32 / kLanes;
#pragma unroll
    for (int first = 0; first < kQuads; first += kLanes) {
      const int channel = first_channel + (first + lane) * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Aligned<std::uint32_t, kLanes> run;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float* pair = sums + (first + i) * 4 + half * 2;
          run.elements[i] = to_bits(pair[0], pair[1], T());
        }
        exchange<1>(run.elements[0], run.elements[1], lane);
        exchange<1>(run.elements[2], run.elements[3], lane);
        exchange<2>(run.elements[0], run.elements[2], lane);
        exchange<2>(run.elements[1], run.elements[3], lane);
        const int row = output + half * 8;
        if (row >= p.tiles.outputs || channel >= p.tiles.channels) continue;
        T* to = static_cast<T*>(p.tiles.weight) + row * p.tiles.weight_row + channel;
        *reinterpret_cast<Aligned<std::uint32_t, kLanes>*>(to) = run;
      }
    }
  }

  /// Lanes with that bit give their first word for the other lane's second.
  template <int kBit>
  FUSEDSC_DEVICE static void exchange(std::uint32_t& first, std::uint32_t& second, int lane) {
    const bool has_bit = (lane & kBit) != 0;
    const std::uint32_t taken = shuffle_xor(has_bit ? first : second, kBit);
    if (has_bit) first = taken;
    else second = taken;
  }
};

}  // namespace fusedsc::gpu::hopper
