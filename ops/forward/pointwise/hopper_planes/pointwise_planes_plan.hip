#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_plan.h"

#include <algorithm>
#include <numeric>

#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_cost.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr std::int64_t kLeastPositions = 16;
constexpr int kMostParts = 4;  ///< groups of a block that can share an image
constexpr int kMostStages = 6;
constexpr int kResidentThreads = 512;  ///< at the 128 registers that most take

std::int64_t positions_of(const ConstTensorView& planes) { return planes.sizes[2] * planes.sizes[3]; }

/// How many planes are whole runs of 16 bytes together.
int together_in_runs(const ConstTensorView& planes) {
  const auto bytes = positions_of(planes) * static_cast<std::int64_t>(size_of(planes.dtype));
  return static_cast<int>(16 / std::gcd(bytes, std::int64_t{16}));
}

bool are_planes(const ConstTensorView& tensor) {
  if (!tensor) return true;
  const auto& [images, channels, height, width] = tensor.sizes;
  const std::int64_t run = 16 / static_cast<std::int64_t>(size_of(tensor.dtype)), positions = height * width;
  const bool is_dense = (width == 1 || tensor.strides[3] == 1) && (height == 1 || tensor.strides[2] == width) &&
                        (channels == 1 || tensor.strides[1] == positions) &&
                        (images == 1 || tensor.strides[0] == channels * positions);
  return is_dense && positions >= kLeastPositions && channels * positions % run == 0 &&
         channels % together_in_runs(tensor) == 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

/// Fitted to the times of all tiles on the layers of mobile networks on an H200, batch 1 and 64, in microseconds, so
/// that the choice is near the best one; a single number says little. `first` of 16 bits: to those of batches 8 to 64.
struct ResidentCost {
  double start, first, weight;             ///< a kernel; per 128 bytes of k but the first; of k and of channels
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; likewise
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
  double memory, cache;                    ///< bytes, millions
};
struct SlicedKCost {
  double start, block;   ///< a kernel; a block
  double step;           ///< of a group: 128 bytes of k
  double copied;         ///< bytes of a multiprocessor, millions
  double own;            ///< of a group: 128 bytes of channels that it finishes, of each tensor
  double memory, cache;  ///< bytes of all, millions
  double work;           ///< what a step takes of a multiprocessor
};
struct Cost {
  ResidentCost resident_weight;
  SlicedKCost boxes, runs;
};
constexpr Cost kHalfCost{{1.092, 0.3, 0.03939, 0.2361, 0.3095, 0.4324, 0.06485, 0.06841, 0.2218, 3.35, 4.398},
                         {0.6532, 1.073, 0.0, 0.08946, 0.0, 1.766, 3.252, 0.0},
                         {0.7852, 0.606, 0.3322, 1.016, 0.291, 10.47, 5.623, 0.1327}};
constexpr Cost kFloatCost{{1.709, 0, 0.09416, 0.1834, 0.4548, 0.3339, 0.01013, 0.1814, 0.1619, 4.407, 11.51},
                          {1.667, 0.3928, 0.008281, 0.08017, 0.3465, 3.133, 12.16, 0.02539},
                          {0.9215, 1.096, 0.4184, 0.2506, 0.4036, 3.988, 8.21, 0.03383}};
/// Of float32 with fusion, as fitted to tiles without it before.
constexpr Cost kFloatFusedCost{{1.877, 0, 0.1158, 0.1228, 0.4755, 0.2198, 0.01237, 0.1036, 0.2211, 4.694, 29.21},
                               {1.476, 0.8979, 0.01004, 0.09252, 0.1381, 5.688, 66.73, 0.03705},
                               {0.9215, 1.096, 0.4184, 0.2506, 0.4036, 3.988, 8.21, 0.03383}};
constexpr LatencyCost kHalfBoxesLatencyCost{1.703,  0.04965, 6.153,   0.08183, 0.02437,
                                            0.7279, 1.661,   0.02031, 0.2816,  0.05013};
constexpr LatencyCost kHalfRunsLatencyCost{0.9944, 0.551,  2.468,  0.3095, 0.09429,
                                           0.9965, 0.5052, 0.2511, 0.1659, 0.02926};
constexpr LatencyCost kFloatBoxesLatencyCost{1.973,  0.03863, 8.569,  0.302,   0.3181,
                                             0.3594, 0.4869,  0.2495, 0.08692, 0.04201};
constexpr LatencyCost kFloatRunsLatencyCost{1.951, 0.09221, 14.56,   0.09406, 0.1942,
                                            1.026, 0.5322,  0.07387, 0.099,   0.03442};
/// Of products with their operands swapped (swap-AB), which have no runs.
constexpr Cost kSwapAbCost{{1.024, 0, 0.08276, 0.1051, 0.6913, 0.3521, 0.01062, 0.04276, 0.3505, 4.667, 5.768},
                           {1.395, 0.8058, 0.009316, 0.1272, 0.1759, 3.584, 5.009, 0.1103},
                           {}};
constexpr LatencyCost kSwapAbLatencyCost{1.344, 0.08266, 7.593, 0.43, 0.4049, 0.3505, 1.002, 0.1395, 0.01737, 0.03372};
constexpr SmemTransposeCost kBoxesSmemTransposeCost{0.4065, 0.1173, 0.1707, 1.364},
    kRunsSmemTransposeCost{0, 0, 0.1843, 1.364};

/// What each row of a weight takes that begins at an odd multiple of 16 bytes, of all that blocks ask for.
constexpr double kOddRow = 3e-5;

double cost_of_odd_rows(const PlanesCase& product, const PlanesLaunch& launch) {
  const PointwiseProblem& problem = product.problem;
  const std::int64_t row = product.input_gradient ? problem.channels : problem.depth;
  if (size_of(problem.dtype) != 2 || product.lays_out || !are_odd_rows(row)) return 0;
  const std::int64_t rows = product.input_gradient ? problem.depth : launch.instance->channels;
  return kOddRow * static_cast<double>(rows * launch.channel_tiles * launch.splits);
}

double cost_of(const PlanesCase& product, const PlanesLaunch& launch, int beside, int size) {
  const PointwiseProblem& problem = product.problem;
  const PlanesInstance& instance = *launch.instance;
  const Cost& cost = problem.dtype != DataType::float32 ? kHalfCost
                     : product.swap_ab                  ? kSwapAbCost
                     : !product.is_plain()              ? kFloatFusedCost
                                                        : kFloatCost;
  const auto element = static_cast<double>(size_of(problem.dtype));
  const double depth = static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth) * element / 128,
               channels = instance.channels * element / 128, row_tiles = instance.row_tiles;
  const double ins = product.has_other ? 2 : 1, outs = 1 + (product.has_x ? 1 : 0) + (product.has_added ? 1 : 0);
  const double bytes = 1e-6 * element * static_cast<double>(problem.pixels),
               in = ins * bytes * static_cast<double>(problem.depth),
               out = outs * bytes * static_cast<double>(problem.channels),
               weight = 1e-6 * element * static_cast<double>(problem.depth * problem.channels);
  const double cached = in * launch.channel_tiles + out + weight * launch.splits;
  const double all = in + out + (product.swap_ab ? weight : 0);  // once
  const std::int64_t blocks = std::int64_t{launch.channel_tiles} * launch.splits;
  const auto rounds_of = [&](std::int64_t at_once) { return static_cast<double>(divide_up(blocks, at_once)); };
  if (instance.family == PointwiseFamily::resident) {
    const ResidentCost& resident_weight = cost.resident_weight;
    const auto tiles =
        static_cast<double>(divide_up(launch.pixel_tiles, std::int64_t{launch.splits} * instance.row_tiles));
    const double latency = resident_weight.tile + depth * resident_weight.tile_depth +
                           channels * resident_weight.tile_channels,
                 groups = std::min(row_tiles, static_cast<double>(divide_up(launch.pixel_tiles, launch.splits))),
                 work = groups * (resident_weight.work + ins * depth * resident_weight.work_depth +
                                  outs * channels * resident_weight.work_channels);
    const double own = tiles * rounds_of(size) * std::max(latency, work),
                 bound = std::max(all / resident_weight.memory, cached / resident_weight.cache);
    constexpr double kHidden = 0.01;  // where memory hides it: of tiles that are the same otherwise, those with less
    return resident_weight.start + resident_weight.first * (depth - 1) + resident_weight.weight * depth * channels +
           (own > bound ? own : bound + kHidden * own);
  }
  if (is_latency_bound(product, blocks * launch.cluster)) {
    const bool is_float = problem.dtype == DataType::float32;
    const LatencyCost &boxes = product.swap_ab ? kSwapAbLatencyCost
                               : is_float      ? kFloatBoxesLatencyCost
                                               : kHalfBoxesLatencyCost,
                      &runs = is_float ? kFloatRunsLatencyCost : kHalfRunsLatencyCost;
    return latency_bound_cost(instance.whole_images ? runs : boxes, product, instance, launch);
  }
  const SlicedKCost& sliced_k = instance.whole_images ? cost.runs : cost.boxes;
  const int resident = std::max(1, std::min(beside, kResidentThreads / instance.threads));
  const double shared = std::min(static_cast<double>(resident), rounds_of(size));
  const double copied = 128e-6 * 64 * (depth * (row_tiles * ins + channels) + row_tiles * channels * outs);
  const double block = sliced_k.block + depth / instance.k_slices * sliced_k.step +
                       sliced_k.own * row_tiles * channels * outs / instance.k_slices +
                       shared * (copied / sliced_k.copied + row_tiles * ins * depth * sliced_k.work);
  return sliced_k.start +
         std::max({rounds_of(std::int64_t{resident} * size) * block, all / sliced_k.memory, cached / sliced_k.cache});
}

}  // namespace

