#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

#include <algorithm>

#include "fusedsc/common/gpu/hopper_cluster.h"
#include "fusedsc/common/gpu/pointwise_launches.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kMultiprocessorMemory = 227 * 1024, kBlockReserve = 1024;  ///< bytes of block memory
constexpr int kResidentThreads = 512;                                    ///< at the 128 registers that most take
constexpr int kMostKeptStages = 6;
constexpr double kLastResort = 1e9;
/// Fitted to the times of all tiles on the layers of mobile networks on an H200, in microseconds, so that the choice is
/// near the best one; a single number says little.
struct KeptCost {
  double start, weight;                    ///< a kernel; per step (128 bytes of k) and 64 channels
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; per step; per 64 channels
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
  double memory, cache;                    ///< bytes, millions
  double copy = 0;                         ///< of a step, from its begin to its end
};
struct CutCost {
  double start, block;   ///< a kernel; a block
  double step;           ///< of a group
  double copied;         ///< bytes of a multiprocessor, millions
  double own;            ///< of a group: 64 channels that it finishes, of each tensor
  double memory, cache;  ///< bytes of all, millions
  double copy = 0;       ///< of a step, from its begin to its end
};
struct RowsCost {
  double start, memory;                   ///< as CutCost
  double round = 0, group = 0, step = 0;  ///< of a block: a tile of each of its groups; a group; a step but the first
};
struct Cost {
  KeptCost kept;
  CutCost cut;
};
/// Of each kind of kernel.
struct Costs {
  Cost plain, statistics, normalising, gradient, seams;

