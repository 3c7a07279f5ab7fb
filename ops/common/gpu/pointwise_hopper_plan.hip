#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

#include <algorithm>
#include <cstdlib>

namespace fusedsc::gpu::hopper {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking the driver.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_vendor(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
                 "gpu: asking the driver for cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess)
      throw std::runtime_error("gpu: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

}  // namespace

bool is_hopper() {
  int device = 0, major = 0;
  check_vendor(cudaGetDevice(&device), "gpu: asking for the current device");
  check_vendor(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "gpu: asking what it can do");
  return major == 9;
}

CUtensorMap map_of(const void* data, DataType dtype, std::int64_t columns, std::int64_t rows, std::int64_t row_stride,
                   int tile_columns, int tile_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(tile_columns), static_cast<cuuint32_t>(tile_rows)},
                   steps[] = {1, 1};
  const CUresult result = encode_function()(
      &map, dtype == DataType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
      const_cast<void*>(data), sizes, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      tile_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("gpu: describing a tensor to the copy engine: error " + std::to_string(result));
  }
  return map;
}

PointwiseLaunch plan(const PointwiseInstance* instances, std::size_t count, const PointwiseProblem& problem,
                     bool prologue, EpilogueKind kind, PointwiseParameters& p) {
  constexpr int kMostStages = 6;
  const int size = multiprocessors();
  PointwiseLaunch best;
  double least_cost = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const PointwiseInstance& instance = instances[i];
    if (instance.dtype != problem.dtype || instance.prologue != prologue || instance.kind != kind) continue;
    const auto memory = [&](int stages) {
      return instance.memory(static_cast<int>(problem.depth), stages, p.has_other, p.epilogue.has_x,
                             p.epilogue.has_added);
    };
    int stages = kMostStages;
    while (stages >= 2 && memory(stages) > static_cast<int>(kBlockMemoryLimit)) --stages;
    if (stages < 2) continue;
    const std::int64_t pixel_tiles = divide_up(problem.pixels, kTileRows);
    const std::int64_t channel_tiles = divide_up(problem.channels, instance.channels);
    const std::int64_t most = std::max<std::int64_t>(size / channel_tiles, 1);
    const std::int64_t splits = std::min(most, divide_up(pixel_tiles, instance.groups));
    const double rounds = static_cast<double>(divide_up(pixel_tiles, splits * instance.groups)) *
                          static_cast<double>(divide_up(channel_tiles * splits, size));
    const auto depth = static_cast<double>(divide_up(problem.depth, instance.depth) * instance.depth);
    const double cost = rounds * instance.groups * (1000.0 + depth * 4 + instance.channels * 4.0);
    double c = cost;
    if (getenv("FUSEDSC_STRIP") && atoi(getenv("FUSEDSC_STRIP")) == instance.channels * 1000 + instance.depth * 10 + instance.groups) c = -1;
    if (c >= least_cost) continue;
    least_cost = c;
    best = {instance.kernel, channel_tiles * splits, instance.groups * kGroupThreads, memory(stages), instance.depth,
            instance.channels, instance.channels < 64 ? 32 : 64};
    p.pixel_tiles = static_cast<int>(pixel_tiles);
    p.channel_tiles = static_cast<int>(channel_tiles);
    p.splits = static_cast<int>(splits);
    p.stages = stages;
  }
  p.pixels = static_cast<int>(problem.pixels);
  p.depth = static_cast<int>(problem.depth);
  p.channels = static_cast<int>(problem.channels);
  return best;
}

}  // namespace fusedsc::gpu::hopper
#endif
