#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

#include <algorithm>

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Microseconds, fitted to the times of all tiles on the layers of mobile networks on an H200; only their order
/// matters.
struct Cost {
  double tile, tile_depth, tile_channels;  ///< of a tile from its begin to its end; per 64 values of k; per 64 channels
  double work, work_depth, work_channels;  ///< what a tile takes of a multiprocessor, likewise
};
Cost cost_of(EpilogueKind kind) {
  switch (kind) {
    case EpilogueKind::plain: return {0.25, 0.91, 0.09, 0.06, 0.1, 0.58};
    case EpilogueKind::inference:
    case EpilogueKind::statistics: return {0.07, 0.57, 0.13, 0.0, 0.16, 0.34};
    case EpilogueKind::gradient: return {1.32, 0.02, 3.19, 0.06, 0.33, 0.65};
  }
  return {};
}

double cost_of(const PointwiseCase& product, const PointwiseInstance& instance, const PointwiseLaunch& launch,
               int size) {
  constexpr double kMemory = 3.9e6, kCache = 5.0e6;  // bytes per microsecond
  const PointwiseProblem& problem = product.problem;
  const Cost cost = cost_of(product.kind);
  const double depth = static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth) / 64;
  const double channels = instance.channels / 64.0;
  const double latency = cost.tile + depth * cost.tile_depth + channels * cost.tile_channels;
  const double work = instance.row_tiles * (cost.work + depth * cost.work_depth + channels * cost.work_channels);
  const auto rounds = static_cast<double>(divide_up(launch.pixel_tiles, std::int64_t{launch.splits} * instance.row_tiles) *
                                          divide_up(std::int64_t{launch.channel_tiles} * launch.splits, size));
  const double bytes = 2 * static_cast<double>(problem.pixels), in = bytes * static_cast<double>(problem.depth),
               out = bytes * static_cast<double>(problem.channels),
               weight = 2 * static_cast<double>(problem.depth * problem.channels);
  return std::max({rounds * std::max(latency, work), (in + out) / kMemory,
                   (in * launch.channel_tiles + out + weight * launch.splits) / kCache});
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

PointwiseLaunch plan(std::span<const PointwiseInstance> instances, const PointwiseCase& product) {
  const PointwiseProblem& problem = product.problem;
  const int size = multiprocessors();
  PointwiseLaunch best;
  double least_cost = std::numeric_limits<double>::infinity();
  for (const PointwiseInstance& instance : instances) {
    if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind)
      continue;
    if (instance.family == PointwiseFamily::rows && (!product.is_dense || problem.channels > instance.channels)) continue;
    const int most_stages = instance.family != PointwiseFamily::cut ? 6
                                              : static_cast<int>(std::max<std::int64_t>(
                                                    divide_up(divide_up(problem.depth, instance.depth), instance.cut),
                                                    instance.least_stages));
    PointwiseLaunch launch;
    launch.instance = &instance;
    const auto fits = [&](int stages) {
      return instance.memory(product.memory_use(), stages) <= kMemoryLimit;
    };
    launch.stages = most_stages;
    while (launch.stages >= instance.least_stages && !fits(launch.stages)) --launch.stages;
    if (launch.stages < instance.least_stages) continue;
    const std::int64_t pixel_tiles = divide_up(problem.pixels, kTileRows);
    const std::int64_t channel_tiles = divide_up(problem.channels, instance.channels);
    launch.pixel_tiles = static_cast<int>(pixel_tiles);
    launch.channel_tiles = static_cast<int>(channel_tiles);
    launch.splits = static_cast<int>(divide_up(pixel_tiles, instance.row_tiles));
    if (instance.family != PointwiseFamily::cut) {
      launch.splits = static_cast<int>(
          std::min<std::int64_t>(std::max<std::int64_t>(size / channel_tiles, 1), launch.splits));
    }
    double cost = cost_of(product, instance, launch, size);
    if (std::getenv("HALF_FORCE")) cost = instance.family != (PointwiseFamily)std::atoi(std::getenv("HALF_FORCE")) ? cost + 1e6 : 1 + (&instance - instances.data()) * 7 % 5;
    if (cost >= least_cost) continue;
    least_cost = cost;
    best = launch;
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
