#include "fusedsc/backward/pointwise/cpu/pointwise_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/backward/pointwise/cpu/pointwise_cpu.cpp"
#include "hwy/foreach_target.h"

#include <optional>
#include <vector>

#include "fusedsc/backward/pointwise/cpu/pointwise_backward-inl.h"
#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_tiling-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Which of two ways lanes share a weight gradient out: "splits=1" and "splits=16".
enum class WeightCopies { derived, one, of_each_lane };

struct PointwiseBackwardTiling : PointwiseTiling {
  WeightCopies copies = WeightCopies::derived;

  explicit PointwiseBackwardTiling(const Config& config) : PointwiseTiling(config) {
    if (config[Knob::splits] != 0) copies = config[Knob::splits] == 1 ? WeightCopies::one : WeightCopies::of_each_lane;
  }
};

/// Lanes take slices of the positions; each has its own copy of the weight gradient, and a second pass adds them.
/// Where the weight is large for the number of positions those copies would cost more than they save: then lanes take
/// slices for the input gradient, and afterwards, for the weight gradient, every position and some of the channels of
/// the wider tensor: of that one each lane reads its own part only, of more positions at a time.
template <class T, template <class> class Order>
class PointwiseBackward {
 public:
  using Major = Order<T>;

  PointwiseBackward(const PointwiseBackwardArguments& arguments, int threads, void* workspace,
                    const PointwiseBackwardTiling& tiling)
      : arguments_(arguments),
        tiling_(tiling),
        views_(arguments, !Major::kChannelMajor),
        channels_(views_.x.sizes[1]),
        outputs_(views_.grad_y.sizes[1]),
        tiles_(tiles_of(tiling.positions, threads)),
        window_tiles_(tiles_),
        arena_(workspace),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)) {
    const std::int64_t positions = arguments.x.sizes[0] * arguments.x.sizes[2] * arguments.x.sizes[3];
    windows_ = std::min<std::int64_t>(threads, std::max(channels_, outputs_) / kLanes<T>);
    by_windows_ = arguments.grad_weight && arguments.groups == 1 && lanes_ > 1 && windows_ > 1 &&
                  (tiling.copies == WeightCopies::derived
                       ? 2 * lanes_ * arguments.weight.elements() > positions * (channels_ + outputs_)
                       : tiling.copies == WeightCopies::one);
    if (by_windows_) {
      window_ = window_task({0, round_up((std::max(channels_, outputs_) + windows_ - 1) / windows_, kLanes<T>)});
      window_tiles_ = tiles_of(tile_positions<Major, T>(window_.channels.size() + window_.outputs.size()), threads);
    }
    if (arguments.grad_weight) {
      grad_weight_.emplace(arguments.grad_weight, arguments.groups, Major::kChannelMajor && outputs_ < channels_,
                           by_windows_ ? 1 : std::max<std::int64_t>(lanes_, 1), arena_);
    }
    fusion_.emplace(arguments, tiles_.slices, by_windows_ ? window_tiles_.slices : tiles_.slices, arena_);
  }

  std::size_t workspace_bytes() {
    Arena measured = arena_;
    for (std::int64_t lane = 0; lane < scratch_lanes(); ++lane) tile_scratch(measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    fusion_->prepare();
    std::vector<PointwiseGradientTile<T, Order>> scratch;
    for (std::int64_t lane = 0; lane < scratch_lanes(); ++lane) scratch.push_back(tile_scratch(arena_));
    const bool grad_x = static_cast<bool>(arguments_.grad_x), grad_weight = static_cast<bool>(arguments_.grad_weight);
    const PointwiseGradientTask task{grad_x, grad_weight && !by_windows_, {0, channels_}, {0, outputs_}};
    run_lanes(execution, scratch_lanes(), [&](std::int64_t lane) {
      auto& mine = scratch[static_cast<std::size_t>(lane)];
      if (lane < lanes_ && (grad_x || !by_windows_)) {
        if (grad_x) mine.pack_weight();
        run_slices(tiles_, part_of(tiles_.slices, lanes_, lane), task, lane, mine);
      }
      if (by_windows_ && lane < windows_) run_window(lane, mine);
    });
    if (grad_weight_) grad_weight_->finish(execution, tiles_.count > 0);
    fusion_->finish();
  }

 private:
  /// A lane's part of the weight gradient.
  void run_window(std::int64_t lane, PointwiseGradientTile<T, Order>& scratch) {
    const std::int64_t wider = std::max(channels_, outputs_);
    const Range vectors = part_of((wider + kLanes<T> - 1) / kLanes<T>, windows_, lane);
    const Range window{vectors.begin * kLanes<T>, std::min(vectors.end * kLanes<T>, wider)};
    run_slices(window_tiles_, {0, window_tiles_.slices}, window_task(window), 0, scratch);
  }

  LineTiles tiles_of(std::int64_t positions, int threads) const {
    return {views_.x.sizes, positions, Major::kPositions, threads, !Major::kChannelMajor};
  }

  /// The weight gradient of a window of the wider tensor's channels.
  PointwiseGradientTask window_task(const Range& window) const {
    if (outputs_ < channels_) return {false, true, window, {0, outputs_}};
    return {false, true, {0, channels_}, window};
  }

  std::int64_t scratch_lanes() const { return by_windows_ ? std::max(lanes_, windows_) : lanes_; }

  PointwiseGradientTile<T, Order> tile_scratch(Arena& arena) const {
    return {views_,  arguments_.weight, arguments_.groups, tiles_.size(), window_tiles_.size(),
            window_, grad_weight_,      tiling_.blocks,    arena};
  }

  /// All tiles of the slices, one after the other.
  void run_slices(const LineTiles& tiles, const Range& slices, const PointwiseGradientTask& task, std::int64_t copy,
                  PointwiseGradientTile<T, Order>& scratch) {
    Prefetcher prefetcher;
    bool first = true;
    // In one of the passes over the positions, and there by one lane.
    const bool bias = task.grad_weight == static_cast<bool>(arguments_.grad_weight) && task.channels.begin == 0;
    for (std::int64_t s = slices.begin; s < slices.end; ++s) {
      const auto vectors = fusion_->of_slice(s, task.grad_x, bias, task.outputs);
      const Range mine = tiles.tiles_of(s);
      for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        prefetcher.clear();
        if (i + 1 < tiles.tiles_of(slices.end - 1).end) {
          scratch.prefetch(tiles.tile(i + 1), task, prefetcher);
          prefetcher.start(scratch.steps(tiles.size(), task));
        }
        scratch.run(tiles.tile(i), task, vectors, copy, first, prefetcher);
        first = false;
      }
    }
  }

  const PointwiseBackwardArguments& arguments_;
  PointwiseBackwardTiling tiling_;
  PointwiseGradientViews views_;
  std::int64_t channels_, outputs_;
  LineTiles tiles_, window_tiles_;
  Arena arena_;
  std::int64_t lanes_, windows_ = 0;
  bool by_windows_ = false;
  PointwiseGradientTask window_;  ///< no lane's is larger
  std::optional<WeightGradient<T>> grad_weight_;
  std::optional<BackwardFusion<T, PointwiseBackwardArguments>> fusion_;
};

