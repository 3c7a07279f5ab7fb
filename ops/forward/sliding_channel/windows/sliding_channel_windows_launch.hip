#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <iterator>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/forward/sliding_channel/windows/sliding_channel_windows_folded_kernel.h"
#include "fusedsc/forward/sliding_channel/windows/sliding_channel_windows_kernel.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "sliding_channel_conv2d";

constexpr int kMostGroups = 2;  ///< of warps, in a block

constexpr int kTile = 64;       ///< positions, and channels of x
constexpr int kAlignment = 16;  ///< of the weight, in bytes

struct Instance {
  DataType dtype;
  int windows, filters, part, own;  ///< part 0: two positions in a row
  int box;
  void (*kernel)(SlidingWindowsParameters);
  int (*memory)(int step, int groups, int stages);

  bool has_all() const { return own == windows; }
  int fold() const { return part == 0 ? 2 : 1; }
  std::int64_t channel_tiles(std::int64_t outputs) const {
    return divide_up(outputs, windows * filters) * (windows / own);
  }
  /// Of 64 channels, for windows that begin so many channels one after the other.
  int depth_steps(std::int64_t step) const {
    return static_cast<int>(divide_up((has_all() ? windows : own + 1) * step, kTile));
  }
};

template <class T, int kWindows, int kFilters, int kPart, int kOwn = kWindows>
constexpr Instance instance(DataType dtype) {
  using Product = SlidingWindowsProduct<T, kWindows, kFilters, kPart, kOwn>;
  return {dtype,
          kWindows,
          kFilters,
          kPart,
          kOwn,
          Product::kBox,
          hopper_kernel<Product, kMostGroups * 128>,
          Product::memory_bytes};
}

template <class T, int kWindows>
constexpr Instance folded_instance(DataType dtype) {
  using Product = SlidingWindowsFolded<T, kWindows>;
  return {dtype,
          kWindows,
          Product::kFilters,
          0,
          kWindows,
          0,
          hopper_kernel<Product, kMostGroups * 128>,
          Product::memory_bytes};
}

#define FUSEDSC_PARTS(T, dtype, windows, filters)                                     \
  instance<T, windows, filters, 16>(dtype), instance<T, windows, filters, 32>(dtype), \
      instance<T, windows, filters, 64>(dtype)
#define FUSEDSC_WINDOWS(T, dtype)                                                                         \
  FUSEDSC_PARTS(T, dtype, 4, 16), FUSEDSC_PARTS(T, dtype, 4, 32), instance<T, 8, 8, 8>(dtype),            \
      FUSEDSC_PARTS(T, dtype, 8, 8), instance<T, 8, 16, 8>(dtype), FUSEDSC_PARTS(T, dtype, 8, 16),        \
      instance<T, 16, 4, 4>(dtype), instance<T, 16, 8, 4>(dtype), instance<T, 16, 8, 8>(dtype),           \
      FUSEDSC_PARTS(T, dtype, 16, 8), instance<T, 8, 16, 64, 4>(dtype), instance<T, 16, 8, 32, 8>(dtype), \
      instance<T, 16, 8, 64, 8>(dtype), folded_instance<T, 4>(dtype), folded_instance<T, 8>(dtype),       \
      folded_instance<T, 16>(dtype)

const Instance kInstances[] = {FUSEDSC_WINDOWS(Float16, DataType::float16),
                               FUSEDSC_WINDOWS(BFloat16, DataType::bfloat16)};

/// How it is cut.
struct Launch {
  const Instance* instance = nullptr;
  SlidingWindowsParameters p;  ///< but for addresses
};

/// Positions that lie in a row of 64 channels.
int fold_of(const SlidingChannelArguments& a) {
  constexpr std::int64_t kFoldedChannels = 32;
  const std::int64_t channels = a.x.sizes[1], outputs = a.weight.sizes[0],
                     pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const bool folds = channels == kFoldedChannels && pixels % 2 == 0 && outputs % kTile == 0 &&
                     activation_matrix(a.x, 1, true).first == channels &&
                     output_matrix(a.y, 1, true).first == outputs &&
                     reinterpret_cast<std::uintptr_t>(a.weight.data) % kAlignment == 0 && a.weight.strides[1] == 1 &&
                     a.weight.strides[0] % std::min<std::int64_t>(a.weight.sizes[1], 8) == 0;
  return folds ? 2 : 1;
}

