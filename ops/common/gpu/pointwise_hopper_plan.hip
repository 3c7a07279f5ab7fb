#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

#include <algorithm>

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr int kMultiprocessorMemory = 227 * 1024, kBlockReserve = 1024;  ///< bytes of block memory
constexpr int kResidentThreads = 512;                                    ///< at the 128 registers that most take
constexpr int kMostKeptStages = 6;
constexpr double kLastResort = 1e9;
constexpr double kRowsStart = 2.098, kRowsMemory = 5.131;  ///< of tiles of rows, as CutCost

/// Fitted to the times of all tiles on the layers of mobile networks on an H200, in microseconds, so that the choice is
/// near the best one; a single number says little.
struct KeptCost {
  double start, weight;                    ///< a kernel; per 64 values of k and 64 channels
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; per 64 values of k; per 64 channels
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
  double memory, cache;                    ///< bytes, millions
};
struct CutCost {
  double start, block;   ///< a kernel; a block
  double step;           ///< of a group: 64 values of k
  double copied;         ///< bytes of a multiprocessor, millions
  double own;            ///< of a group: 64 channels that it finishes, of each tensor
  double memory, cache;  ///< bytes of all, millions
};
struct Cost {
  KeptCost kept;
  CutCost cut;
};
Cost cost_of(EpilogueKind kind, bool prologue) {
  constexpr Cost kPlain{{1.298, 0.09055, 0.1356, 0.3596, 0.1419, 0.05714, 0.06638, 0.2414, 3.243, 11.08},
                        {0.7022, 0.951, 0.0003499, 0.08724, 0.1193, 3.054, 52.75}};
  constexpr Cost kStatistics{{4.345, 0.2485, 0.2055, 0.3124, 0.0, 0.0005218, 0.1079, 0.2466, 4.188, 9.424},
                             {3.7, 0.951, 0.0003499, 0.08724, 0.1193, 3.054, 52.75}};
  constexpr Cost kNormalising{{5.004, 0.1729, 0.4162, 0.3941, 0.06696, 0.0, 0.2399, 0.01799, 3.856, 17.62},
                              {1.035, 2.688, 0.2724, 0.09224, 0.8036, 1.489, 8.801}};
  constexpr Cost kGradient{{3.75, 0.5501, 0.2286, 0.4044, 1.004, 0.007098, 0.06822, 0.6204, 121.9, 9.477},
                           {1.733, 0.3743, 0.0001919, 0.07618, 0.5139, 2.578, 5.099}};
  constexpr Cost kSeams{{6.081, 0.4661, 0.2524, 0.6222, 1.543, 0.2058, 0.04608, 0.4744, 4.075, 6.295},
                        {2.043, 0.0004434, 0.0, 0.04674, 0.3952, 1.7, 5.914}};
  switch (kind) {
    case EpilogueKind::plain: return kPlain;
    case EpilogueKind::inference: return prologue ? kNormalising : kPlain;
    case EpilogueKind::statistics: return prologue ? kNormalising : kStatistics;
    case EpilogueKind::gradient: return prologue ? kSeams : kGradient;
  }
  return kPlain;
}

double cost_of(const PointwiseCase& product, const PointwiseInstance& instance, const PointwiseLaunch& launch,
               int size) {
  const PointwiseProblem& problem = product.problem;
  const Cost cost = cost_of(product.kind, product.prologue);
  const double depth = static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth) / 64;
  const double channels = instance.channels / 64.0, row_tiles = instance.row_tiles, splits = launch.splits;
  const double ins = product.has_other ? 2 : 1, outs = 1 + (product.has_x ? 1 : 0) + (product.has_added ? 1 : 0);
  const double bytes = 2e-6 * static_cast<double>(problem.pixels),
               in = ins * bytes * static_cast<double>(problem.depth),
               out = outs * bytes * static_cast<double>(problem.channels),
               weight = 2e-6 * static_cast<double>(problem.depth * problem.channels);
  const double cached = in * launch.channel_tiles + out + weight * splits;
  const std::int64_t blocks = std::int64_t{launch.channel_tiles} * launch.splits;
  const auto rounds_of = [&](std::int64_t at_once) { return static_cast<double>(divide_up(blocks, at_once)); };
  switch (instance.family) {
    case PointwiseFamily::kept: {
      const KeptCost& kept = cost.kept;
      const double latency = kept.tile + depth * kept.tile_depth + channels * kept.tile_channels;
      const double work = row_tiles * (kept.work + depth * kept.work_depth + channels * kept.work_channels);
      const auto tiles =
          static_cast<double>(divide_up(launch.pixel_tiles, std::int64_t{launch.splits} * instance.row_tiles));
      return kept.start + kept.weight * depth * channels +
             std::max(
                 {tiles * rounds_of(size) * std::max(latency, work), (in + out) / kept.memory, cached / kept.cache});
    }
    case PointwiseFamily::cut: {
      const CutCost& cut = cost.cut;
      const std::int64_t resident = std::max<std::int64_t>(
          1, std::min<std::int64_t>(
                 kMultiprocessorMemory / (instance.memory(product.memory_use(), launch.stages) + kBlockReserve),
                 kResidentThreads / instance.threads));
      const double beside = std::min(static_cast<double>(resident), rounds_of(size));
      const double copied = 128e-6 * (depth * 64 * (row_tiles * ins + channels) + row_tiles * 64 * channels * outs);
      const double block =
          cut.block + depth / instance.cut * cut.step + cut.own * row_tiles * channels * outs / instance.cut;
      return cut.start + std::max({rounds_of(resident * size) * (block + beside * copied / cut.copied),
                                   (in + out) / cut.memory, cached / cut.cache});
    }
    case PointwiseFamily::rows: return kRowsStart + (in + out) / kRowsMemory;
  }
  return 0;
}