bool are_planes(std::initializer_list<ConstTensorView> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const ConstTensorView& tensor) { return are_planes(tensor); });
}

PlanesCase planes_case(const ConstTensorView& activations, std::int64_t channels) {
  PlanesCase product;
  const std::int64_t positions = positions_of(activations), images = activations.sizes[0];
  product.problem = {activations.dtype, false, images * positions, activations.sizes[1], channels, 1};
  product.is_dense = true;
  product.images = static_cast<int>(images);
  product.positions = static_cast<int>(positions);
  const int together = together_in_runs(activations);
  product.whole_images = together > 1 && positions <= kMostParts * kTileRows;
  product.shifted = together > 1 && !product.whole_images;
  while (together >> product.together_log2 > 1) ++product.together_log2;
  return product;
}

bool lays_out_weight(const PlanesCase& product, const ConstTensorView& weight) {
  constexpr std::int64_t kLittle = 5'000, kManyForThreads = 10'000;
  const bool is_worth_it =
      weight.sizes[1] * 2 <= kShortRow || (product.input_gradient && (weight.sizes[0] * weight.sizes[1] <= kLittle ||
                                                                      product.problem.pixels >= kManyForThreads));
  // With the tensors of all that a gradient fuses, too, a block has no room for a weight of many rows.
  return !product.whole_images && product.kind != EpilogueKind::gradient && weight.sizes[0] >= kManyRows &&
         is_worth_it && suits_tma(weight_matrix(weight, 1), weight.dtype) &&
         has_slow_rows(weight, {}, product.problem.pixels);
}