/// How many windows a block is to have: half of them where few blocks would have many steps one after the other.
/// Measured on an H200 (docs/log/performance_gpu_sliding_channel.md).
std::int64_t windows_of_block(const SlidingChannels& windows, std::int64_t outputs, std::int64_t pixels) {
  constexpr std::int64_t kLeastSteps = 8192, kMostTiles = 16, kMostOutputs = 128;
  const std::int64_t tiles = divide_up(pixels, kTile);
  const bool halves = windows.cycle >= 8 && windows.channels * windows.cycle >= kLeastSteps && tiles <= kMostTiles &&
                      tiles * divide_up(outputs, kMostOutputs) <= multiprocessors();
  return halves ? windows.cycle / 2 : windows.cycle;
}

/// Whether an instance is one for these windows, and its blocks fit the GPU.
bool fits(const Instance& instance, const SlidingChannelArguments& a, const SlidingChannels& windows, int fold) {
  return instance.dtype == a.x.dtype && instance.windows == windows.cycle &&
         instance.part == (fold > 1 ? 0 : std::min<std::int64_t>(windows.step, kTile)) &&
         instance.memory(static_cast<int>(windows.step), 1, 2) <= kMemoryLimit;
}

/// Groups of warps that have work.
int groups_of(const SlidingWindowsParameters& p) {
  const std::int64_t per_tile = std::max<std::int64_t>(1, multiprocessors() / p.channel_tiles);
  return static_cast<int>(std::clamp<std::int64_t>(divide_up(p.pixel_tiles, per_tile), 1, kMostGroups));
}

/// With at most so many groups of warps in a block; fewer where there is no room.
Launch launch_by(const Instance& instance, const SlidingChannelArguments& a, int most_groups) {
  constexpr int kMostStages = 16;
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t outputs = a.weight.sizes[0], pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  Launch launch;
  launch.instance = &instance;
  SlidingWindowsParameters& p = launch.p;
  p.pixel_tiles = static_cast<int>(divide_up(pixels / instance.fold(), kTile));
  p.step = static_cast<int>(windows.step);
  p.outputs = static_cast<int>(outputs);
  p.channel_tiles = static_cast<int>(instance.channel_tiles(outputs));
  p.depth_steps = windows.step <= 8 ? 1 : instance.depth_steps(windows.step);
  const auto memory = [&](int groups, int stages) { return instance.memory(p.step, groups, stages); };
  p.groups = most_groups;
  while (p.groups > 1 && memory(p.groups, 2) > kMemoryLimit) --p.groups;
  const std::int64_t per_tile = std::max<std::int64_t>(1, multiprocessors() / p.channel_tiles);
  const std::int64_t rounds = divide_up(p.pixel_tiles, per_tile * p.groups);
  p.splits = static_cast<int>(divide_up(p.pixel_tiles, rounds * p.groups));
  p.stages = static_cast<int>(std::min<std::int64_t>(kMostStages, rounds * p.depth_steps));
  p.stages = std::max(p.stages, 2);
  while (memory(p.groups, p.stages) > kMemoryLimit) --p.stages;
  return launch;
}

/// Outputs of a block, filters of each of its windows, and groups of warps. Whatever else a launch has follows from
/// these.
Config config_of(const Launch& launch) {
  using enum Knob;
  return {{channels, launch.instance->own * launch.instance->filters},
          {columns, launch.instance->filters},
          {groups, launch.p.groups}};
}

/// Visits each launch that there is, once.
template <class Visit>
void for_each_launch(const SlidingChannelArguments& a, const Visit& visit) {
  const SlidingChannels windows = sliding_channels_of(a);
  const int fold = fold_of(a);
  for (const Instance& instance : kInstances) {
    if (!fits(instance, a, windows, fold)) continue;
    for (int groups = 1; groups <= kMostGroups; ++groups) {
      const Launch launch = launch_by(instance, a, groups);
      if (launch.p.groups == groups) visit(launch);
    }
  }
}

Configs configs(const SlidingChannelArguments& a) {
  Configs list;
  for_each_launch(a, [&](const Launch& launch) { list.push_back(config_of(launch)); });
  return list;
}

std::string why_not(const SlidingChannelArguments& a) {
  if (a.bias || a.prologue || a.epilogue || a.statistics) return "there is a bias, a prologue or an epilogue";
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t step = windows.step;
  const int fold = fold_of(a);
  if (windows.width != 2 * step || windows.channels != windows.cycle * step ||
      (fold == 1 && step != 4 && step != 8 && step != 16 && step != 32 && step % 64 != 0)) {
    return "windows do not share half of their channels, 4, 8, 16, 32 or a multiple of 64";
  }
  if (a.weight.sizes[0] % windows.cycle != 0) return "some windows have more filters than others";
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, 1, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  if (!reason.empty()) return reason;
  reason = too_large_for_pointwise(a.x.sizes, a.y.sizes);
  if (!reason.empty()) return reason;
  if (!suits_tma(activation_matrix(a.x, 1, true)) || !suits_tma(output_matrix(a.y, 1, true)) ||
      (fold == 1 && !suits_tma(a.weight))) {
    return kUnsuited;
  }
  const bool has_instance = std::any_of(std::begin(kInstances), std::end(kInstances),
                                        [&](const Instance& instance) { return fits(instance, a, windows, fold); });
  return has_instance ? "" : "there is no kernel of so many windows, or no room for their weight";
}

