#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"

#include <algorithm>
#include <cmath>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_runs.h"

namespace fusedsc::gpu {

std::string why_no_fragments(std::initializer_list<ConstTensorView> tensors, std::int64_t groups, bool allow_tf32) {
  if (!kWaveProducts) return "this build's GPUs have no products of matrices by 32 threads";
  for (const ConstTensorView& tensor : tensors) {
    if (!tensor) continue;
    if (size_of(tensor.dtype) != 2 && !uses_tf32(tensor.dtype, allow_tf32)) {
      return std::string(
                 "it is for float16 and bfloat16, and float32 where it may be TensorFloat-32; the tensors are ") +
             name_of(tensor.dtype);
    }
    const auto run = static_cast<std::int64_t>(16 / size_of(tensor.dtype));
    if (tensor.sizes[1] / groups % run != 0) {
      return "a group has " + std::to_string(tensor.sizes[1] / groups) + " channels, not a multiple of " +
             std::to_string(run);
    }
    const PointwiseMatrix matrix = activation_matrix(tensor, groups, true);
    if (!matrix.is_linear) return "positions of an image do not lie at equal distances in memory";
    if (matrix.first >= kMostRowElements) return "positions lie too far apart in memory";
    if (matrix.run_bytes != 16) {
      return std::to_string(run) +
             " channels of a position are not together in memory, at an address that is a multiple of 16";
    }
  }
  return {};
}

std::string why_no_fragments_of(const ConstTensorView& weight) {
  if (weight_matrix(weight, 1).run_bytes == 16) return {};
  return std::to_string(16 / size_of(weight.dtype)) +
         " channels of an output's weight are not together in memory, at an address that is a multiple of 16";
}

std::string why_no_packed_fragments(std::initializer_list<ConstTensorView> tensors, const ConstTensorView& weight,
                                    std::int64_t groups) {
  if (!kWaveProducts) return "this build's GPUs have no products of matrices by 32 threads";
  constexpr std::uintptr_t kWord = 4;
  const auto is_aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kWord == 0; };
  for (const ConstTensorView& tensor : tensors) {
    if (!tensor) continue;
    if (size_of(tensor.dtype) != 2) return "elements have no 16 bits";
    if (tensor.sizes[1] / groups % 2 != 0) {
      return "a group has " + std::to_string(tensor.sizes[1] / groups) + " channels, not a multiple of 2";
    }
    const PointwiseMatrix matrix = activation_matrix(tensor, groups, true);
    if (!matrix.is_linear) return "positions of an image do not lie at equal distances in memory";
    if (matrix.first >= kMostRowElements) return "positions lie too far apart in memory";
    const std::int64_t positions = tensor.sizes[0] * tensor.sizes[2] * tensor.sizes[3];
    if (matrix.second != 1 || !is_aligned(tensor.data) || (positions > 1 && matrix.first % 2 != 0)) {
      return "2 channels of a position are not together in memory, at an address that is a multiple of 4";
    }
  }
  if (weight && (weight.strides[1] != 1 || !is_aligned(weight.data) || weight.strides[0] % 2 != 0)) {
    return "2 channels of an output's weight are not together in memory, at an address that is a multiple of 4";
  }
  return {};
}

