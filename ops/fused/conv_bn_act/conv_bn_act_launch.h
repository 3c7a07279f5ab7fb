/// What the launches of conv_bn_act's kernels share, forward and backward.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_plan.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

inline constexpr const char* kConvName = "conv_bn_act";
/// Blocks that shall fit a multiprocessor.
inline constexpr int kConvBlocks = 2;

/// Rows of a tile, of `most` or a power of two fewer: what the prior takes leaves every block some tiles and fits its
/// part of a multiprocessor's memory. bytes(rows) is what a block needs.
template <class Bytes>
int prior_tile_rows(const ConvProblem& problem, int most, const Bytes& bytes) {
  const std::size_t limit = shared_memory_limit() / kConvBlocks;
  const std::int64_t height = std::max<std::int64_t>(problem.output.sizes[2], 1);
  int rows = most;
  const auto tiles = [&] { return problem.output.sizes[0] * ((height + rows - 1) / rows); };
  while (rows > 1 && (rows >= 2 * height || bytes(rows) > limit || tiles() < 2 * multiprocessors())) rows /= 2;
  return rows;
}

/// Whether tiles may have so many rows: some of them are the output's, and a block's memory has room for them.
template <class Bytes>
bool tile_rows_fit(const ConvProblem& problem, int rows, const Bytes& bytes) {
  const std::int64_t height = std::max<std::int64_t>(problem.output.sizes[2], 1);
  return rows >= 1 && (rows == 1 || rows < 2 * height) && bytes(rows) <= shared_memory_limit();
}

inline std::int64_t blocks_for(std::int64_t tiles, int resident) { return std::min<std::int64_t>(tiles, resident); }

[[noreturn]] inline void throw_no_such_tiles(const tuning::Config& config, const char* known) {
  throw Unsupported(std::string(kConvName) + ": gpu: there is no kernel with \"" + tuning::printed(config) +
                    "\" for this problem, or its tiles do not fit shared memory; it knows " + known);
}

template <class Block>
void set_normalisation(const Block& block, ConvShape& shape) {
  shape.mean = block.mean.data;
  shape.invstd = block.invstd.data;
  shape.bn_weight = block.bn_weight.data;
  shape.bn_bias = block.bn_bias.data;
  shape.activation = block.activation;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool is_relu = block.activation == Activation::relu, is_relu6 = block.activation == Activation::relu6;
  shape.clamps = only_clamps(block.activation);
  shape.low = is_relu || is_relu6 ? 0 : -kInfinity;
  shape.high = is_relu6 ? 6 : kInfinity;
}

template <class Block>
double positions_of(const Block& output) {
  return static_cast<double>(std::max<std::int64_t>(output.sizes[0] * output.sizes[2] * output.sizes[3], 1));
}

}  // namespace fusedsc::gpu