/// The weight as an image: rows are windows, and columns their filters.
ConstTensorView by_windows(const SlidingChannelArguments& a, std::int64_t windows) {
  const std::int64_t filter = a.weight.strides[0];
  return {a.weight.data,
          a.weight.dtype,
          {1, a.weight.sizes[1], windows, a.weight.sizes[0] / windows},
          {0, 1, filter, windows * filter},
          a.weight.device};
}

void run(const Launch& launch, const SlidingChannelArguments& a, const Execution& execution) {
  const Instance& instance = *launch.instance;
  SlidingWindowsParameters p = launch.p;
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const int fold = instance.fold();
  check_alignment("weight", a.weight.data, kAlignment);
  const auto map = [&](const auto& matrix, std::int64_t channels) {
    return map_of(matrix.data, a.x.dtype, fold * channels, pixels / fold, fold * matrix.first, kTile, kTile);
  };
  p.x = map(activation_matrix(a.x, 1, true), a.x.sizes[1]);
  p.y = map(output_matrix(a.y, 1, true), a.y.sizes[1]);
  if (fold == 1) {
    p.weight = map_of_images(by_windows(a, instance.windows), instance.box, instance.filters, 1, 1, true);
  }
  p.weight_data = a.weight.data;
  p.y_data = a.y.data;
  p.y_row = output_matrix(a.y, 1, true).first;
  p.pixels = pixels;
  p.weight_row = a.weight.strides[0];
  const std::int64_t blocks = std::int64_t{p.channel_tiles} * p.splits;
  const auto memory = static_cast<std::size_t>(instance.memory(p.step, p.groups, p.stages));
  launch_following(kName, instance.kernel, blocks, p.groups * 128, execution.stream, p, spread(blocks, memory));
}

Plan<SlidingChannelArguments> plan_forward(const SlidingChannelArguments& a, const Config& config, int /*threads*/) {
  Launch found;
  for_each_launch(a, [&](const Launch& launch) {
    if (config_of(launch) == config) found = launch;
  });
  if (found.instance == nullptr) throw_no_tile(kName, "hopper_windows", config);
  return {0, [launch = found](const SlidingChannelArguments& like, const Execution& execution) {
            run(launch, like, execution);
          }};
}

}  // namespace

Kernel<SlidingChannelArguments> sliding_channel_windows() { return {"hopper_windows", why_not, configs, plan_forward}; }

namespace {

/// The one that the prior takes; none where only blocks with some of the windows fit, but all are to be in one.
const Instance* preferred(const SlidingChannelArguments& a) {
  const SlidingChannels windows = sliding_channels_of(a);
  const std::int64_t outputs = a.weight.sizes[0], pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  const int fold = fold_of(a);
  const std::int64_t pixel_tiles = divide_up(pixels / fold, kTile), size = multiprocessors();
  const Instance* best = nullptr;
  for (const Instance& instance : kInstances) {
    // Those whose blocks have some of the windows: where they are to.
    const bool has_some = !instance.has_all() && instance.own == windows_of_block(windows, outputs, pixels);
    if (!fits(instance, a, windows, fold) || !(instance.has_all() || has_some)) continue;
    // The wider one, unless that leaves multiprocessors without work, or groups of warps with so few tiles and so few
    // steps each that what counts is how many tiles are under way.
    const std::int64_t tiles = pixel_tiles * instance.channel_tiles(outputs);
    const bool has_work = tiles * 4 >= size * 3,
               has_much = windows.channels > 2 * kTile || tiles <= size || tiles > size * 2 * kMostGroups;
    // Those of some windows come last.
    if (best != nullptr && instance.has_all() && !(has_work && has_much)) continue;
    best = &instance;
  }
  return best;
}

}  // namespace

bool suits_sliding_channel_windows(const SlidingChannelArguments& a) { return preferred(a) != nullptr; }

Config sliding_channel_windows_prior(const SlidingChannelArguments& a) {
  const Instance* const best = preferred(a);
  return best != nullptr ? config_of(launch_by(*best, a, groups_of(launch_by(*best, a, 1).p))) : Config();
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