namespace {

/// Of packed rows: the time that the busiest part of a multiprocessor needs.
double counted_packed(const PointwiseProblem& problem, const tuning::Config& config, const FragmentWarp& warp,
                      const FragmentNeeds& needs, int resident, int multiprocessors,
                      const PointwiseProductParameters& product) {
  // Of a warp's tile. Shared memory moves 128 bytes in a cycle, tensor cores 1,024 multiply-adds; of memory a
  // multiprocessor has some 20 bytes in a cycle (H200: 4.8 TB/s, 132 of 1.8 GHz), and a warp waits 800 for it.
  constexpr double kSharedBytes = 128, kMultiplyAdds = 1024, kMemoryBytes = 20, kLatency = 800;
  const double warps = warp.warps, parts = config[tuning::Knob::groups];
  const double positions = warp.positions, columns = config[tuning::Knob::columns];
  const double all_chunks = static_cast<double>(divide_up(problem.depth, 32));
  const double chunks = std::ceil(all_chunks / parts);  // of a warp: parts share them
  const double operands = needs.shape.has_other ? 2 : 1, results = 1 + needs.shape.extras;
  const double channels = std::min(columns, static_cast<double>(problem.channels));
  const double bytes = 2 * positions * (static_cast<double>(problem.depth) * operands + channels * results) / parts;
  const bool fused = needs.fusion != FragmentFusion::none;

  // Loads of the weight, 16 bytes a lane; of activations and of the epilogue, words, two of which meet on a bank.
  const double weight_loads = chunks * columns / 8, words = chunks * positions / 2 * operands;
  const double epilogue_words = positions * columns / 64 * results / parts;
  const double exchanged = parts > 1 ? positions * columns / 32 * 2 / 4 : 0;  // sums of parts, 16 bytes a lane
  const double shared = (weight_loads + exchanged) * 4 + (words + epilogue_words) * 2 + bytes / kSharedBytes;
  // An element of a prologue: conversion, multiply-add, two to clamp, conversion; of an epilogue likewise, and moments.
  const double products = chunks * columns / 16 * positions / 4;
  const double values = chunks * positions * operands, result_values = positions * columns / 32 / parts;
  const double instructions = products + weight_loads + exchanged + words + epilogue_words + bytes / 512 * 12 +
                              (fused ? values * 4 : 0) + result_values * (fused ? 2 + 3 * results : 1.5);
  const double product_cycles = positions * columns * chunks * 32 / kMultiplyAdds;
  const double each = std::max({shared, instructions / 4, product_cycles, bytes / kMemoryBytes});
  const double alone = std::max(kLatency, 2 * instructions);  // a warp issues an instruction in two cycles at most

  const std::int64_t blocks = product.blocks();
  const double tiles = static_cast<double>(divide_up(product.pixel_tiles, product.splits));
  const double together = static_cast<double>(divide_up(std::min<std::int64_t>(blocks, resident), multiprocessors));
  const double start = 2 * kLatency + together * all_chunks * 64 * columns / kMemoryBytes;
  return static_cast<double>(divide_up(blocks, resident)) * (start + tiles * std::max(together * warps * each, alone));
}

double counted(const PointwiseProblem& problem, const tuning::Config& config, const FragmentWarp& warp,
               const FragmentNeeds& needs, int resident, int multiprocessors,
               const PointwiseProductParameters& product) {
  // Cycles of a multiprocessor: shared memory moves 128 bytes in one; of the second-level cache it has some 16 where
  // all multiprocessors read, and 30 alone; a warp issues an instruction in two; it waits 1,500 for memory, 50 for a
  // barrier, and 300 at a tile's end.
  constexpr double kSharedBytes = 128, kCacheBytes = 16, kAloneBytes = 30, kIssue = 2, kLatency = 1500, kBarrier = 50,
                   kEnd = 300;
  const double bytes = static_cast<double>(size_of(problem.dtype)), chunk = 64 / bytes, warps = warp.warps;
  const double multiply_adds = bytes == 2 ? 1024 : 512;
  const double rows = config[tuning::Knob::rows], columns = config[tuning::Knob::columns],
               parts = config[tuning::Knob::groups];
  const std::int64_t step =
      std::max<std::int64_t>(config[tuning::Knob::depth], static_cast<std::int64_t>(chunk * parts));
  const double depth = static_cast<double>(divide_up(problem.depth, step) * step), chunks = depth / chunk;
  const bool fused = needs.fusion != FragmentFusion::none;
  const double operands = needs.shape.has_other ? 2 : 1, results = 1 + needs.shape.extras;

  // Of a warp and a chunk: reads of 512 bytes, products, copies of 512 bytes with their addresses, prologue.
  const double reads = warp.channels / 8.0 + warp.positions / 8.0 * operands;
  const double products = warp.channels / 16.0 * 2 * warp.positions / 8.0;
  const double copied = 64 * (rows * operands / parts + (warp.streams ? columns : 0));  // bytes of a block
  const double copies = copied / 512 / warps;
  const double values = warp.positions * chunk / 32 * operands;
  const bool rounds = bytes == 4;
  const double rounding = rounds ? warp.positions / 8.0 * 4 + (warp.streams ? columns / 32.0 * 6 : 0) : 0;
  const double instructions = reads + products + copies * 3 + rounding + (fused ? values * 2 : 0) + 90;
  const double shared = (warps * reads * 512 + copied * (rounds && warp.streams ? 2 : 1)) / kSharedBytes;
  const double multiplied = rows / parts * columns * chunk / multiply_adds;
  const double each = std::max({instructions * kIssue, shared, multiplied, copied / kAloneBytes});
  // Alone a block waits for what it reads, of which all stages but one are under way.
  const double of_step = chunk * parts / static_cast<double>(step);
  const double alone = std::max({each, multiplied + instructions + (warp.streams ? kBarrier * of_step : 0),
                                 kLatency / (config[tuning::Knob::stages] - 1) * of_step});

  // Of a tile: its results, and sums of parts by way of shared memory.
  const double end_values = warp.positions * static_cast<double>(warp.channels) / 32;
  const double stored = rows * columns * bytes * results;
  const double end =
      std::max(end_values * kIssue * (fused ? 8 + 8 * results : 3) * (parts > 1 ? 2 : 1), stored / kAloneBytes);

  const std::int64_t blocks = product.blocks();
  const double tiles = static_cast<double>(divide_up(product.pixel_tiles, product.splits));
  const double beside = static_cast<double>(divide_up(std::min<std::int64_t>(blocks, resident), multiprocessors));
  const double weight = warp.streams ? 0 : depth * columns * bytes;
  const double start =
      2 * kLatency + beside * weight * 4 / kAloneBytes;  // copied, then read and written, once and again
  const double tile = std::max(beside * (chunks * each + end), chunks / parts * alone + 2 * end + kBarrier + kEnd);
  const double busiest = static_cast<double>(divide_up(blocks, resident)) * (start + tiles * tile);
  const double all_tiles = static_cast<double>(product.pixel_tiles) * product.channel_tiles * product.groups;
  const double all_bytes = all_tiles * (chunks * copied + stored) + static_cast<double>(blocks) * weight;
  // Where all of memory's traffic binds, what a multiprocessor has to do still tells configs apart.
  return std::max(busiest, all_bytes / kCacheBytes / multiprocessors) + busiest / 2;
}

}  // namespace

double plan_fragments(const FragmentProblem& problem, const tuning::Config& config, const FragmentWarp& warp,
                      int resident, int multiprocessors, PointwiseProductParameters& product) {
  using enum tuning::Knob;
  const int parts = config[groups];
  const PointwiseTile tile{config[rows], config[columns], 32 * parts, parts,
                           problem.product.dtype == DataType::float32};
  plan_product(problem.product, tile, resident, multiprocessors, product);
  const auto count = problem.needs.packed ? counted_packed : counted;
  return count(problem.product, config, warp, problem.needs, resident, multiprocessors, product);
}

}  // namespace fusedsc::gpu
