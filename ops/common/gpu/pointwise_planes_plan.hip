#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/pointwise_planes_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fusedsc/common/gpu/following_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t kLeastPositions = 16;
constexpr int kMostStages = 6;

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

/// Fitted to the times of all tiles on the layers of mobile networks on an H200, in microseconds.
struct Cost {
  double start, weight;                    ///< a kernel; per 128 bytes of k and 64 channels
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; likewise
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
  double memory, cache;                    ///< bytes, millions
};
constexpr Cost kCost{1.298, 0.09055, 0.1356, 0.3596, 0.1419, 0.05714, 0.06638, 0.2414, 3.243, 11.08};

double cost_of(const PlanesCase& product, const PlanesLaunch& launch, int size) {
  const PointwiseProblem& problem = product.problem;
  const PlanesInstance& instance = *launch.instance;
  const auto element = static_cast<double>(size_of(problem.dtype));
  const double depth =
                   static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth) * element / 128,
               channels = instance.channels * element / 128;
  const double ins = product.has_other ? 2 : 1, outs = 1 + (product.has_x ? 1 : 0) + (product.has_added ? 1 : 0);
  const double bytes = 1e-6 * element * static_cast<double>(problem.pixels),
               in = ins * bytes * static_cast<double>(problem.depth),
               out = outs * bytes * static_cast<double>(problem.channels),
               weight = 1e-6 * element * static_cast<double>(problem.depth * problem.channels);
  const double cached = in * launch.channel_tiles + out + weight * launch.splits;
  const auto rounds = static_cast<double>(divide_up(std::int64_t{launch.channel_tiles} * launch.splits, size)),
             tiles = static_cast<double>(
                 divide_up(launch.pixel_tiles, std::int64_t{launch.splits} * instance.groups));
  const double latency = kCost.tile + depth * kCost.tile_depth + channels * kCost.tile_channels,
               work = instance.groups * (kCost.work + depth * kCost.work_depth + channels * kCost.work_channels);
  return kCost.start + kCost.weight * depth * channels +
         std::max({tiles * rounds * std::max(latency, work), (in + out) / kCost.memory, cached / kCost.cache});
}

}  // namespace

bool are_planes(std::initializer_list<ConstTensorView> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const ConstTensorView& tensor) { return are_planes(tensor); });
}

PlanesCase planes_case(const ConstTensorView& activations, std::int64_t channels) {
  PlanesCase product;
  const std::int64_t positions = positions_of(activations), images = activations.sizes[0];
  product.problem = {activations.dtype, false, images * positions, activations.sizes[1], channels, 1};
  product.images = static_cast<int>(images);
  product.packing.positions = static_cast<int>(positions);
  product.packing.together = together_in_runs(activations);
  while (1 << product.packing.shift < product.packing.together) ++product.packing.shift;
  return product;
}

PlanesLaunch launch_of(const PlanesInstance& instance, const PlanesCase& product) {
  const PointwiseProblem& problem = product.problem;
  if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind)
    return {};
  PlanesLaunch launch;
  launch.pixel_tiles = product.images * static_cast<int>(divide_up(product.packing.positions, kTileRows));
  launch.channel_tiles = static_cast<int>(divide_up(problem.channels, instance.channels));
  launch.splits = std::min(std::max(multiprocessors() / launch.channel_tiles, 1),
                           static_cast<int>(divide_up(launch.pixel_tiles, instance.groups)));
  launch.stages = kMostStages;
  while (launch.stages > 1 &&
         instance.memory(product.memory_use(), product.packing.together, launch.stages) > kMemoryLimit) {
    --launch.stages;
  }
  if (launch.stages > 1) launch.instance = &instance;
  return launch;
}

PlanesLaunch plan(std::span<const PlanesInstance> instances, const PlanesCase& product) {
  const int size = multiprocessors();
  PlanesLaunch best;
  double least_cost = std::numeric_limits<double>::infinity();
  for (const PlanesInstance& instance : instances) {
    const PlanesLaunch launch = launch_of(instance, product);
    if (launch.instance == nullptr) continue;
    const double cost = cost_of(product, launch, size);
    if (cost >= least_cost) continue;
    least_cost = cost;
    best = launch;
  }
  return best;
}

void PlanesLaunch::fill(const PlanesCase& product, PlanesParameters& p) const {
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
  p.packing = product.packing;
  p.tiles_of_image = Divisor(static_cast<std::uint32_t>(divide_up(product.packing.positions, kTileRows)));
}

void PlanesLaunch::start(const char* name, const PlanesCase& product, const PlanesParameters& parameters,
                         void* stream) const {
  const int memory = instance->memory(product.memory_use(), product.packing.together, stages);
  launch_following(name, instance->kernel, std::int64_t{channel_tiles} * splits, instance->groups * kGroupThreads,
                   stream, parameters, static_cast<std::size_t>(memory));
}

TensorMap map_of_planes(const ConstTensorView& planes, const PlanesPacking& packing, int tile_channels) {
  if (!planes) return {};
  const std::int64_t row = std::int64_t{packing.together} * packing.positions;
  const ConstTensorView rows(planes.data, planes.dtype, {planes.sizes[0], row, 1, planes.sizes[1] / packing.together},
                             {planes.strides[0], 1, row, row}, planes.device);
  return map_of_images(rows, 128 / static_cast<int>(size_of(planes.dtype)), tile_channels >> packing.shift, 1, 1, true);
}

}  // namespace fusedsc::gpu::hopper
#endif
