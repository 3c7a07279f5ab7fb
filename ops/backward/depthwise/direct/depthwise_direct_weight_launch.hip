#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/direct/depthwise_direct_weight_kernel.h"
#include "fusedsc/backward/depthwise/rows/depthwise_passes.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct_plan.h"

namespace fusedsc::gpu {
namespace {

/// Of 32 threads, in a block, so that each of these has the registers it wants.
constexpr int most_groups(int kernel) { return kernel == 3 ? 16 : 8; }

template <class T, int kKernel, int kStride, int kChannels, int kRows, int kLanes>
FUSEDSC_KERNEL(32 * most_groups(kKernel), 1)
direct_weight_kernel(DepthwiseDirectWeightParameters parameters) {
  DepthwiseDirectWeight<T, kKernel, kStride, kChannels, kRows, kLanes>::run(parameters);
}

struct Instance {
  DataType dtype;
  int kernel, stride;  ///< stride 0: any
  bool channels_last;
  DirectTile tile;
  int lanes;  ///< threads with neighbouring channels
  int loads;  ///< of an item
  void (*run)(DepthwiseDirectWeightParameters);
  std::size_t group_bytes;  ///< of shared memory

  int taps() const { return kernel * kernel; }
  int set_channels() const { return tile.channels * lanes; }
};

/// kStride 0: any, where a thread has one row.
template <class T, bool kChannelsLast, int kKernel, int kChannels, int kRows, int kLanes, int kStride>
void append(std::vector<Instance>& to, DataType dtype) {
  constexpr int kStep = kStride > 0 ? kStride : 1;
  static_assert(kStride > 0 || kRows == 1);
  using Kernel = DepthwiseDirectWeight<T, kKernel, kStep, kChannels, kRows, kLanes>;
  to.push_back({dtype,
                kKernel,
                kStride,
                kChannelsLast,
                {kChannels, kRows},
                kLanes,
                Kernel::kLoads,
                direct_weight_kernel<T, kKernel, kStep, kChannels, kRows, kLanes>,
                Kernel::kSetSums * sizeof(Accumulator<T>)});
}

template <class T, bool kChannelsLast, int kKernel, int kChannels, int kRows, int kLanes>
void append_strides(std::vector<Instance>& to, DataType dtype) {
  append<T, kChannelsLast, kKernel, kChannels, kRows, kLanes, 1>(to, dtype);
  append<T, kChannelsLast, kKernel, kChannels, kRows, kLanes, 2>(to, dtype);
}

/// The best of many for small layers on an H200 (docs/log/performance_gpu_depthwise.md), and one for any channels.
template <class T, int kKernel>
void append_kernel(std::vector<Instance>& to, DataType dtype) {
  constexpr bool kIsSmall = kKernel == 3;
  append<T, false, kKernel, 1, 1, 1, 0>(to, dtype);
  append<T, true, kKernel, 1, 1, 8, 0>(to, dtype);
  if constexpr (sizeof(T) < 8) append_strides<T, false, kKernel, 1, kIsSmall ? 4 : 2, 1>(to, dtype);
  if constexpr (sizeof(T) == 4) append_strides<T, true, kKernel, kIsSmall ? 2 : 1, 2, kIsSmall ? 4 : 8>(to, dtype);
  if constexpr (sizeof(T) == 2) {
    append<T, true, kKernel, 2, 1, 8, 0>(to, dtype);
    append_strides<T, true, kKernel, kIsSmall ? 4 : 2, 2, 4>(to, dtype);
  }
}

template <class T>
void append_type(std::vector<Instance>& to, DataType dtype) {
  append_kernel<T, 3>(to, dtype);
  append_kernel<T, 5>(to, dtype);
}

std::span<const Instance> instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_type<Float16>(list, DataType::float16);
    append_type<BFloat16>(list, DataType::bfloat16);
    append_type<float>(list, DataType::float32);
    append_type<double>(list, DataType::float64);
    return list;
  }();
  return all;
}

bool is_channels_last(const DepthwiseBackwardArguments& a) { return a.grad_y.strides[1] < a.grad_y.strides[3]; }

/// Whether the instance can compute it.
bool knows(const Instance& instance, const DepthwiseBackwardArguments& a) {
  return instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] &&
         (instance.stride == 0 || instance.stride == a.window.stride[0]) &&
         instance.channels_last == is_channels_last(a) &&
         (instance.tile.channels == 1 || channels_join(instance.tile.channels, {a.x, a.grad_y}));
}