PlanesTiling PlanesCase::tiling() const {
  const auto parts = static_cast<int>(divide_up(positions, kTileRows));
  if (!whole_images) return {positions, parts, kTileRows, together_log2};
  const int shared = parts == 3 ? 4 : parts, pair = positions % 2 == 0 ? 2 : 1;
  return {positions, shared, static_cast<int>(divide_up(positions / pair, shared)) * pair};
}

namespace {

constexpr int kMostBeside = 3;

/// With that instance, so many blocks beside each other on a multiprocessor, and clusters; nothing if it does not suit.
/// size: multiprocessors, which are not asked for again for each of many.
PlanesLaunch launch_of(const PlanesInstance& instance, const PlanesCase& product, int beside, int cluster, int size) {
  const PointwiseProblem& problem = product.problem;
  const bool is_sliced_k = instance.family == PointwiseFamily::sliced_k;
  if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind ||
      instance.whole_images != product.whole_images || instance.shifted != product.shifted ||
      (product.lays_out && is_sliced_k))
    return {};
  const PlanesTiling tiling = product.tiling();
  const int least_stages = instance.least_stages(tiling);
  if (least_stages == 0) return {};
  PlanesLaunch launch;
  launch.pixel_tiles = product.images * tiling.parts;
  launch.channel_tiles = static_cast<int>(divide_up(problem.channels, instance.channels));
  launch.splits = static_cast<int>(divide_up(launch.pixel_tiles, instance.row_tiles));
  if (beside > 1 && (!is_sliced_k || launch.channel_tiles * launch.splits <= (beside - 1) * size)) return {};
  const auto all_steps = static_cast<int>(divide_up(problem.depth, instance.depth));
  if (!is_sliced_k) {
    // More blocks than have a tile for each group are worth their start where there is some to copy. Where there are
    // several rounds, groups of a block have neighbours: those are near each other in memory.
    const int most = std::max(size / launch.channel_tiles, 1);
    launch.spreads =
        std::int64_t{launch.pixel_tiles} * all_steps >= 2 * most && launch.pixel_tiles < 2 * most * instance.row_tiles;
    launch.splits = std::min(most, launch.spreads ? launch.pixel_tiles : launch.splits);
  }
  constexpr std::int64_t kMostRounds = 8;  // of more positions nobody swaps operands, nor is the cost known there
  if (product.swap_ab && std::int64_t{launch.channel_tiles} * launch.splits > kMostRounds * size) return {};
  const int memory = kMultiprocessorMemory / beside - (beside > 1 ? kBlockReserve : 0);
  const auto steps = static_cast<int>(divide_up(all_steps, instance.k_slices * cluster));
  if (cluster > 1 &&
      (!is_sliced_k || !suits_cluster(product, cluster, std::int64_t{launch.channel_tiles} * launch.splits,
                                      static_cast<int>(divide_up(all_steps, instance.k_slices))))) {
    return {};
  }
  launch.cluster = cluster;
  launch.stages = is_sliced_k ? std::max(steps, least_stages) : kMostStages;
  while (launch.stages >= least_stages && instance.memory(product.memory_use(), tiling, launch.stages) > memory)
    --launch.stages;
  if (launch.stages >= least_stages) launch.instance = &instance;
  return launch;
}

