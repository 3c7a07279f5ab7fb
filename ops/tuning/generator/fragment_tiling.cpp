#include "fusedsc/tuning/generator/fragment_tiling.h"

#include <algorithm>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr int kMostBlocks = 8;

int bytes_of(DataType dtype) { return static_cast<int>(size_of(dtype)); }
int up(int value, int step) { return (value + step - 1) / step * step; }

/// fragment_run(): neighbouring channels that a thread stores at once.
int run_of(const FragmentTiling& tiling, const FragmentExtents& extents) {
  const int channels = tiling.warp_channels();
  return bytes_of(extents.dtype) == 2 && channels % 64 == 0 ? 8 : channels % 32 == 0 ? 4 : 2;
}

/// Values of k of 64 bytes.
int chunk_of(const FragmentExtents& extents) { return 64 / bytes_of(extents.dtype); }

/// The depth, up to whole chunks of each part, or whole stages.
int padded_depth(const FragmentTiling& tiling, const FragmentExtents& extents) {
  return up(extents.depth, tiling.depth > 0 ? tiling.depth : tiling.parts * chunk_of(extents));
}

/// Sums of parts on their way to other threads.
int exchange_bytes(const FragmentTiling& tiling) {
  const int each = tiling.warp_positions() * tiling.warp_channels() / 32;  // sums of a thread
  return tiling.parts == 1 ? 0 : each * 4 * tiling.threads();
}

/// What a sink needs in the end: vectors of each channel, of each of the threads that meet it.
int finish_bytes(const FragmentTiling& tiling, const FragmentExtents& extents) {
  if (!extents.fused) return 0;
  return 4 * (extents.is_input_gradient ? 2 : 3) * (4 * tiling.warps() / tiling.repeat_c) * tiling.columns;
}

/// PackedProduct's places.
int packed_bytes(const FragmentTiling& tiling, const FragmentExtents& extents) {
  constexpr int kRowsBytes = 64, kChunk = 32;
  const auto pitch = [](int channels) { return ((channels * 2 + 15) / 16 | 1) * 16; };
  const int depth_bytes = tiling.warp_positions() * pitch(extents.depth);
  const int extra = tiling.warp_positions() * pitch(std::min(extents.channels, tiling.columns));
  const int slot = std::max(depth_bytes, extra) + (extents.has_other ? depth_bytes : 0) +
                   (extents.fused ? extents.extras : 0) * extra;
  const int tensors = 3 + (extents.is_input_gradient ? 2 : 1);
  const int padded = padded_depth(tiling, extents);
  return tensors * kRowsBytes + (extents.fused ? 12 * padded : 0) + padded * 2 * tiling.columns +
         exchange_bytes(tiling) + tiling.repeat_w * tiling.stages * slot + 2 * kChunk;
}

int shared_bytes(const FragmentTiling& tiling, const FragmentExtents& extents) {
  const int finish = finish_bytes(tiling, extents);
  if (extents.memory == FragmentRows::packed) return std::max(packed_bytes(tiling, extents), finish);
  const int operands = extents.has_other ? 2 : 1, size = bytes_of(extents.dtype);
  const int padded = padded_depth(tiling, extents), prologue = extents.fused ? 12 * padded : 0;
  if (tiling.depth == 0) {
    const int stage = tiling.warp_positions() / 8 * tiling.threads() * 16 * operands;
    return std::max(tiling.stages * stage + exchange_bytes(tiling) + prologue + padded * size * tiling.columns, finish);
  }
  const int stage = tiling.depth * size * (tiling.columns + tiling.rows * operands);
  const bool reorders = extents.is_input_gradient && size == 2;  // the weight is transposed as it is read
  const int reorder = tiling.warps() * tiling.warp_positions() * (8 * run_of(tiling, extents) + 4) * 4;
  return std::max(tiling.stages * stage + std::max(reorders ? reorder : 0, exchange_bytes(tiling)) + prologue, finish);
}

/// Whether the templates take it.
bool is_tile(const FragmentTiling& tiling, const FragmentExtents& extents) {
  if (tiling.columns % tiling.repeat_c != 0 || tiling.rows % tiling.repeat_w != 0) return false;
  const int channels = tiling.warp_channels(), size = bytes_of(extents.dtype), chunk = chunk_of(extents);
  if (tiling.warp_positions() % 8 != 0 || channels % 16 != 0) return false;
  if (channels % (8 * run_of(tiling, extents)) != 0) return false;
  if (extents.memory == FragmentRows::packed) {
    return tiling.depth == 0 && tiling.repeat_c == 1 && size == 2 && 8 * tiling.columns % tiling.threads() == 0;
  }
  if (tiling.depth == 0) return tiling.repeat_c == 1;
  if (tiling.depth % chunk != 0 || tiling.depth / chunk % tiling.parts != 0) return false;
  if (!extents.is_input_gradient) return true;
  if (size == 4) return tiling.threads() > 128 || tiling.columns <= tiling.threads();  // squares
  const int octets = tiling.columns / 8;
  return octets % 8 == 0 || octets % 8 == 4 || octets == 2;  // what is swizzled
}

