#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <iterator>
#include <limits>

#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/backward/sliding_channel/windows/sliding_channel_windows_input_kernel.h"
#include "fusedsc/backward/sliding_channel/windows/sliding_channel_windows_weight_kernel.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "sliding_channel_conv2d_backward";

/// Groups of warps of a block, blocks of a cluster.
constexpr int kMostGroups = 2, kMostDoublings = 3;

template <class Input, class Weight>
FUSEDSC_HOPPER_KERNEL(kMostGroups * 128)
windows_kernel(const FUSEDSC_GRID_CONSTANT SlidingWindowsGradientsParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  const int block = static_cast<int>(block_index());
  if (block < p.weight_blocks) Weight::run(p.weight, block);
  else Input::run(p.input, block - p.weight_blocks);
#endif
}

struct Instance {
  DataType dtype;
  int windows, blocks, width, box, depth;
  int outputs;  ///< of a tile of the weight's gradient
  void (*kernel)(SlidingWindowsGradientsParameters);
  int (*input_memory)(int depth_steps, int box_steps, int groups, int stages);
  int (*weight_memory)(int groups, int stages);

  int channels() const { return blocks * width; }
  bool suits(const SlidingChannels& of, DataType type) const {
    return dtype == type && windows == of.cycle && (blocks == 1 ? of.step % width == 0 : of.step == width);
  }
};

template <class T, int kWindows, int kBlocks, int kWidth, int kOutputs>
constexpr Instance instance(DataType dtype) {
  using Input = SlidingWindowsInput<T, kWindows, kBlocks, kWidth>;
  using Weight = SlidingWindowsWeight<T, kWindows, Input::kChannels, kOutputs>;
  return {dtype,
          kWindows,
          kBlocks,
          kWidth,
          Input::kBox,
          Input::kDepth,
          Weight::kOutputs,
          windows_kernel<Input, Weight>,
          Input::memory_bytes,
          Weight::memory_bytes};
}

/// Of 64 channels tiles of the weight's gradient have 64 or 128 outputs, of 128 channels 128.
#define FUSEDSC_NARROW(T, dtype, windows, blocks, width) \
  instance<T, windows, blocks, width, 64>(dtype), instance<T, windows, blocks, width, 128>(dtype)
#define FUSEDSC_WIDTHS(T, dtype, windows)                                                 \
  FUSEDSC_NARROW(T, dtype, windows, 1, 64), FUSEDSC_NARROW(T, dtype, windows, 2, 32),     \
      FUSEDSC_NARROW(T, dtype, windows, 4, 16), instance<T, windows, 1, 128, 128>(dtype), \
      instance<T, windows, 2, 64, 128>(dtype), instance<T, windows, 4, 32, 128>(dtype)
#define FUSEDSC_WINDOWS(T, dtype)                                                                          \
  FUSEDSC_WIDTHS(T, dtype, 4), FUSEDSC_WIDTHS(T, dtype, 8), FUSEDSC_NARROW(T, dtype, 8, 8, 8),             \
      instance<T, 8, 8, 16, 128>(dtype), FUSEDSC_WIDTHS(T, dtype, 16), FUSEDSC_NARROW(T, dtype, 16, 8, 8), \
      instance<T, 16, 8, 16, 128>(dtype)

const Instance kInstances[] = {FUSEDSC_WINDOWS(Float16, DataType::float16),
                               FUSEDSC_WINDOWS(BFloat16, DataType::bfloat16)};

struct Launch {
  const Instance* instance = nullptr;
  SlidingWindowsGradientsParameters p;  ///< but for addresses
  int input_blocks = 0;
  int memory = 0;
};

constexpr int kTile = 64;  ///< positions, and channels of a copy

/// Fitted to the times of all cuts of layers of 32 to 8,192 positions on an H200, in something like microseconds; a
/// single number says little.
struct SlidingWindowsCosts {
  double start = 1.79, group = 0.2;                        ///< of the weight's gradient; a second group of warps
  double narrow = 0.1725, square = 0.342, oblong = 0.237;  ///< tiles of 64 by 64, 128 by 128, 64 by 128, 64 positions
  double sharing = 1.21;                                   ///< times that, for groups that share a multiprocessor
  double sums = 0.455;                                     ///< of a group, thousands
  double meeting[4] = {0, 1.04, 1.26, 1.86};               ///< of clusters of 1, 2, 4 and 8 blocks
  double input = 2.87, round = 0.6,
         filter = 0.0058;  ///< of the input gradient; 64 positions; of which a window's filter
  double wide = 1.57;      ///< times that, for 128 channels
  double beside = 0.089;   ///< how much of the shorter one is noticed
};
constexpr SlidingWindowsCosts kCosts;