template <class T>
using PointwiseBackwardByChannel = PointwiseBackward<T, ChannelMajor>;
template <class T>
using PointwiseBackwardByPosition = PointwiseBackward<T, PositionMajor>;

PointwiseWork work_of(const PointwiseBackwardArguments& arguments) {
  const PointwiseGradientViews by_channel(arguments, false), by_position(arguments, true);
  const std::int64_t channels = arguments.x.sizes[1], outputs = arguments.grad_y.sizes[1];
  PointwiseWork work;
  work.contiguous =
      all_contiguous(by_channel.x, by_channel.grad_y, by_channel.output, by_channel.grad_add, by_channel.grad_x);
  work.by_channel = by_channel.x.sizes;
  work.by_position = by_position.x.sizes;
  work.elements = 2 * (channels + outputs);
  work.columns = channels / arguments.groups;
  work.depth = std::max(outputs / arguments.groups, by_position.x.sizes[2] * by_position.x.sizes[3]);
  return work;
}

Config pointwise_backward_prior(const PointwiseBackwardArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(work) : prior_tiling<float>(work)).config();
}

template <class T>
Configs backward_configs(const PointwiseBackwardArguments& arguments) {
  Configs configs = pointwise_configs<T>(work_of(arguments));
  const bool may_be_shared = std::max(arguments.x.sizes[1], arguments.grad_y.sizes[1]) >= 2 * kLanes<T>;
  if (!arguments.grad_weight || arguments.groups > 1 || !may_be_shared) return configs;
  const Config prior = configs.front();
  for (const std::int32_t splits : {1, static_cast<std::int32_t>(Slices::kSlices)}) {
    configs.push_back(prior);
    configs.back()[Knob::splits] = splits;
  }
  return configs;
}

Configs pointwise_backward_all(const PointwiseBackwardArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? backward_configs<double>(arguments)
                                                : backward_configs<float>(arguments);
}

Plan<PointwiseBackwardArguments> pointwise_backward_plan(const PointwiseBackwardArguments& arguments,
                                                         const Config& config, int threads) {
  const PointwiseBackwardTiling tiling(config);
  if (tiling.channel_major) return plan_of_pass_by_type<PointwiseBackwardByChannel>(arguments, threads, tiling);
  return plan_of_pass_by_type<PointwiseBackwardByPosition>(arguments, threads, tiling);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(pointwise_backward_prior);
HWY_EXPORT(pointwise_backward_all);
HWY_EXPORT(pointwise_backward_plan);

tuning::Configs configs(const PointwiseBackwardArguments& a) { return HWY_DYNAMIC_DISPATCH(pointwise_backward_all)(a); }

}  // namespace

tuning::Config pointwise_backward_cpu_prior(const PointwiseBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(pointwise_backward_prior)(a);
}

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_cpu() {
  return {
      .name = "cpu",
      .unsupported = [](const PointwiseBackwardArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const PointwiseBackwardArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu", a, config, pointwise_backward_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(pointwise_backward_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