  const Cost& of(const PointwiseCase& product) const {
    const bool normalises = product.prologue && !product.has_other;
    switch (product.kind) {
      case EpilogueKind::plain:
      case EpilogueKind::inference: return normalises ? normalising : plain;
      case EpilogueKind::statistics: return normalises ? normalising : statistics;
      case EpilogueKind::gradient: return product.prologue ? seams : gradient;
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
    .seams = {{6.081, 0.4661, 0.2524, 0.6222, 1.543, 0.2058, 0.04608, 0.4744, 4.075, 6.295},
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
    .seams = {{4.445, 0.1568, 1.382, 0.6514, 0.03225, 0.08607, 0.006271, 0.501, 3.843, 6.414, 2.054},
              {1.382, 1.879, 0.002217, 0.05031, 0.3241, 2.57, 22.85, 0.2477}},
};
constexpr RowsCost kRowsCost{2.098, 5.131};
/// Where threads lay the weight out. Its start is set so that the others, whose costs are too low for such rows, are
/// taken only where they are as good.
constexpr RowsCost kLaidRowsCost{0.8, 4.05, 0.2, 0.05, 0.1};

/// Of input gradients of 16 bits without seams and with a small weight, at batches 4 to 64. Blocks that cut k are worth
/// it there only if they are few.
constexpr std::int64_t kLeastSmallWeight = 1'000, kMostSmallWeight = 10'000;
constexpr KeptCost kSmallKeptCost{1.312, 0.05755, 0.02503, 0.3795, 0.3728, 0.05991, 0.06544, 0.2559, 3.27, 6.198};
constexpr RowsCost kSmallRowsCost{4.9, 9.847};

constexpr FewCost kHalfFewCost{1.292, 0.09307, 6.24, 0.1008, 0.3035, 0.824, 0.6877, 0.05817, 0.09848, 0.02139};
constexpr FewCost kFloatFewCost{1.443, 0.1155, 6.122, 0.3111, 0.442, 0.9751, 0.3688, 0.1077, 0.0743, 0.009661};
constexpr TurningCost kTurningCost{0.7953, 0.01638, 0.2412, 1.541};

/// What each row of activations takes that begins at an odd multiple of 16 bytes, where the copy engine goes row by
/// row: of a multiprocessor, in microseconds; others are at work meanwhile where blocks keep their weight. FewCost
/// knows of none.
constexpr double kOddRowOfKept = 0.002, kOddRowOfCut = 0.01;
/// Fewer positions do not feel it.
constexpr std::int64_t kManyForCopyEngine = 4096;

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
    case PointwiseFamily::kept: {
      const KeptCost& kept = is_small ? kSmallKeptCost : cost.kept;
      const double latency = std::max(kept.tile + depth * kept.tile_depth + channels * kept.tile_channels,
                                      depth * kept.copy / launch.stages);
      const double work = row_tiles * (kept.work + depth * kept.work_depth + channels * kept.work_channels);
      return kept.start + kept.weight * depth * channels +
             std::max({group_tiles * rounds_of(size) * std::max(latency, work), (in + out) / kept.memory,
                       cached / kept.cache}) +
             kOddRowOfKept * odd_rows_of(product, instance, launch, size);
    }
    case PointwiseFamily::cut: {
      if (are_few(product, blocks * launch.cluster)) {
        return cost_of_few(problem.dtype == DataType::float32 ? kFloatFewCost : kHalfFewCost, product, instance,
                           launch);
      }
      if (is_small) return kLastResort;
      const CutCost& cut = cost.cut;
      const std::int64_t resident = std::max<std::int64_t>(
          1, std::min<std::int64_t>(
                 kMultiprocessorMemory / (instance.memory(product.memory_use(), launch.stages) + kBlockReserve),
                 kResidentThreads / instance.threads));
      const double beside = std::min(static_cast<double>(resident), rounds_of(size));
      const double copied = 128e-6 * (depth * 64 * (row_tiles * ins + channels) + row_tiles * 64 * channels * outs);
      const double block = cut.block + depth / instance.cut * std::max(cut.step, cut.copy / launch.stages) +
                           cut.own * row_tiles * channels * outs / instance.cut;
      return cut.start +
             std::max({rounds_of(resident * size) * (block + beside * copied / cut.copied), (in + out) / cut.memory,
                       cached / cut.cache}) +
             kOddRowOfCut * odd_rows_of(product, instance, launch, size);
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

/// Whether its rows in block memory would fall on different banks, and are short enough to be read through registers.
bool suits_rows(const PointwiseCase& product, const PointwiseInstance& instance) {
  const PointwiseProblem& problem = product.problem;
  // Longer rows were timed only where threads lay the weight out.
  const std::int64_t most_depth = product.has_slow_rows ? 120 : 72;
  const bool suits_channels = problem.channels <= 96 || (product.has_slow_rows && are_odd_rows(problem.channels));
  return product.is_dense && problem.channels <= instance.channels && suits_channels && problem.depth <= most_depth &&
         (are_odd_rows(problem.depth) || problem.depth == 16);
}

/// Whether threads lay the weight out in kernels of a family.
bool lays_out_in(PointwiseFamily family, const PointwiseCase& product) {
  constexpr std::int64_t kManyPositions = 25'000;
  if (product.lays_out || !product.has_slow_rows) return product.lays_out;
  const PointwiseProblem& problem = product.problem;
  const std::int64_t rows = product.input_gradient ? problem.depth : problem.channels;
  const std::int64_t row = product.input_gradient ? problem.channels : problem.depth;
  switch (family) {
    case PointwiseFamily::rows: return true;
    case PointwiseFamily::kept:
      return rows >= kManyRows &&
             (row * 2 <= kShortRow || (!product.input_gradient && problem.pixels >= kManyPositions));
    case PointwiseFamily::cut: return false;
  }
  return false;
}

/// Whether its steps are no shorter than they need be: with a prologue and statistics, half as many values of k at a
/// time are for products that have no more.
bool suits_depth(const PointwiseCase& product, const PointwiseInstance& instance) {
  const bool is_half = instance.depth * static_cast<int>(size_of(instance.dtype)) < 128;
  return !is_half || !instance.prologue || instance.kind != EpilogueKind::statistics ||
         product.problem.depth <= instance.depth;
}

}  // namespace

std::string why_not_hopper(DataType dtype, Device device, std::int64_t groups, std::int64_t pixels, bool takes_tf32) {
  const std::string elsewhere = needs_device(Device::gpu, device);
  if (!elsewhere.empty()) return elsewhere;
  if (size_of(dtype) != 2 && !(takes_tf32 && dtype == DataType::float32)) {
    return std::string("it is for float16 and bfloat16, and float32 where it may be TensorFloat-32; the tensors are ") +
           name_of(dtype);
  }
  if (groups != 1) return "it takes one group";
  if (pixels == 0) return "there are no positions";
  return is_hopper() ? "" : "the GPU is no Hopper";
}

bool suits_weight(const ConstTensorView& weight, const SlidingChannels& windows) {
  if (windows.channels > 0) return windows.channels % 8 == 0 && WeightSource::can_be(weight.sizes[0], windows);
  return suits_copy_engine(weight_matrix(weight, 1), weight.dtype);
}

bool lays_out_in_blocks(const ConstTensorView& weight, const SlidingChannels& windows) {
  constexpr std::int64_t kMost = 1 << 13;
  return windows.channels > 0 && weight.sizes[0] * windows.channels <= kMost;
}

bool has_slow_rows(const ConstTensorView& weight, const SlidingChannels& windows, std::int64_t positions) {
  constexpr std::int64_t kMost = 10'000;
  // A row at an odd multiple of 16 bytes takes the copy engine 10 to 17 ns where all blocks want it at once: 2.5 us for
  // 144 of them. Few blocks do not feel it.
  return windows.channels == 0 && size_of(weight.dtype) == 2 && are_odd_rows(weight.strides[0]) &&
         weight.sizes[0] * weight.sizes[1] <= kMost && positions >= kManyForCopyEngine;
}

bool can_turn(const PointwiseCase& product, int channels) { return product.turns_weight && channels % kTurned == 0; }

bool are_few(const PointwiseCase& product, std::int64_t blocks) {
  const PointwiseProblem& problem = product.problem;
  // Of all tensors: of larger ones the other costs are as good.
  const std::int64_t most_bytes = problem.dtype == DataType::float32 ? 10'000'000 : 4'000'000;
  const std::int64_t elements = problem.pixels * (problem.depth + problem.channels) + problem.depth * problem.channels;
  return product.is_plain() && elements * static_cast<std::int64_t>(size_of(problem.dtype)) <= most_bytes &&
         blocks <= multiprocessors();
}

bool suits_cluster(const PointwiseCase& product, int cluster, std::int64_t tiles, int steps) {
  return cluster == 1 || (product.kind == EpilogueKind::plain && !product.lays_out && product.is_dense &&
                          are_few(product, tiles * cluster) && steps >= cluster &&
                          tiles * cluster <= room_for_clusters(multiprocessors()));
}

namespace {

/// Each launch of an instance that fits, with its cost.
template <class Visit>
void for_each_launch(const PointwiseInstance& instance, const PointwiseCase& product, int size, const Visit& visit) {
  const PointwiseProblem& problem = product.problem;
  if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind) return;
  if (instance.family == PointwiseFamily::rows && !suits_rows(product, instance)) return;
  if (!suits_depth(product, instance)) return;
  PointwiseLaunch launch;
  launch.instance = &instance;
  launch.pixel_tiles = static_cast<int>(divide_up(problem.pixels, kTileRows));
  launch.channel_tiles = static_cast<int>(divide_up(problem.channels, instance.channels));
  // Tiles of whole rows go round the blocks before they go round a block's groups.
  const int tiles_in_block = instance.family == PointwiseFamily::rows ? 1 : instance.row_tiles;
  launch.splits = static_cast<int>(divide_up(launch.pixel_tiles, tiles_in_block));
  launch.lays_out = lays_out_in(instance.family, product);
  const bool is_cut = instance.family == PointwiseFamily::cut;
  // Of more blocks, each of which waits for its first copies, there was never use; nor is the cost known there.
  const bool has_seams = product.prologue || product.kind == EpilogueKind::gradient;
  const int most_rounds = problem.dtype == DataType::float32 ? 8 : has_seams ? 3 : 2;
  const bool is_last_resort =
      is_cut && std::int64_t{launch.channel_tiles} * launch.splits > std::int64_t{most_rounds} * size;
  if (!is_cut) launch.splits = std::min(std::max(size / launch.channel_tiles, 1), launch.splits);
  const auto steps = static_cast<int>(divide_up(divide_up(problem.depth, instance.depth), instance.cut));
  const std::int64_t tiles = std::int64_t{launch.channel_tiles} * launch.splits;
  // Blocks that stay, with all of block memory; or that come and go, two or three of them beside each other.
  for (const int beside : {1, 2, 3}) {
    if (beside > 1 && (!is_cut || tiles <= (beside - 1) * size)) break;
    const int memory = kMultiprocessorMemory / beside - (beside > 1 ? kBlockReserve : 0);
    for (const int cluster : kClusters) {
      if (cluster > 1 && (!is_cut || !suits_cluster(product, cluster, tiles, steps))) break;
      launch.cluster = cluster;
      launch.stages =
          is_cut ? std::max(static_cast<int>(divide_up(steps, cluster)), instance.least_stages) : kMostKeptStages;
      while (launch.stages >= instance.least_stages && instance.memory(product.memory_use(), launch.stages) > memory)
        --launch.stages;
      if (launch.stages < instance.least_stages) continue;
      const double cost = cost_of(product, instance, launch, size) + (is_last_resort ? kLastResort : 0);
      for (const bool turns : {false, true}) {
        if (turns && !can_turn(product, instance.channels)) break;
        launch.turns_weight = turns;
        launch.cost = cost + turning_cost(kTurningCost, product, launch, size);
        visit(launch);
      }
    }
  }
}

auto launches_of(const PointwiseCase& product) {
  return [&product, size = multiprocessors()](const PointwiseInstance& instance, const auto& visit) {
    for_each_launch(instance, product, size, visit);
  };
}

}  // namespace

PointwiseLaunch plan(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                     std::optional<PointwiseFamily> family) {
  return cheapest_launch<PointwiseLaunch>(instances, family, launches_of(product));
}

tuning::Configs configs_of(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                           PointwiseFamily family) {
  return launch_configs<PointwiseLaunch>(instances, family, launches_of(product));
}

PointwiseLaunch launch_with(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                            PointwiseFamily family, const tuning::Config& config) {
  return configured_launch<PointwiseLaunch>(instances, family, config, launches_of(product));
}

void PointwiseLaunch::fill(const PointwiseCase& product, PointwiseParameters& p) const {
  p.pixels = static_cast<int>(product.problem.pixels);
  p.depth = static_cast<int>(product.problem.depth);
  p.channels = static_cast<int>(product.problem.channels);
  p.pixel_tiles = pixel_tiles;
  p.channel_tiles = channel_tiles;
  p.splits = splits;
  p.stages = stages;
  p.cluster = cluster;
  p.turns_weight = turns_weight;
  p.has_other = product.has_other;
  p.epilogue.has_x = product.has_x;
  p.epilogue.has_added = product.has_added;
}

void PointwiseLaunch::start(const char* name, const PointwiseCase& product, const PointwiseParameters& parameters,
                            void* stream) const {
  const std::int64_t blocks = std::int64_t{channel_tiles} * splits * cluster;
  const auto memory = static_cast<std::size_t>(instance->memory(product.memory_use(), stages));
  if (cluster == 1)
    return launch_following(name, instance->kernel, blocks, instance->threads, stream, parameters, memory);
  launch_clusters(name, instance->kernel, blocks, instance->threads, stream, parameters,
                  std::max(memory, cluster_bytes(instance->row_tiles, instance->channels)), cluster);
}

}  // namespace fusedsc::gpu::hopper
#endif
