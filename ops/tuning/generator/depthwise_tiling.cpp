#include "fusedsc/tuning/generator/depthwise_tiling.h"

#include <algorithm>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

/// Eq. 6 leaves 30 to the compiler; these kernels take some more, for addresses of rows.
constexpr int kCompilersRegisters = 48;
/// Rows are unrolled by the period after which registers have their first roles again: so many at most, of which each
/// takes kernel^2 times columns times channels multiply-adds.
constexpr int kMostPeriod = 24, kMostUnrolled = 12000;

int bytes_of(DataType dtype) { return dtype == DataType::float64 ? 8 : dtype == DataType::float32 ? 4 : 2; }

int input_columns(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  return (tiling.columns - 1) * extents.stride + extents.kernel;
}

/// Of the output, whose windows overlap.
int live_rows(const DepthwiseExtents& extents) { return (extents.kernel - 1) / extents.stride + 1; }

/// What a thread has at a time.
struct ThreadRows {
  int ahead;   ///< elements on their way, as they are in memory
  int values;  ///< that are computed with: weights or their sums, rows whose windows overlap, the row at hand
  int sums;    ///< that a block adds up in shared memory, of each thread
};

ThreadRows rows_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  const int channels = tiling.channels, slots = tiling.ahead + 1, live = live_rows(extents), stride = extents.stride;
  const int taps = extents.kernel * extents.kernel * channels, tensors = extents.fused ? 2 : 1;
  const int narrow = tiling.columns * channels, wide = input_columns(tiling, extents) * channels;
  const int fused = extents.fused ? 1 : 0;
  switch (extents.direction) {
    case Direction::forward: {
      const int moments = extents.statistics ? 1 + 2 * channels : 0;
      return {slots * wide, taps + live * narrow + wide + 3 * channels, moments};
    }
    case Direction::grad_input: {
      const int grads = (tiling.columns + live - 1) * channels, row = narrow * stride;
      const int sums = extents.statistics ? 2 * channels : 0;
      return {slots * (tensors * grads + fused * stride * row),
              taps + live * stride * row + tensors * grads + fused * (2 * row + 8 * channels), sums};
    }
    case Direction::grad_weight:
      return {slots * (wide + tensors * narrow),
              taps + channels + live * narrow + wide + fused * (narrow + 5 * channels), taps + channels};
  }
  return {};
}

/// Registers of a gradient's kernel besides its values: addresses and bounds of tensors and, where they hold rows on
/// their way, these with their masks, offsets and masks of columns. Fitted to what nvrtc 13 makes for sm_90.
int gradient_registers(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  const bool is_input = extents.direction == Direction::grad_input;
  const int stride = extents.stride, tensors = extents.fused ? 2 : 1, fused = extents.fused ? 1 : 0;
  const int grads = tensors * (tiling.columns + (is_input ? live_rows(extents) - 1 : 0));
  // Rows of x: with the input's gradient so many as a stride has, if there is a prologue.
  const int x_rows = is_input ? fused * stride : 1;
  const int x_columns = is_input ? tiling.columns * stride : input_columns(tiling, extents);
  const int windows = tensors + (x_rows > 0 ? 1 : 0);
  constexpr int kOfKernel = 32, kOfWindow = 12, kOfInputCopies = 20, kOfWeightCopies = 40;
  const int always = kOfKernel + kOfWindow * windows;
  if (has_rows_in_memory(tiling, extents)) return always + fused * (is_input ? kOfInputCopies : kOfWeightCopies);
  const int words = (tiling.channels * bytes_of(extents.dtype) + 3) / 4;
  const int row = (grads + x_rows * x_columns) * words + tensors + x_rows;
  // Without branches for a prologue compilers load the rows of a whole period first, and then some; but for the
  // shortest periods.
  const int slots = tiling.ahead + 1, period = period_of(tiling, extents);
  const int rows = is_input || extents.fused || (period == slots && stride == 1) ? slots : period + tiling.ahead;
  return always + rows * row + 2 * (grads + (x_rows > 0 ? x_columns : 0));
}

}  // namespace