/// Whether its rows in block memory would fall on different banks, and are few enough to be read through registers.
bool suits_rows(const PointwiseCase& product, const PointwiseInstance& instance) {
  constexpr std::int64_t kMostDepth = 72;
  const PointwiseProblem& problem = product.problem;
  return product.is_dense && problem.channels <= instance.channels && problem.depth <= kMostDepth &&
         (problem.depth % 16 != 0 || problem.depth == 16);
}

}  // namespace

std::string why_not_hopper(DataType dtype, Device device, std::int64_t groups, std::int64_t pixels) {
  const std::string elsewhere = needs_device(Device::gpu, device);
  if (!elsewhere.empty()) return elsewhere;
  if (size_of(dtype) != 2) return std::string("it is for float16 and bfloat16, the tensors are ") + name_of(dtype);
  if (groups != 1) return "it takes one group";
  if (pixels == 0) return "there are no positions";
  return is_hopper() ? "" : "the GPU is no Hopper";
}

bool suits_weight(const ConstTensorView& weight, const SlidingChannels& windows) {
  if (windows.channels > 0) return WeightSource::can_be(weight.sizes[0], windows);
  return suits_copy_engine(weight_matrix(weight, 1));
}

PointwiseLaunch plan(std::span<const PointwiseInstance> instances, const PointwiseCase& product) {
  const PointwiseProblem& problem = product.problem;
  const int size = multiprocessors();
  PointwiseLaunch best;
  double least_cost = std::numeric_limits<double>::infinity();
  for (const PointwiseInstance& instance : instances) {
    if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind)
      continue;
    if (instance.family == PointwiseFamily::rows && !suits_rows(product, instance)) continue;
    PointwiseLaunch launch;
    launch.instance = &instance;
    launch.pixel_tiles = static_cast<int>(divide_up(problem.pixels, kTileRows));
    launch.channel_tiles = static_cast<int>(divide_up(problem.channels, instance.channels));
    launch.splits = static_cast<int>(divide_up(launch.pixel_tiles, instance.row_tiles));
    const bool is_cut = instance.family == PointwiseFamily::cut;
    // Of more blocks, each of which waits for its first copies, there was never use; nor is the cost known there.
    const int most_rounds = product.prologue || product.kind == EpilogueKind::gradient ? 3 : 2;
    const bool is_last_resort =
        is_cut && std::int64_t{launch.channel_tiles} * launch.splits > std::int64_t{most_rounds} * size;
    if (!is_cut) launch.splits = std::min(std::max(size / launch.channel_tiles, 1), launch.splits);
    const auto steps = static_cast<int>(divide_up(divide_up(problem.depth, instance.depth), instance.cut));
    // Blocks that stay, with all of block memory; or that come and go, two or three of them beside each other.
    for (const int beside : {1, 2, 3}) {
      if (beside > 1 && launch.channel_tiles * launch.splits <= (beside - 1) * size) break;
      launch.stages = is_cut ? std::max(steps, instance.least_stages) : kMostKeptStages;
      const int memory = kMultiprocessorMemory / beside - (beside > 1 ? kBlockReserve : 0);
      while (launch.stages >= instance.least_stages && instance.memory(product.memory_use(), launch.stages) > memory)
        --launch.stages;
      if (launch.stages < instance.least_stages || (!is_cut && beside > 1)) break;
      const double cost = cost_of(product, instance, launch, size) + (is_last_resort ? kLastResort : 0);
      if (cost >= least_cost) continue;
      least_cost = cost;
      best = launch;
    }
  }
  return best;
}

void PointwiseLaunch::fill(const PointwiseCase& product, PointwiseParameters& p) const {
  p.pixels = static_cast<int>(product.problem.pixels);
  p.depth = static_cast<int>(product.problem.depth);
  p.channels = static_cast<int>(product.problem.channels);
  p.pixel_tiles = pixel_tiles;
  p.channel_tiles = channel_tiles;
  p.splits = splits;
  p.stages = stages;
  p.has_other = product.has_other;
  p.epilogue.has_x = product.has_x;
  p.epilogue.has_added = product.has_added;
}

void PointwiseLaunch::start(const char* name, const PointwiseCase& product, const PointwiseParameters& parameters,
                            void* stream) const {
  const int memory = instance->memory(product.memory_use(), stages);
  launch_following(name, instance->kernel, std::int64_t{channel_tiles} * splits, instance->threads, stream, parameters,
                   static_cast<std::size_t>(memory));
}

}  // namespace fusedsc::gpu::hopper
#endif