/// Fitted to what nvrtc 13 makes for sm_90, where 85 of 100 take no more.
int registers_of(const FragmentTiling& tiling, const FragmentExtents& extents) {
  const int positions = tiling.warp_positions() / 8, channel_tiles = tiling.warp_channels() / 16;
  const int sums = 4 * positions * channel_tiles, operands = extents.has_other ? 2 : 1;
  constexpr int kOfKernel = 51, kOfFusion = 4, kOfGradientFusion = 27, kOfStages = 9;
  int registers = kOfKernel + sums * 6 / 5 + 6 * positions * operands;
  if (extents.fused) registers += kOfFusion + 5 * channel_tiles * (extents.is_input_gradient ? 2 : 1);
  if (extents.fused && extents.is_input_gradient) registers += kOfGradientFusion;
  // The loop over a stage's chunks is unrolled: factors of all of them may be read ahead.
  if (tiling.depth > 0) registers += kOfStages + 2 * tiling.depth / chunk_of(extents) / tiling.parts * channel_tiles;
  return registers;
}

/// Of one that fits: with more blocks beside each other, as long as these fit, too.
void add(std::vector<FragmentTiling>& to, FragmentTiling tiling, const FragmentExtents& extents,
         const DeviceLimits& limits) {
  if (!is_tile(tiling, extents) || !resources_of(tiling, extents, limits).fit()) return;
  // Warps that share packed rows take different numbers of turns, for which a wave of two would wait in vain.
  if (extents.memory == FragmentRows::packed && tiling.parts > 1 && limits.wave != 32) return;
  FragmentTiling more = tiling;
  while (++more.block_n <= kMostBlocks && more.block_n * more.warps() <= limits.waves &&
         resources_of(more, extents, limits).fit()) {
    tiling = more;
  }
  to.push_back(tiling);
}

}  // namespace

Config config_of(const FragmentTiling& tiling) {
  return {{Knob::rows, tiling.rows},         {Knob::columns, tiling.columns}, {Knob::groups, tiling.parts},
          {Knob::stages, tiling.stages},     {Knob::depth, tiling.depth},     {Knob::repeat_w, tiling.repeat_w},
          {Knob::repeat_c, tiling.repeat_c}, {Knob::block_n, tiling.block_n}};
}

bool is_fragment_tiling(const Config& config) { return config[Knob::repeat_w] > 0 && config[Knob::group_c] == 0; }

FragmentTiling fragment_tiling_of(const Config& config) {
  const FragmentTiling tiling{config[Knob::rows],     config[Knob::columns], config[Knob::groups],
                              config[Knob::stages],   config[Knob::depth],   config[Knob::repeat_w],
                              config[Knob::repeat_c], config[Knob::block_n]};
  bool is_whole = config == config_of(tiling) && tiling.depth >= 0;
  for (const int value :
       {tiling.rows, tiling.columns, tiling.parts, tiling.stages, tiling.repeat_w, tiling.repeat_c, tiling.block_n}) {
    is_whole = is_whole && value > 0;
  }
  check(is_whole, "config: \"", printed(config), "\" is no tiling of a product by fragments, as \"",
        printed(config_of(FragmentTiling())), "\" is");
  return tiling;
}

FragmentResources resources_of(const FragmentTiling& tiling, const FragmentExtents& extents,
                               const DeviceLimits& limits) {
  return {std::min(limits.shared_bytes / tiling.block_n - limits.reserved_bytes, limits.block_shared_bytes),
          std::min(limits.registers / (tiling.block_n * tiling.threads()) / 8 * 8, limits.thread_registers),
          shared_bytes(tiling, extents), registers_of(tiling, extents)};
}

std::vector<FragmentTiling> fragment_tilings(const FragmentExtents& extents, const DeviceLimits& limits) {
  std::vector<FragmentTiling> tilings;
  if (extents.memory == FragmentRows::none) return tilings;
  const bool is_packed = extents.memory == FragmentRows::packed;
  const int chunk = chunk_of(extents);
  // Of packed rows all of a position's depth is a stage.
  const std::vector<int> stages = is_packed ? std::vector{2, 3} : std::vector{3, 4, 6};
  for (const int columns : {16, 32, 48, 64, 96, 128}) {
    for (const int warp_positions : {8, 16, 32, 64}) {
      for (const int repeat_w : {1, 2, 4, 8}) {
        for (const int parts : {1, 2, 4, 8}) {
          for (const int its_stages : stages) {
            const FragmentTiling stays{warp_positions * repeat_w, columns, parts, its_stages, 0, repeat_w, 1, 1};
            if (parts * repeat_w >= 2 && parts * repeat_w <= 8) add(tilings, stays, extents, limits);
            if (is_packed || parts > 4 || its_stages > 4) continue;
            for (const int repeat_c : {1, 2, 4}) {
              if (parts * repeat_w * repeat_c < 4 || parts * repeat_w * repeat_c > 8) continue;
              for (const int chunks : {1, 2, 4}) {
                FragmentTiling streams = stays;
                streams.repeat_c = repeat_c;
                streams.depth = chunks * chunk;
                add(tilings, streams, extents, limits);
              }
            }
          }
        }
      }
    }
  }
  return tilings;
}

}  // namespace fusedsc::tuning