int period_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  const int rows = live_rows(extents) * (extents.direction == Direction::grad_input ? 1 : extents.stride);
  int period = rows;
  while (period % (tiling.ahead + 1) != 0) period += rows;
  return period;
}

Config config_of(const DepthwiseTiling& tiling) {
  return {{Knob::channels, tiling.channels},
          {Knob::columns, tiling.columns},
          {Knob::ahead, tiling.ahead},
          {Knob::block_n, tiling.block_n}};
}

DepthwiseTiling depthwise_tiling_of(const Config& config) {
  const DepthwiseTiling tiling{config[Knob::channels], config[Knob::columns], config[Knob::ahead],
                               config[Knob::block_n]};
  check(config == config_of(tiling) && tiling.channels > 0 && tiling.columns > 0 && tiling.block_n > 0, "config: \"",
        printed(config), "\" is no tiling of a depthwise convolution, as \"", printed(config_of({2, 4, 2, 4})),
        "\" is");
  return tiling;
}

bool has_rows_in_memory(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  return extents.copies_run_ahead && bytes_of(extents.dtype) * tiling.channels >= 4 &&
         (tiling.channels > 1 || extents.kernel > 3);
}

DepthwiseResources resources_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents,
                                const DeviceLimits& limits) {
  const int bytes = bytes_of(extents.dtype), accumulator = std::max(bytes, 4);
  const ThreadRows rows = rows_of(tiling, extents);
  const bool in_memory = has_rows_in_memory(tiling, extents);
  DepthwiseResources resources{};
  resources.limit_shared =
      std::min(limits.shared_bytes / tiling.block_n - limits.reserved_bytes, limits.block_shared_bytes);
  constexpr int kUnit = 8;  // registers are given out by so many
  resources.limit_registers = std::min(limits.registers / (tiling.block_n * kDepthwiseThreads) / kUnit * kUnit,
                                       limits.thread_registers - limits.matrix_registers);
  resources.used_shared = std::max(in_memory ? rows.ahead * bytes : 0, rows.sums * accumulator) * kDepthwiseThreads;
  const int values = accumulator / 4 * rows.values;
  resources.used_registers = extents.direction != Direction::forward
                                 ? values + gradient_registers(tiling, extents)
                                 : values + (in_memory ? 0 : (rows.ahead * bytes + 3) / 4) + kCompilersRegisters;
  return resources;
}

std::vector<DepthwiseTiling> depthwise_tilings(const DepthwiseExtents& extents, const DeviceLimits& limits) {
  std::vector<DepthwiseTiling> tilings;
  const int bytes = bytes_of(extents.dtype);
  for (int channels = 8; channels >= 1; channels /= 2) {
    if (channels > extents.joined_channels || channels * bytes > 16) continue;
    for (const int columns : {1, 2, 3, 4, 6, 8}) {
      if (columns > 1 && 2 * columns > 3 * extents.width) continue;
      for (int ahead = 0; ahead <= 6; ++ahead) {
        const DepthwiseTiling one{channels, columns, ahead, 1};
        const int period = period_of(one, extents);
        const bool in_memory = has_rows_in_memory(one, extents);
        if (period > kMostPeriod || (in_memory && ahead == 0) || (!in_memory && ahead > 3)) continue;
        const int strides = extents.direction == Direction::grad_input ? 1 : extents.stride;
        if (period * extents.kernel * extents.kernel * columns * channels > kMostUnrolled * strides) continue;
        // As many blocks as fit, and half of them: registers against waves.
        int most = 0;
        for (int block_n = 1; block_n <= limits.waves * limits.wave / kDepthwiseThreads; ++block_n) {
          if (resources_of({channels, columns, ahead, block_n}, extents, limits).fit()) most = block_n;
        }
        for (const int block_n : {most, (most + 1) / 2}) {
          const DepthwiseTiling tiling{channels, columns, ahead, block_n};
          if (block_n > 0 && (tilings.empty() || !(tilings.back() == tiling))) tilings.push_back(tiling);
        }
      }
    }
  }
  return tilings;
}

}  // namespace fusedsc::tuning
