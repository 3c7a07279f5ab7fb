#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/sliding_channel_windows.h"
#include "fusedsc/backward/sliding_channel_windows_kernel.h"
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "sliding_channel_conv2d_backward";

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Product>
FUSEDSC_HOPPER_KERNEL(Product::kMostThreads)
windows_kernel(const FUSEDSC_GRID_CONSTANT SlidingWindowsInputParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Product::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int windows, blocks, width, box, most_groups;
  void (*kernel)(SlidingWindowsInputParameters);
  int (*memory)(int depth_steps, int box_steps, int groups, int stages);

  int channels() const { return blocks * width; }
  bool suits_step(std::int64_t step) const { return blocks == 1 ? step % width == 0 : step == width; }
};

template <class T, int kWindows, int kBlocks, int kWidth>
constexpr Instance instance(DataType dtype) {
  using Product = SlidingWindowsInput<T, kWindows, kBlocks, kWidth>;
  return {dtype,
          kWindows,
          kBlocks,
          kWidth,
          Product::kBox,
          Product::kMostThreads / 128,
          windows_kernel<Product>,
          Product::memory_bytes};
}

/// 64 channels, then 128.
#define FUSEDSC_WIDTHS(T, dtype, windows)                                                       \
  instance<T, windows, 1, 64>(dtype), instance<T, windows, 2, 32>(dtype),                     \
      instance<T, windows, 4, 16>(dtype), instance<T, windows, 1, 128>(dtype),                \
      instance<T, windows, 2, 64>(dtype), instance<T, windows, 4, 32>(dtype)
#define FUSEDSC_WINDOWS(T, dtype)                                                               \
  FUSEDSC_WIDTHS(T, dtype, 4), FUSEDSC_WIDTHS(T, dtype, 8), instance<T, 8, 8, 16>(dtype),     \
      FUSEDSC_WIDTHS(T, dtype, 16), instance<T, 16, 8, 16>(dtype)

const Instance kInstances[] = {FUSEDSC_WINDOWS(Float16, DataType::float16),
                               FUSEDSC_WINDOWS(BFloat16, DataType::bfloat16)};

struct Launch {
  const Instance* instance = nullptr;
  SlidingWindowsInputParameters p;  ///< but for addresses
};

constexpr int kTile = 64;  ///< positions, and outputs

Launch launch_of(const SlidingChannelBackwardArguments& a) {
  constexpr int kMostStages = 16, kMostBoxSteps = 4;
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  Launch launch;
  SlidingWindowsInputParameters& p = launch.p;
  p.pixels = static_cast<int>(pixels);
  p.pixel_tiles = static_cast<int>(divide_up(pixels, kTile));
  p.step = static_cast<int>(windows.step);
  p.depth_steps = static_cast<int>(divide_up(a.weight.sizes[0] / windows.cycle, 16));
  p.box_steps = std::min(p.depth_steps, kMostBoxSteps);
  for (const Instance& instance : kInstances) {
    if (instance.dtype != a.x.dtype || instance.windows != windows.cycle || !instance.suits_step(p.step)) continue;
    const std::int64_t channel_tiles = divide_up(windows.channels, instance.channels());
    // The wider one, unless that leaves multiprocessors without work.
    const bool is_wide_enough = p.pixel_tiles * channel_tiles * 4 >= std::int64_t{multiprocessors()} * 3;
    if (launch.instance != nullptr && !is_wide_enough) continue;
    if (instance.memory(p.depth_steps, p.box_steps, 1, 2) > kMemoryLimit) continue;
    launch.instance = &instance;
    p.channel_tiles = static_cast<int>(channel_tiles);
  }
  if (launch.instance == nullptr) return launch;
  const auto memory = [&](int groups, int stages) {
    return launch.instance->memory(p.depth_steps, p.box_steps, groups, stages);
  };
  const std::int64_t per_tile = std::max<std::int64_t>(1, multiprocessors() / p.channel_tiles);
  p.groups = static_cast<int>(std::clamp<std::int64_t>(divide_up(p.pixel_tiles, per_tile), 1, launch.instance->most_groups));
  while (p.groups > 1 && memory(p.groups, 2) > kMemoryLimit) --p.groups;
  const std::int64_t rounds = divide_up(p.pixel_tiles, per_tile * p.groups);
  p.splits = static_cast<int>(divide_up(p.pixel_tiles, rounds * p.groups));
  p.stages = static_cast<int>(std::min<std::int64_t>(kMostStages, rounds * p.depth_steps));
  while (memory(p.groups, p.stages) > kMemoryLimit) --p.stages;
  return launch;
}

}  // namespace

std::string why_no_windows_input(const SlidingChannelBackwardArguments& a) {
  if (a.prologue || a.gradient_prologue || a.sums || a.grad_add) return "there is a seam";
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t step = windows.step;
  if (windows.width != 2 * step || windows.channels != windows.cycle * step ||
      (step != 16 && step != 32 && step % 64 != 0)) {
    return "windows do not share half of their channels, 16, 32 or a multiple of 64";
  }
  if (a.weight.sizes[0] % windows.cycle != 0) return "some windows have more filters than others";
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, 1, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  if (!reason.empty()) return reason;
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  if (!suits_copy_engine(activation_matrix(a.grad_y, 1, true)) ||
      !suits_copy_engine(output_matrix(a.grad_x, 1, true)) || !suits_copy_engine(a.weight)) {
    return kUnsuited;
  }
  return launch_of(a).instance != nullptr ? "" : "there is no kernel of so many windows, or no room for their weight";
}

void run_windows_input(const SlidingChannelBackwardArguments& a, void* stream) {
  const Launch launch = launch_of(a);
  const Instance& instance = *launch.instance;
  SlidingWindowsInputParameters p = launch.p;
  p.grad_y = map_of(activation_matrix(a.grad_y, 1, true), a.x.dtype, a.grad_y.sizes[1], p.pixels, kTile);
  p.grad_x = map_of(output_matrix(a.grad_x, 1, true), a.x.dtype, a.x.sizes[1], p.pixels, kTile);
  const std::int64_t filter = a.weight.strides[0], windows = instance.windows;
  const ConstTensorView by_windows{a.weight.data, a.weight.dtype,
                                   {1, a.weight.sizes[1], windows, a.weight.sizes[0] / windows},
                                   {0, 1, filter, windows * filter}, a.weight.device};
  p.weight = map_of_images(by_windows, instance.box, p.box_steps * 16, 1, 1, true);
  launch_following(kName, instance.kernel, std::int64_t{p.channel_tiles} * p.splits, p.groups * 128, stream, p,
                   static_cast<std::size_t>(instance.memory(p.depth_steps, p.box_steps, p.groups, p.stages)));
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
