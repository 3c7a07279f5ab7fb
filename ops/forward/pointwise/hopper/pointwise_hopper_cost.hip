#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_cost.h"

#include <algorithm>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kResidentThreads = 512;  ///< at the 128 registers that most take

/// Fitted to the times of all tiles on the layers of mobile networks on an H200, in microseconds, so that the choice is
/// near the best one; a single number says little.
struct ResidentCost {
  double start, weight;                    ///< a kernel; per step (128 bytes of k) and 64 channels
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; per step; per 64 channels
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
  double memory, cache;                    ///< bytes, millions
  double copy = 0;                         ///< of a step, from its begin to its end
};
struct SlicedKCost {
  double start, block;   ///< a kernel; a block
  double step;           ///< of a group
  double copied;         ///< bytes of a multiprocessor, millions
  double own;            ///< of a group: 64 channels that it finishes, of each tensor
  double memory, cache;  ///< bytes of all, millions
  double copy = 0;       ///< of a step, from its begin to its end
};
struct RowsCost {
  double start, memory;                   ///< as SlicedKCost
  double round = 0, group = 0, step = 0;  ///< of a block: a tile of each of its groups; a group; a step but the first
};
struct Cost {
  ResidentCost resident_weight;
  SlicedKCost sliced_k;
};
/// Of each kind of kernel.
struct Costs {
  Cost plain, statistics, normalising, gradient, fused;

  const Cost& of(const PointwiseCase& product) const {
    const bool normalises = product.prologue && !product.has_other;
    switch (product.kind) {
      case EpilogueKind::plain:
      case EpilogueKind::inference: return normalises ? normalising : plain;
      case EpilogueKind::statistics: return normalises ? normalising : statistics;
      case EpilogueKind::gradient: return product.prologue ? fused : gradient;
    }
    return plain;
  }
};
constexpr Costs kCosts{
    .plain = {{1.298, 0.09055, 0.1356, 0.3596, 0.1419, 0.05714, 0.06638, 0.2414, 3.243, 11.08},
              {0.7022, 0.951, 0.0003499, 0.08724, 0.1193, 3.054, 52.75}},
    .statistics = {{4.345, 0.2485, 0.2055, 0.3124, 0.0, 0.0005218, 0.1079, 0.2466, 4.188, 9.424},
                   {3.7, 0.951, 0.0003499, 0.08724, 0.1193, 3.054, 52.75}},
    .normalising = {{4.148, 0.09853, 0.2253, 0.1548, 0.6533, 0.0009425, 0.2233, 0.0001624, 3.375, 6.6},
                    {0.04237, 2.54, 0.1306, 0.07316, 0.00006414, 1.566, 14.88}},
    .gradient = {{3.75, 0.5501, 0.2286, 0.4044, 1.004, 0.007098, 0.06822, 0.6204, 121.9, 9.477},
                 {1.733, 0.3743, 0.0001919, 0.07618, 0.5139, 2.578, 5.099}},
    .fused = {{6.081, 0.4661, 0.2524, 0.6222, 1.543, 0.2058, 0.04608, 0.4744, 4.075, 6.295},
              {2.043, 0.0004434, 0.0, 0.04674, 0.3952, 1.7, 5.914}},
};
/// Of float32, where a step has 32 values of k.
constexpr Costs kFloatCosts{
    .plain = {{1.425, 0.2336, 0.05103, 0.3968, 0.01026, 0.009733, 0.02916, 0.5136, 4.778, 7.736, 1.892},
              {1.323, 0.6621, 0.02275, 0.06081, 0.3009, 3.057, 12.08, 0.1134}},
    .statistics = {{2.128, 0.1925, 0.04831, 0.3762, 0.03501, 0.01261, 0.1279, 0.4776, 4.45, 15.87, 2.372},
                   {1.177, 1.395, 0.006841, 0.0665, 0.4159, 2.989, 45.96, 0.4433}},
    .normalising = {{4.375, 0.2282, 0.4548, 0.484, 0.0881, 0.001431, 0.03732, 0.7177, 3.949, 5.939, 1.127},
                    {1.308, 2.041, 0.08014, 0.06649, 1.096, 2.419, 33.05, 0.3265}},
    .gradient = {{3.635, 0.6599, 1.206, 0.5487, 0.02121, 0.06287, 0.02781, 1.182, 3.646, 7.54, 1.838},
                 {0.8113, 1.628, 0.004284, 0.0516, 0.3519, 2.394, 46.31, 0.1404}},
    .fused = {{4.445, 0.1568, 1.382, 0.6514, 0.03225, 0.08607, 0.006271, 0.501, 3.843, 6.414, 2.054},
              {1.382, 1.879, 0.002217, 0.05031, 0.3241, 2.57, 22.85, 0.2477}},
};
constexpr RowsCost kRowsCost{2.098, 5.131};
/// Where threads lay the weight out. Its start is set so that the others, whose costs are too low for such rows, are
/// taken only where they are as good.
constexpr RowsCost kLaidRowsCost{0.8, 4.05, 0.2, 0.05, 0.1};