/// How the threads of a weight gradient share it out.
struct DirectWeightCut {
  int channels, rows;  ///< of outputs that a thread has at a time
  int lanes;           ///< threads with neighbouring channels
  int groups;          ///< of 32 threads of a block, that have the same channels
  int splits;          ///< blocks with the same channels; a second kernel adds up what more than one leaves
};

/// How much there is of what a cut shares out.
struct Shares {
  std::int64_t items, row_groups;  ///< of all threads with the same channels; of an image
  std::int64_t item_lanes;         ///< of a block: threads with the same channels
  std::int64_t sets, blocks;       ///< sets: of a block

  Shares(const Instance& instance, const DirectWeightCut& cut, const DepthwiseBackwardArguments& a)
      : row_groups(divide_up(a.grad_y.sizes[2], instance.tile.rows)), item_lanes(cut.groups * (32 / instance.lanes)) {
    constexpr int kLeastGroups = 4;  // of a block, where there are so many
    items = a.grad_y.sizes[0] * row_groups * a.grad_y.sizes[3];
    const std::int64_t all = divide_up(a.x.sizes[1], instance.set_channels());
    sets = std::min<std::int64_t>(all, std::max(1, kLeastGroups / cut.groups));
    blocks = divide_up(all, sets) * cut.splits;
  }
};

Config config_of(const DirectWeightCut& cut) {
  return {{Knob::channels, cut.channels},
          {Knob::rows, cut.rows},
          {Knob::lanes, cut.lanes},
          {Knob::groups, cut.groups},
          {Knob::splits, cut.splits}};
}
DirectWeightCut cut_of(const Config& config) {
  return {config[Knob::channels], config[Knob::rows], config[Knob::lanes], config[Knob::groups], config[Knob::splits]};
}

/// Calls visit(instance, cut) for all that can be.
template <class Visit>
void for_each_cut(const DepthwiseBackwardArguments& a, const Visit& visit) {
  for (const Instance& instance : instances()) {
    if (!knows(instance, a)) continue;
    for (int groups = 1; groups <= most_groups(instance.kernel); groups *= 2) {
      DirectWeightCut cut{instance.tile.channels, instance.tile.rows, instance.lanes, groups, 1};
      const Shares shares(instance, cut, a);
      if (groups > 1 && shares.item_lanes >= 2 * shares.items) break;  // half of the threads without work, or more
      const std::int64_t most = divide_up(shares.items, shares.item_lanes),
                         fill = 2 * multiprocessors() / shares.blocks;
      int last = 0;
      for (const std::int64_t splits : {std::int64_t{1}, fill / 2, fill, 2 * fill}) {
        cut.splits = static_cast<int>(std::clamp<std::int64_t>(splits, 1, most));
        if (cut.splits != last) visit(instance, cut);
        last = cut.splits;
      }
    }
  }
}

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_weight && !a.grad_bias) return "neither grad_weight nor grad_bias is wanted";
  if (a.prologue || a.gradient_prologue) return "it has no prologues";
  const std::string why = why_no_direct(a.x, a.grad_y, a.window);
  if (!why.empty()) return why;
  return a.window.kernel[0] > 5 ? "it is for windows of 3 x 3 and 5 x 5" : "";
}

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for_each_cut(a, [&](const Instance&, const DirectWeightCut& cut) { list.push_back(config_of(cut)); });
  return list;
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const DirectWeightCut cut = cut_of(config);
  const auto all = instances();
  const auto instance = std::find_if(all.begin(), all.end(), [&](const Instance& one) {
    return knows(one, a) && one.tile.channels == cut.channels && one.tile.rows == cut.rows && one.lanes == cut.lanes;
  });
  if (instance == all.end() || cut.groups < 1 || cut.groups > most_groups(instance->kernel) || cut.splits < 1) {
    throw Unsupported(std::string(kDepthwiseBackward) + ": gpu_direct: there is no kernel with " +
                      tuning::printed(config));
  }
  const Shares shares(*instance, cut, a);
  DepthwiseDirectWeightParameters planned;
  planned.x = compact(a.x);
  planned.grad_y = compact(a.grad_y);
  planned.channels = static_cast<int>(a.x.sizes[1]);
  planned.height = static_cast<int>(a.x.sizes[2]);
  planned.width = static_cast<int>(a.x.sizes[3]);
  planned.grad_height = static_cast<int>(a.grad_y.sizes[2]);
  planned.grad_width = static_cast<int>(a.grad_y.sizes[3]);
  planned.stride_height = static_cast<int>(a.window.stride[0]);
  planned.stride_width = static_cast<int>(a.window.stride[1]);
  planned.padding_top = static_cast<int>(a.window.padding.top);
  planned.padding_left = static_cast<int>(a.window.padding.left);
  DirectWeightWork& work = planned.work;
  work.sets = static_cast<int>(shares.sets);
  work.set_groups = cut.groups;
  work.items = static_cast<std::uint32_t>(shares.items);
  work.item_step = static_cast<std::uint32_t>(shares.item_lanes * cut.splits);
  work.by_set_groups = Divisor(static_cast<std::uint32_t>(cut.groups));
  work.by_splits = Divisor(static_cast<std::uint32_t>(cut.splits));
  work.columns = Divisor(static_cast<std::uint32_t>(planned.grad_width));
  work.row_groups = Divisor(static_cast<std::uint32_t>(shares.row_groups));
  const auto sum_bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
  const int splits = cut.splits;
  const auto workspace_bytes =
      static_cast<std::size_t>(splits > 1 ? splits * (instance->taps() + 1) * planned.channels * sum_bytes : 0);
  return {workspace_bytes, [planned, splits, kernel = instance->run, blocks = shares.blocks,
                            memory = instance->group_bytes * static_cast<std::size_t>(work.groups())](
                               const DepthwiseBackwardArguments& like, const Execution& execution) {
            DepthwiseDirectWeightParameters p = planned;
            p.x.data = like.x.data;
            p.grad_y.data = like.grad_y.data;
            p.grad_weight = like.grad_weight;
            p.grad_bias = like.grad_bias.data;
            if (splits > 1) p.partials = execution.workspace;
            launch_following(kDepthwiseBackward, kernel, blocks, p.work.threads(), execution.stream, p,
                             spread(blocks, memory));
            if (splits == 1) return;
            launch_sum_of_weight_gradient(like, depthwise_shape(like.x.sizes, like.grad_y.sizes, like.window),
                                          p.partials, splits, execution);
          }};
}