/// How both gradients share the multiprocessors, with so many groups of warps in a block, and 1 << doublings blocks in
/// a cluster. Returns its cost: that of the longer one.
double share(const SlidingChannelBackwardArguments& a, int groups, int doublings, Launch& launch) {
  const Instance& instance = *launch.instance;
  SlidingWindowsInputParameters& input = launch.p.input;
  SlidingWindowsWeightParameters& weight = launch.p.weight;
  const int cluster = 1 << doublings;
  const int size = cluster > 2 ? room_for_clusters(multiprocessors()) : multiprocessors() / cluster * cluster;
  const bool is_wide = instance.channels() > kTile;
  double input_cost = 0, weight_cost = 0;
  input.groups = weight.groups = groups;
  weight.cluster = cluster;
  launch.p.weight_blocks = a.grad_weight ? weight.channel_tiles * weight.output_tiles * cluster : 0;
  int left = size - launch.p.weight_blocks;
  const bool is_beside = left >= input.channel_tiles;
  if (!is_beside) left = std::max(size, input.channel_tiles);
  if (a.grad_x) {
    const std::int64_t per_tile = std::int64_t{left} / input.channel_tiles * groups;
    const std::int64_t rounds = divide_up(input.pixel_tiles, per_tile);
    input.splits = static_cast<int>(divide_up(input.pixel_tiles, rounds * groups));
    launch.input_blocks =
        static_cast<int>(divide_up(std::int64_t{input.channel_tiles} * input.splits, cluster) * cluster);
    input.stages = static_cast<int>(std::min<std::int64_t>(16, rounds * input.depth_steps));
    input_cost = kCosts.input + static_cast<double>(rounds) * (kCosts.round + kCosts.filter * groups * weight.filters) *
                                    (is_wide ? kCosts.wide : 1);
  }
  if (a.grad_weight) {
    const std::int64_t tiles = divide_up(weight.pixel_tiles, groups * cluster);
    const double tile = is_wide ? kCosts.square : instance.outputs > kTile ? kCosts.oblong : kCosts.narrow;
    const double sums = 1e-3 * groups * instance.channels() * instance.outputs / instance.windows;
    weight.stages = static_cast<int>(std::min<std::int64_t>(8, tiles));
    weight_cost = kCosts.start + kCosts.group * (groups - 1) + kCosts.sums * sums + kCosts.meeting[doublings] +
                  static_cast<double>(tiles) * tile * (groups > 1 ? kCosts.sharing : 1);
  }
  const auto input_memory = [&] {
    return a.grad_x ? instance.input_memory(input.depth_steps, input.box_steps, groups, input.stages) : 0;
  };
  const auto weight_memory = [&] { return a.grad_weight ? instance.weight_memory(groups, weight.stages) : 0; };
  while (input.stages > 1 && input_memory() > kMemoryLimit) --input.stages;
  while (weight.stages > 1 && weight_memory() > kMemoryLimit) --weight.stages;
  launch.memory = std::max(input_memory(), weight_memory());
  if (launch.memory > kMemoryLimit) return std::numeric_limits<double>::infinity();
  if (!is_beside) return input_cost + weight_cost;
  return std::max(input_cost, weight_cost) + kCosts.beside * std::min(input_cost, weight_cost);
}

/// What does not depend on how it is cut.
Launch launch_by(const Instance& instance, const SlidingChannelBackwardArguments& a, const SlidingChannels& windows) {
  constexpr int kMostBoxFilters = 64;
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], filters = a.weight.sizes[0] / windows.cycle;
  Launch launch;
  launch.instance = &instance;
  SlidingWindowsInputParameters& input = launch.p.input;
  SlidingWindowsWeightParameters& weight = launch.p.weight;
  input.step = weight.step = static_cast<int>(windows.step);
  input.channel_tiles = weight.channel_tiles = static_cast<int>(divide_up(windows.channels, instance.channels()));
  input.pixel_tiles = static_cast<int>(divide_up(pixels, kTile));
  input.depth_steps = static_cast<int>(divide_up(filters, instance.depth));
  input.box_steps = std::min(input.depth_steps, kMostBoxFilters / instance.depth);
  weight.pixel_tiles = input.pixel_tiles;
  weight.output_tiles = static_cast<int>(divide_up(a.weight.sizes[0], instance.outputs));
  weight.filters = static_cast<int>(filters);
  return launch;
}

/// Channels of a block, outputs of a tile of the weight's gradient, groups of warps and blocks of a cluster. Whatever
/// else a launch has follows from these.
Config config_of(const Launch& launch) {
  using enum Knob;
  return {{channels, launch.instance->channels()},
          {rows, launch.instance->outputs},
          {groups, launch.p.input.groups},
          {cluster, launch.p.weight.cluster}};
}

