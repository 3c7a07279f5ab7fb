#include "fusedsc/backward/sliding_channel/cpu/sliding_channel_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/backward/sliding_channel/cpu/sliding_channel_cpu.cpp"
#include "hwy/foreach_target.h"

#include <optional>
#include <vector>

#include "fusedsc/forward/pointwise/cpu/line_patch-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_fusion-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_tiling-inl.h"
#include "fusedsc/forward/sliding_channel/cpu/sliding_channel_cpu.h"
#include "fusedsc/forward/sliding_channel/cpu/sliding_windows-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Lanes take slices of the positions; each has its own copy of the weight gradient, and a second pass adds them. Where
/// the weight is large for the number of positions those copies would cost more than they save: then lanes take
/// slices for the other gradients, and afterwards, for the weight's, some windows and every position.
template <class T>
class SlidingChannelBackward {
 public:
  using Major = ChannelMajor<T>;

  SlidingChannelBackward(const SlidingChannelBackwardArguments& arguments, int threads, void* workspace,
                         const PointwiseTiling& tiling)
      : arguments_(arguments),
        views_(arguments, true),
        channels_(views_.x.sizes[1]),
        outputs_(views_.grad_y.sizes[1]),
        windows_(sliding_channels_of(arguments), outputs_, tiling.blocks),
        tiles_(views_.x.sizes, tiling.positions, Major::kPositions, threads),
        arena_(workspace),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)) {
    const std::int64_t positions = arguments.x.sizes[0] * arguments.x.sizes[2] * arguments.x.sizes[3];
    window_lanes_ = std::min<std::int64_t>(threads, windows_.channels().cycle);
    by_windows_ = arguments.grad_weight && lanes_ > 1 && window_lanes_ > 1 &&
                  2 * lanes_ * arguments.weight.elements() > positions * (channels_ + outputs_);
    if (arguments.grad_x) weight_ = arena_.take<T>(windows_.weight_size());
    if (arguments.grad_weight) {
      grad_weight_.emplace(arguments.grad_weight, 1, false, by_windows_ ? 1 : std::max<std::int64_t>(lanes_, 1),
                           arena_);
    }
    fusion_.emplace(arguments, tiles_.slices, tiles_.slices, arena_);
  }

  std::size_t workspace_bytes() {
    Arena measured = arena_;
    for (std::int64_t lane = 0; lane < scratch_lanes(); ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    if (arguments_.grad_x) windows_.pack(arguments_.weight, execution, weight_);
    fusion_->prepare();
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < scratch_lanes(); ++lane) scratch.emplace_back(*this, arena_);
    Task task{arguments_.grad_x, arguments_.grad_bias, {}, 0};
    if (arguments_.grad_weight && !by_windows_) task.windows = {0, windows_.channels().cycle};
    if (task.grad_x || task.grad_bias || task.windows.size() > 0) {
      run_lanes(execution, lanes_, [&](std::int64_t lane) {
        Task own = task;
        own.copy = lane;
        run_slices(part_of(tiles_.slices, lanes_, lane), own, scratch[static_cast<std::size_t>(lane)]);
      });
    }
    if (by_windows_) {
      run_lanes(execution, window_lanes_, [&](std::int64_t lane) {
        const Task own{false, false, part_of(windows_.channels().cycle, window_lanes_, lane), 0};
        run_slices({0, tiles_.slices}, own, scratch[static_cast<std::size_t>(lane)]);
      });
    }
    if (grad_weight_) grad_weight_->finish(execution, tiles_.count > 0);
    fusion_->finish();
  }

 private:
  /// What is computed of the tiles; of the weight gradient, the filters of some windows, into copy `copy`.
  struct Task {
    bool grad_x = false, grad_bias = false;
    Range windows;
    std::int64_t copy = 0;

    template <class GradX, class GradBias>
    Task(const GradX& grad_x_, const GradBias& grad_bias_, const Range& windows_, std::int64_t copy_)
        : grad_x(static_cast<bool>(grad_x_)),
          grad_bias(static_cast<bool>(grad_bias_)),
          windows(windows_),
          copy(copy_) {}
  };

  /// One lane's patches, for whatever cannot be used in place.
  struct Lane {
    T *grad, *sorted, *output = nullptr, *a = nullptr, *raw = nullptr, *grad_x = nullptr, *scratch;

    Lane(const SlidingChannelBackward& pass, Arena& arena) {
      const PointwiseGradientViews& views = pass.views_;
      const std::int64_t positions = pass.tiles_.size();
      grad = arena.take<T>(Major::size(positions, pass.outputs_));
      sorted = arena.take<T>(pass.outputs_ * spread_pitch<T>(positions));
      if (views.output) output = arena.take<T>(Major::size(positions, pass.outputs_));
      if (pass.grad_weight_) a = arena.take<T>(positions * spread_pitch<T>(pass.channels_) + kLanes<T>);
      if (views.grad_x) {
        grad_x = arena.take<T>(Major::size(positions, pass.channels_));
        raw = arena.take<T>(Major::size(positions, pass.channels_));
      }
      scratch = arena.take<T>(line_scratch_size<T>(positions, std::max(pass.channels_, pass.outputs_)));
    }
  };

  std::int64_t scratch_lanes() const { return by_windows_ ? std::max(lanes_, window_lanes_) : lanes_; }

  /// All tiles of the slices, one after the other.
  void run_slices(const Range& slices, const Task& task, const Lane& lane) {
    Prefetcher prefetcher;
    bool first = true;
    for (std::int64_t s = slices.begin; s < slices.end; ++s) {
      const auto vectors = fusion_->of_slice(s, task.grad_x, task.grad_bias, {0, outputs_});
      const Range tiles = tiles_.tiles_of(s);
      for (std::int64_t i = tiles.begin; i < tiles.end; ++i, first = false) {
        prefetcher.clear();
        if (i + 1 < tiles_.tiles_of(slices.end - 1).end) prefetch(tiles_.tile(i + 1), task, prefetcher);
        const LineTile tile = tiles_.tile(i);
        const Patch<const T> grad = read_grad(tile, vectors, lane);
        if (vectors.grad_bias != nullptr) {
          add_channel_sums<Major, T>(grad, {tile.positions(), outputs_}, vectors.grad_bias);
        }
        const Patch<T> sorted{lane.sorted, spread_pitch<T>(tile.positions())};
        windows_.sort(grad, sorted, tile.positions());
        if (task.windows.size() > 0)
          add_weight_gradient(sorted, tile, task, vectors.prologue, lane, !first, prefetcher);
        if (task.grad_x) write_input_gradient(sorted, tile, vectors, lane, prefetcher);
      }
    }
  }

  void prefetch(const LineTile& tile, const Task& task, Prefetcher& prefetcher) const {
    prefetch_lines<T>(prefetcher, views_.x, tile);
    prefetch_lines<T>(prefetcher, views_.grad_y, tile);
    if (task.grad_x) prefetch_lines<T>(prefetcher, views_.grad_x, tile);
    if (views_.output) prefetch_lines<T>(prefetcher, views_.output, tile);
    prefetcher.start(windows_.steps(tile.positions()));
  }

  /// The tile of x: in place where it lies like that, else a copy.
  Patch<const T> read_lines(const ConstTensorView& x, const LineTile& tile, T* buffer, const Lane& lane) const {
    if (is_line_patch<T>(x, tile)) return read_patch<Major, T>(x, part_of_line(x, tile, 0), true, buffer);
    const Patch<T> copy{buffer, Major::pitch(tile.positions(), 0)};
    load_lines<T>(x, tile, lane.scratch, copy);
    return copy;
  }

  /// grad_y behind its prologue.
  Patch<const T> read_grad(const LineTile& tile, const PointwiseGradientVectors<T>& vectors, const Lane& lane) const {
    const Patch<const T> raw = read_lines(views_.grad_y, tile, lane.grad, lane);
    if (!arguments_.gradient_prologue) return raw;
    const Patch<const T> output = read_lines(views_.output, tile, lane.output, lane);
    const Patch<T> grad{lane.grad, Major::pitch(tile.positions(), 0)};
    apply_gradient_prologue<Major, T>(raw, output, vectors.gradient_prologue, {tile.positions(), outputs_}, grad);
    return grad;
  }

  void add_weight_gradient(const Patch<const T>& grad, const LineTile& tile, const Task& task,
                           const AffineVectors<T>& prologue, const Lane& lane, bool accumulate,
                           Prefetcher& prefetcher) const {
    const Patch<T> a{lane.a, spread_pitch<T>(channels_)};
    load_positions<T>(views_.x, tile, prologue, lane.scratch, a);
    const Patch<T> to{grad_weight_->group(task.copy, 0), grad_weight_->pitch()};
    windows_.weight_gradient(task.windows, grad, a, tile.positions(), to, accumulate, prefetcher);
  }

  void write_input_gradient(const Patch<const T>& grad, const LineTile& tile,
                            const PointwiseGradientVectors<T>& vectors, const Lane& lane,
                            Prefetcher& prefetcher) const {
    const bool in_place = is_line_patch<T>(views_.grad_x, tile);
    const std::int64_t pitch = Major::pitch(tile.positions(), 0);
    const Patch<T> grad_x = in_place ? patch_of<Major, T>(views_.grad_x, part_of_line(views_.grad_x, tile, 0))
                                     : Patch<T>{lane.grad_x, pitch};
    windows_.input_gradient(weight_, grad, grad_x, in_place ? tile.positions() : pitch, prefetcher);
    const Extent extent{tile.positions(), channels_};
    if (arguments_.prologue) {
      const Patch<const T> raw = read_lines(views_.x, tile, lane.raw, lane);
      apply_activation_backward<Major, T>(grad_x, raw, vectors.prologue, vectors.sums, extent);
    }
    if (views_.grad_add) {
      add_patch<Major, T>(read_lines(views_.grad_add, tile, lane.raw, lane), extent, grad_x);
    }
    if (!in_place) store_lines<T>(grad_x, views_.grad_x, tile, lane.scratch);
  }

  const SlidingChannelBackwardArguments& arguments_;
  PointwiseGradientViews views_;
  std::int64_t channels_, outputs_;
  SlidingWindows<T> windows_;
  LineTiles tiles_;
  Arena arena_;
  std::int64_t lanes_, window_lanes_ = 0;
  bool by_windows_ = false;
  T* weight_ = nullptr;
  std::optional<WeightGradient<T>> grad_weight_;
  std::optional<BackwardFusion<T, SlidingChannelBackwardArguments>> fusion_;
};