/// Of input gradients of 16 bits without fusion and with a small weight, at batches 4 to 64. Blocks that cut k are
/// worth it there only if they are few.
constexpr std::int64_t kLeastSmallWeight = 1'000, kMostSmallWeight = 10'000;
constexpr ResidentCost kSmallResidentCost{1.312,   0.05755, 0.02503, 0.3795, 0.3728,
                                          0.05991, 0.06544, 0.2559,  3.27,   6.198};
constexpr RowsCost kSmallRowsCost{4.9, 9.847};

constexpr LatencyCost kHalfLatencyCost{1.292, 0.09307, 6.24, 0.1008, 0.3035, 0.824, 0.6877, 0.05817, 0.09848, 0.02139};
constexpr LatencyCost kFloatLatencyCost{1.443, 0.1155, 6.122, 0.3111, 0.442, 0.9751, 0.3688, 0.1077, 0.0743, 0.009661};

/// What each row of activations takes that begins at an odd multiple of 16 bytes, where TMA goes row by
/// row: of a multiprocessor, in microseconds; others are at work meanwhile where blocks keep their weight. LatencyCost
/// knows of none.
constexpr double kOddRowOfResident = 0.002, kOddRowOfSlicedK = 0.01;

/// How many such rows a multiprocessor copies, of products whose costs were fitted to others.
double odd_rows_of(const PointwiseCase& product, const PointwiseInstance& instance, const PointwiseLaunch& launch,
                   int size) {
  const PointwiseProblem& problem = product.problem;
  if (size_of(problem.dtype) != 2 || !product.is_plain() || problem.pixels < kManyForCopyEngine) return 0;
  const std::int64_t ins = are_odd_rows(problem.depth) ? divide_up(problem.depth, instance.depth) : 0,
                     outs = are_odd_rows(problem.channels) ? 1 + (product.has_added ? 1 : 0) : 0;
  return static_cast<double>(problem.pixels * launch.channel_tiles * (ins + outs)) / size;
}

bool has_small_costs(const PointwiseCase& product) {
  const PointwiseProblem& problem = product.problem;
  const std::int64_t weight = problem.depth * problem.channels;
  return product.input_gradient && !product.prologue && product.kind == EpilogueKind::plain &&
         size_of(problem.dtype) == 2 && weight >= kLeastSmallWeight && weight <= kMostSmallWeight;
}

}  // namespace