/// Visits each launch that there is with its cost.
template <class Visit>
void for_each_launch(const SlidingChannelBackwardArguments& a, const Visit& visit) {
  const SlidingChannels windows = sliding_channels_of(a);
  for (const Instance& instance : kInstances) {
    if (!instance.suits(windows, a.x.dtype)) continue;
    Launch launch = launch_by(instance, a, windows);
    for (int groups = 1; groups <= kMostGroups; ++groups) {
      for (int doublings = 0; doublings <= kMostDoublings; ++doublings) {
        const double cost = share(a, groups, doublings, launch);
        if (cost < std::numeric_limits<double>::infinity()) visit(launch, cost);
      }
    }
  }
}

Configs configs(const SlidingChannelBackwardArguments& a) {
  Configs list;
  for_each_launch(a, [&](const Launch& launch, double) { list.push_back(config_of(launch)); });
  return list;
}

std::string why_not(const SlidingChannelBackwardArguments& a) {
  if (a.prologue || a.gradient_prologue || a.sums || a.grad_add || a.grad_bias)
    return "there is a bias, a prologue or an epilogue";
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t step = windows.step;
  if (windows.width != 2 * step || windows.channels != windows.cycle * step ||
      (step != 8 && step != 16 && step != 32 && step % 64 != 0)) {
    return "windows do not share half of their channels, 8, 16, 32 or a multiple of 64";
  }
  if (a.weight.sizes[0] % windows.cycle != 0) return "some windows have more filters than others";
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, 1, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  if (!reason.empty()) return reason;
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  if (!suits_tma(activation_matrix(a.grad_y, 1, true)) || !suits_tma(activation_matrix(a.x, 1, true)) ||
      !suits_tma(output_matrix(a.grad_x, 1, true)) || !suits_tma(a.weight)) {
    return kUnsuited;
  }
  if (a.grad_weight && (a.grad_weight.strides[1] != 1 || a.grad_weight.strides[0] % 2 != 0 ||
                        reinterpret_cast<std::uintptr_t>(a.grad_weight.data) % 4 != 0)) {
    return "the weight's gradient is not dense";
  }
  return configs(a).empty() ? "there is no kernel of so many windows, or no room for their weight" : "";
}

void run(const Launch& launch, const SlidingChannelBackwardArguments& a, const Execution& execution) {
  const Instance& instance = *launch.instance;
  SlidingWindowsGradientsParameters p = launch.p;
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const auto map = [&](const auto& matrix, std::int64_t channels) {
    return map_of(matrix.data, a.x.dtype, channels, pixels, matrix.first, kTile, kTile);
  };
  if (a.grad_x) {
    p.input.grad_y = map(activation_matrix(a.grad_y, 1, true), a.grad_y.sizes[1]);
    p.input.grad_x = map(output_matrix(a.grad_x, 1, true), a.x.sizes[1]);
    const std::int64_t filter = a.weight.strides[0], windows = instance.windows;
    const ConstTensorView by_windows{a.weight.data,
                                     a.weight.dtype,
                                     {1, a.weight.sizes[1], windows, a.weight.sizes[0] / windows},
                                     {0, 1, filter, windows * filter},
                                     a.weight.device};
    p.input.weight = map_of_images(by_windows, instance.box, p.input.box_steps * instance.depth, 1, 1, true);
  }
  if (a.grad_weight) {
    p.weight.grad_y = map(activation_matrix(a.grad_y, 1, true), a.grad_y.sizes[1]);
    p.weight.x = map(activation_matrix(a.x, 1, true), a.x.sizes[1]);
    p.weight.weight = a.grad_weight.data;
    p.weight.weight_row = a.grad_weight.strides[0];
  }
  launch_clusters(kName, instance.kernel, std::int64_t{p.weight_blocks} + launch.input_blocks, p.input.groups * 128,
                  execution.stream, p, static_cast<std::size_t>(launch.memory), p.weight.cluster);
}

Plan<SlidingChannelBackwardArguments> plan_backward(const SlidingChannelBackwardArguments& a, const Config& config,
                                                    int /*threads*/) {
  Launch found;
  for_each_launch(a, [&](const Launch& launch, double) {
    if (config_of(launch) == config) found = launch;
  });
  if (found.instance == nullptr) throw_no_tile(kName, "hopper_windows", config);
  return {0, [launch = found](const SlidingChannelBackwardArguments& like, const Execution& execution) {
            run(launch, like, execution);
          }};
}

}  // namespace

Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_windows() {
  return {"hopper_windows", why_not, configs, plan_backward};
}

bool suits_sliding_channel_backward_windows(const SlidingChannelBackwardArguments& a) {
  // Of more, one pass over x and grad_y is worth more, or multiplying zeros takes no longer.
  constexpr std::int64_t kMostPositions = 16000;
  return a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3] <= kMostPositions;
}

Config sliding_channel_backward_windows_prior(const SlidingChannelBackwardArguments& a) {
  Config best;
  double best_cost = std::numeric_limits<double>::infinity();
  for_each_launch(a, [&](const Launch& launch, double cost) {
    if (cost >= best_cost) return;
    best_cost = cost;
    best = config_of(launch);
  });
  return best;
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