PointwiseWork work_of(const SlidingChannelBackwardArguments& arguments) {
  PointwiseWork work;
  work.only_channel_major = true;
  work.by_position = work.by_channel = PointwiseGradientViews(arguments, true).x.sizes;
  work.elements = 2 * (arguments.x.sizes[1] + arguments.grad_y.sizes[1]);
  work.depth = std::max(arguments.grad_y.sizes[1], work.by_channel[2] * work.by_channel[3]);
  return work;
}

Config sliding_channel_backward_prior(const SlidingChannelBackwardArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(work) : prior_tiling<float>(work)).config();
}

Configs sliding_channel_backward_all(const SlidingChannelBackwardArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return arguments.x.dtype == DataType::float64 ? pointwise_configs<double>(work) : pointwise_configs<float>(work);
}

Plan<SlidingChannelBackwardArguments> sliding_channel_backward_plan(const SlidingChannelBackwardArguments& arguments,
                                                                    const Config& config, int threads) {
  return plan_of_pass_by_type<SlidingChannelBackward>(arguments, threads, PointwiseTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(sliding_channel_backward_prior);
HWY_EXPORT(sliding_channel_backward_all);
HWY_EXPORT(sliding_channel_backward_plan);

std::string unsupported(const SlidingChannelBackwardArguments& a) {
  std::string device = needs_device(Device::cpu, a.x.device);
  if (!device.empty()) return device;
  const SlidingChannels windows = sliding_channels_of(a);
  const bool covers_all = (windows.cycle - 1) * windows.step + windows.width >= windows.channels;
  return !a.grad_x || covers_all ? "" : "some channels of x are in no window";
}

tuning::Configs configs(const SlidingChannelBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(sliding_channel_backward_all)(a);
}

}  // namespace

tuning::Config sliding_channel_backward_cpu_prior(const SlidingChannelBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(sliding_channel_backward_prior)(a);
}

tuning::Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_cpu() {
  return {
      .name = "cpu_windows",
      .unsupported = unsupported,
      .configs = configs,
      .plan =
          [](const SlidingChannelBackwardArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu_windows", a, config, sliding_channel_backward_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(sliding_channel_backward_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