double cost_of(const PointwiseCase& product, const PointwiseInstance& instance, const PointwiseLaunch& launch,
               int size) {
  const PointwiseProblem& problem = product.problem;
  const Costs& costs = problem.dtype == DataType::float32 ? kFloatCosts : kCosts;
  const Cost& cost = costs.of(product);
  const auto size_of_element = static_cast<double>(size_of(problem.dtype));
  const double depth =
      static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth) * size_of_element / 128;
  const double channels = instance.channels / 64.0, row_tiles = instance.row_tiles, splits = launch.splits;
  const double ins = product.has_other ? 2 : 1, outs = 1 + (product.has_x ? 1 : 0) + (product.has_added ? 1 : 0);
  const double bytes = 1e-6 * size_of_element * static_cast<double>(problem.pixels),
               in = ins * bytes * static_cast<double>(problem.depth),
               out = outs * bytes * static_cast<double>(problem.channels),
               weight = 1e-6 * size_of_element * static_cast<double>(problem.depth * problem.channels);
  const double cached = in * launch.channel_tiles + out + weight * splits;
  const std::int64_t blocks = std::int64_t{launch.channel_tiles} * launch.splits;
  const bool is_small = has_small_costs(product);
  const auto group_tiles =  // of blocks that stay
      static_cast<double>(divide_up(launch.pixel_tiles, std::int64_t{launch.splits} * instance.row_tiles));
  const auto rounds_of = [&](std::int64_t at_once) { return static_cast<double>(divide_up(blocks, at_once)); };
  switch (instance.family) {
    case PointwiseFamily::resident: {
      const ResidentCost& resident_weight = is_small ? kSmallResidentCost : cost.resident_weight;
      const double latency =
          std::max(resident_weight.tile + depth * resident_weight.tile_depth + channels * resident_weight.tile_channels,
                   depth * resident_weight.copy / launch.stages);
      const double work = row_tiles * (resident_weight.work + depth * resident_weight.work_depth +
                                       channels * resident_weight.work_channels);
      return resident_weight.start + resident_weight.weight * depth * channels +
             std::max({group_tiles * rounds_of(size) * std::max(latency, work), (in + out) / resident_weight.memory,
                       cached / resident_weight.cache}) +
             kOddRowOfResident * odd_rows_of(product, instance, launch, size);
    }
    case PointwiseFamily::sliced_k: {
      if (is_latency_bound(product, blocks * launch.cluster)) {
        return latency_bound_cost(problem.dtype == DataType::float32 ? kFloatLatencyCost : kHalfLatencyCost, product,
                                  instance, launch);
      }
      if (is_small) return kLastResort;
      const SlicedKCost& sliced_k = cost.sliced_k;
      const std::int64_t resident = std::max<std::int64_t>(
          1, std::min<std::int64_t>(
                 kMultiprocessorMemory / (instance.memory(product.memory_use(), launch.stages) + kBlockReserve),
                 kResidentThreads / instance.threads));
      const double beside = std::min(static_cast<double>(resident), rounds_of(size));
      const double copied = 128e-6 * (depth * 64 * (row_tiles * ins + channels) + row_tiles * 64 * channels * outs);
      const double block = sliced_k.block +
                           depth / instance.k_slices * std::max(sliced_k.step, sliced_k.copy / launch.stages) +
                           sliced_k.own * row_tiles * channels * outs / instance.k_slices;
      return sliced_k.start +
             std::max({rounds_of(resident * size) * (block + beside * copied / sliced_k.copied),
                       (in + out) / sliced_k.memory, cached / sliced_k.cache}) +
             kOddRowOfSlicedK * odd_rows_of(product, instance, launch, size);
    }
    case PointwiseFamily::rows: {
      const RowsCost& rows = product.has_slow_rows ? kLaidRowsCost : is_small ? kSmallRowsCost : kRowsCost;
      const auto steps = static_cast<double>(divide_up(problem.depth, instance.depth));
      return rows.start + (in + out) / rows.memory + rows.round * group_tiles + rows.group * row_tiles +
             rows.step * (steps - 1);
    }
  }
  return 0;
}

bool is_latency_bound(const PointwiseCase& product, std::int64_t blocks) {
  const PointwiseProblem& problem = product.problem;
  // Of all tensors: of larger ones the other costs are as good.
  const std::int64_t most_bytes = problem.dtype == DataType::float32 ? 10'000'000 : 4'000'000;
  const std::int64_t elements = problem.pixels * (problem.depth + problem.channels) + problem.depth * problem.channels;
  return product.is_plain() && elements * static_cast<std::int64_t>(size_of(problem.dtype)) <= most_bytes &&
         blocks <= multiprocessors();
}

}  // namespace fusedsc::gpu::hopper
#endif
