/// How the fused block's kernel in eval mode on Hopper GPUs shares out shared memory, and what its barriers mean.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_parameters.h"

namespace fusedsc::gpu::hopper {

/// Barriers of chunks that have been used. A barrier tells a phase from the one before it only, and a warp has nothing
/// of many chunks: those that it does not wait for must not come round to a barrier that it is to wait for.
constexpr int kUses = 16;

/// What a kernel is compiled for. kTheRowBytes: of a chunk of channels, 64 or 128. Products have kTheRows * 64
/// positions; each of kTheGroups warpgroups has kTheGroupRows * 64 of them and kTheGroupOutputs outputs.
template <class TheType, int kTheStride, int kTheRowBytes, int kTheRows, int kTheGroups, int kTheGroupRows,
          int kTheGroupOutputs>
struct DscBlockShape {
  using T = TheType;
  static constexpr int kKernel = 3, kStride = kTheStride, kRowBytes = kTheRowBytes;
  static constexpr int kRows = kTheRows;  ///< of a strip
  static constexpr int kGroups = kTheGroups, kGroupRows = kTheGroupRows, kGroupOutputs = kTheGroupOutputs;
  static constexpr int kRowShares = kRows / kGroupRows;  ///< groups that have the same outputs
  static constexpr int kOutputShares = kGroups / kRowShares, kOutputs = kOutputShares * kGroupOutputs;
  static_assert(kRowShares * kOutputShares == kGroups && kRowShares * kGroupRows == kRows);

  static constexpr int kWarps = 16, kThreads = kWarps * 32, kProductWarps = kGroups * 4,
                       kDepthwiseWarps = kWarps - kProductWarps;
  static constexpr int kRuns = kRowBytes / 16;  ///< of a chunk
  /// Chunks between two that a warp makes runs of: as many as there are warps, where each chunk has one run.
  static_assert(kDepthwiseWarps <= kUses);
  static constexpr int kMiddleBytes = kRows * 64 * kRowBytes,
                       kWeightBytes = (kOutputs * kRowBytes + 1023) / 1024 * 1024;
  static constexpr int kTapBytes = 16, kRunTapBytes = kKernel * kKernel * kTapBytes;
  static constexpr int kStagedOutputs = 32, kStagedPitch = kStagedOutputs * 2 + 16;
  static constexpr int kStagedBytes = 16 * kStagedPitch;

  FUSEDSC_HOST_DEVICE static int tile_bytes(const DscBlockParameters& p) { return p.input_rows * p.pitch * kRowBytes; }
  FUSEDSC_HOST_DEVICE static int stage_bytes(const DscBlockParameters& p) {
    return (tile_bytes(p) + 1023) / 1024 * 1024 + kWeightBytes;
  }
  FUSEDSC_HOST_DEVICE static int memory_bytes(const DscBlockParameters& p) {
    return 1024 + p.stages * (stage_bytes(p) + 8) + 2 * (kMiddleBytes + 8) + (p.runs() + 1) * kRunTapBytes + kUses * 8 +
           p.runs() * 64 + (kOutputs + 8) * 8 + 16 * static_cast<int>(sizeof(DscBlockPatch)) +
           kProductWarps * kStagedBytes;
  }
};

/// Where everything lies. A chunk's number counts all chunks of the block: of it follow its stage and which of two
/// tiles of d it goes by.
template <class Shape>
struct DscSharedMemory {
  unsigned char *stages, *middles, *taps, *staged;
  float *maps,
      *output_maps;  ///< scale and shift of each channel: 8 scales, 8 shifts; of each output and, unused, of 8 more
  DscBlockPatch* patches;
  Barrier* arrived;  ///< of each stage: x and weight have come
  Barrier* made;     ///< of each tile of d: all runs of channels are there
  Barrier* used;     ///< of each chunk in turn: products have been made of its tile of d
  int stage_bytes, weight_place;

  FUSEDSC_DEVICE explicit DscSharedMemory(const DscBlockParameters& p) {
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    stage_bytes = Shape::stage_bytes(p);
    weight_place = stage_bytes - Shape::kWeightBytes;
    stages = memory;
    memory += p.stages * stage_bytes;
    middles = memory;
    memory += 2 * Shape::kMiddleBytes;
    taps = memory;
    memory += (p.runs() + 1) * Shape::kRunTapBytes;
    maps = reinterpret_cast<float*>(memory);
    memory += p.runs() * 64;
    output_maps = reinterpret_cast<float*>(memory);
    memory += (Shape::kOutputs + 8) * 8;
    patches = reinterpret_cast<DscBlockPatch*>(memory);
    memory += 16 * sizeof(DscBlockPatch);
    staged = memory;
    arrived = reinterpret_cast<Barrier*>(memory + Shape::kProductWarps * Shape::kStagedBytes);
    made = arrived + p.stages;
    used = made + 2;
  }
};

/// A chunk of channels by its number: its stage and how often that has been used before.
struct DscBlockChunk {
  int slot, parity;           ///< of the stage
  int middle, middle_parity;  ///< of the tile of d

  /// Its barrier of those that tell that it has been used.
  FUSEDSC_DEVICE static int use(int number) { return number % kUses; }
  FUSEDSC_DEVICE static int use_parity(int number) { return number / kUses & 1; }

  FUSEDSC_DEVICE DscBlockChunk(const DscBlockParameters& p, int number) {
    std::uint32_t rest = static_cast<std::uint32_t>(number);
    parity = static_cast<int>(p.by_stages.divide(rest) & 1);
    slot = static_cast<int>(rest);
    middle = number & 1;
    middle_parity = number >> 1 & 1;
  }
};

}  // namespace fusedsc::gpu::hopper