/// Each launch of an instance that fits, with its cost.
template <class Visit>
void for_each_launch(const PlanesInstance& instance, const PlanesCase& product, int size, const Visit& visit) {
  for (int beside = 1; beside <= kMostBeside; ++beside) {
    for (const int cluster : kClusters) {
      PlanesLaunch launch = launch_of(instance, product, beside, cluster, size);
      if (launch.instance == nullptr) continue;
      const double cost = cost_of(product, launch, beside, size) + cost_of_odd_rows(product, launch);
      for (const bool smem_transposes : {false, true}) {
        if (smem_transposes && !(product.smem_transposes_weight && instance.smem_transposes)) break;
        launch.smem_transposes_weight = smem_transposes;
        launch.cost =
            cost + smem_transpose_cost(product.whole_images ? kRunsSmemTransposeCost : kBoxesSmemTransposeCost, product,
                                       launch, size);
        visit(launch);
      }
    }
  }
}

auto launches_of(const PlanesCase& product) {
  return [&product, size = multiprocessors()](const PlanesInstance& instance, const auto& visit) {
    for_each_launch(instance, product, size, visit);
  };
}

}  // namespace

PlanesLaunch plan(std::span<const PlanesInstance> instances, const PlanesCase& product,
                  std::optional<PointwiseFamily> family) {
  return cheapest_launch<PlanesLaunch>(instances, family, launches_of(product));
}

tuning::Configs configs_of(std::span<const PlanesInstance> instances, const PlanesCase& product,
                           PointwiseFamily family) {
  return launch_configs<PlanesLaunch>(instances, family, launches_of(product));
}

PlanesLaunch launch_with(std::span<const PlanesInstance> instances, const PlanesCase& product, PointwiseFamily family,
                         const tuning::Config& config) {
  return configured_launch<PlanesLaunch>(instances, family, config, launches_of(product));
}

void PlanesLaunch::fill(const PlanesCase& product, PlanesParameters& p) const {
  p.pixels = static_cast<int>(product.problem.pixels);
  p.depth = static_cast<int>(product.problem.depth);
  p.channels = static_cast<int>(product.problem.channels);
  p.pixel_tiles = pixel_tiles;
  p.channel_tiles = channel_tiles;
  p.splits = splits;
  p.stages = stages;
  p.cluster = cluster;
  p.smem_transposes_weight = smem_transposes_weight;
  p.has_other = product.has_other;
  p.epilogue.has_x = product.has_x;
  p.epilogue.has_added = product.has_added;
  p.split_advance = spreads ? 1 : instance->row_tiles;
  p.group_advance = spreads ? splits : 1;
  p.tiling = product.tiling();
  p.parts = Divisor(static_cast<std::uint32_t>(p.tiling.parts));
}

void PlanesLaunch::start(const char* name, const PlanesCase& product, const PlanesParameters& parameters,
                         void* stream) const {
  const std::int64_t blocks = std::int64_t{channel_tiles} * splits * cluster;
  const auto memory = static_cast<std::size_t>(instance->memory(product.memory_use(), product.tiling(), stages));
  if (cluster == 1)
    return launch_following(name, instance->kernel, blocks, instance->threads, stream, parameters, memory);
  launch_clusters(name, instance->kernel, blocks, instance->threads, stream, parameters,
                  std::max(memory, cluster_bytes(instance->row_tiles, instance->channels)), cluster);
}

TensorMap map_of_planes(const ConstTensorView& planes, const PlanesCase& product, int tile_channels) {
  if (!planes || product.whole_images) return {};
  const std::int64_t positions = product.positions;
  if (product.shifted) {
    const std::int64_t together = std::int64_t{1} << product.together_log2, row = together * positions;
    const ConstTensorView rows(planes.data, planes.dtype, {planes.sizes[0], row, 1, planes.sizes[1] / together},
                               {planes.strides[0], 1, row, row}, planes.device);
    const int columns = kTileRows + 16 / static_cast<int>(size_of(planes.dtype));
    return map_of_images(rows, columns, tile_channels / static_cast<int>(together), 1, 1, false);
  }
  const ConstTensorView rows(planes.data, planes.dtype, {planes.sizes[0], positions, 1, planes.sizes[1]},
                             {planes.strides[0], 1, positions, positions}, planes.device);
  return map_of_images(rows, 128 / static_cast<int>(size_of(planes.dtype)), tile_channels, 1, 1, true);
}

}  // namespace fusedsc::gpu::hopper
#endif