/// What a launch takes, in cycles: a thread's items, one after the other, or a multiprocessor's, and then the sums.
/// Fitted to 12,000 cuts of small layers on an H200.
double cost_of(const Instance& instance, const DirectWeightCut& cut, const DepthwiseBackwardArguments& a) {
  const Shares shares(instance, cut, a);
  const int bytes = static_cast<int>(size_of(a.x.dtype)), channels = instance.tile.channels;
  const int words = std::max(1, channels * bytes / 4), conversions = bytes == 2 ? channels : 0;
  const double sums = channels * (instance.taps() + 1);
  const double instructions = 60 + 2.4 * instance.loads * (3 + words + conversions) + instance.tile.rows * sums;
  const double lines = instance.channels_last
                           ? 32.0 / instance.lanes  // of 128 bytes, for a load of a wave
                           : 0.5 + static_cast<double>(std::max<std::int64_t>(1, bytes * a.window.stride[1] / 4));
  const auto waves = static_cast<double>(divide_up(shares.blocks, multiprocessors()) * shares.sets * cut.groups);
  const double of_all = waves * std::max(instructions / 4, 0.85 * instance.loads * lines);
  const auto items = static_cast<double>(divide_up(shares.items, shares.item_lanes * cut.splits));
  const double second_kernel = cut.splits > 1 ? 1260 + 6.0 * cut.splits : 0;
  return items * std::max(instructions + 760, of_all) + 9.0 * cut.groups + 11 * sums + second_kernel;
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_direct_weight() { return {"gpu_direct", unsupported, configs, plan}; }

Config depthwise_direct_weight_prior(const DepthwiseBackwardArguments& a) {
  std::optional<DirectWeightCut> best;
  double least = 0;
  for_each_cut(a, [&](const Instance& instance, const DirectWeightCut& cut) {
    const double cost = cost_of(instance, cut, a);
    if (best && cost >= least) return;
    best = cut;
    least = cost;
  });
  return config_of(*best);
}

}  // namespace fusedsc::gpu
