#include "fusedsc/backward/sliding_channel_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/backward/sliding_channel_cpu.cpp"
#include "hwy/foreach_target.h"

#include <optional>
#include <vector>

#include "fusedsc/common/cpu/line_patch-inl.h"
#include "fusedsc/common/cpu/pass-inl.h"
#include "fusedsc/common/cpu/seam-inl.h"
#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/common/cpu/sliding_windows-inl.h"
#include "fusedsc/common/joined_views.h"
#include "fusedsc/forward/sliding_channel_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// The tensors, rows and images joined as far as their strides allow.
struct SlidingGradientViews {
  ConstTensorView x, grad_y, output, grad_add;
  TensorView grad_x;

  explicit SlidingGradientViews(const SlidingChannelBackwardArguments& arguments)
      : x(arguments.x),
        grad_y(arguments.grad_y),
        output(arguments.gradient_prologue.output),
        grad_add(arguments.grad_add),
        grad_x(arguments.grad_x) {
    join_all_rows(x, grad_y, output, grad_add, grad_x);
    join_all_images(x, grad_y, output, grad_add, grad_x);
  }
};

/// Lanes take slices of the positions; each has its own copy of the weight gradient, and a second pass adds them. Where
/// the weight is large for the number of positions those copies would cost more than they save: then lanes take
/// slices for the other gradients, and afterwards, for the weight's, some windows and every position.
template <class T>
class SlidingChannelBackward {
 public:
  using Major = ChannelMajor<T>;

  SlidingChannelBackward(const SlidingChannelBackwardArguments& arguments, int threads, void* workspace)
      : arguments_(arguments),
        views_(arguments),
        channels_(views_.x.sizes[1]),
        outputs_(views_.grad_y.sizes[1]),
        windows_(sliding_channels_of(arguments), outputs_),
        tiles_(views_.x.sizes, tile_positions<Major, T>(2 * (channels_ + outputs_)), Major::kPositions, threads),
        arena_(workspace),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)) {
    const std::int64_t positions = arguments.x.sizes[0] * arguments.x.sizes[2] * arguments.x.sizes[3];
    window_lanes_ = std::min<std::int64_t>(threads, windows_.channels().cycle);
    by_windows_ = arguments.grad_weight && lanes_ > 1 && window_lanes_ > 1 &&
                  2 * lanes_ * arguments.weight.elements() > positions * (channels_ + outputs_);
    if (arguments.grad_x) weight_.emplace(arguments.weight, 1, false, PackedWeight<T>::Role::scalars, arena_);
    if (arguments.grad_weight) {
      grad_weight_.emplace(arguments.grad_weight, 1, false, by_windows_ ? 1 : std::max<std::int64_t>(lanes_, 1),
                           arena_);
    }
    take_vectors();
  }

  std::size_t workspace_bytes() {
    Arena measured = arena_;
    for (std::int64_t lane = 0; lane < scratch_lanes(); ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    prepare(execution);
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
    finish(execution);
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
    T *grad, *output = nullptr, *a = nullptr, *raw = nullptr, *grad_x = nullptr, *scratch;

    Lane(const SlidingChannelBackward& pass, Arena& arena) {
      const SlidingGradientViews& views = pass.views_;
      const std::int64_t positions = pass.tiles_.size();
      grad = arena.take<T>(Major::size(positions, pass.outputs_));
      if (views.output) output = arena.take<T>(Major::size(positions, pass.outputs_));
      if (pass.grad_weight_) a = arena.take<T>(PositionMajor<T>::size(positions, pass.channels_));
      if (views.grad_x) {
        grad_x = arena.take<T>(Major::size(positions, pass.channels_));
        raw = arena.take<T>(Major::size(positions, pass.channels_));
      }
      scratch = arena.take<T>(line_scratch_size<T>(positions, std::max(pass.channels_, pass.outputs_)));
    }
  };

  std::int64_t scratch_lanes() const { return by_windows_ ? std::max(lanes_, window_lanes_) : lanes_; }

  void take_vectors() {
    const std::int64_t in_pitch = round_up(channels_, kLanes<T>), out_pitch = round_up(outputs_, kLanes<T>);
    if (arguments_.prologue) {
      scale_ = arena_.take<T>(in_pitch);
      shift_ = arena_.take<T>(in_pitch);
    }
    if (arguments_.gradient_prologue) {
      grad_scale_ = arena_.take<T>(out_pitch);
      output_scale_ = arena_.take<T>(out_pitch);
      offset_ = arena_.take<T>(out_pitch);
    }
    if (arguments_.sums) {
      mean_ = arena_.take<T>(in_pitch);
      sum_grad_ = arena_.take<T>(tiles_.slices * in_pitch);
      sum_centered_ = arena_.take<T>(tiles_.slices * in_pitch);
    }
    if (arguments_.grad_bias) {
      sum_bias_ = arena_.take<T>(tiles_.slices * out_pitch);
      grad_bias_ = arena_.take<T>(out_pitch);
    }
  }

  void prepare(const Execution& execution) {
    if (weight_) weight_->pack(execution);
    if (arguments_.prologue) {
      copy_channels(arguments_.prologue.scale, T(1), 0, channels_, 1, scale_);
      copy_channels(arguments_.prologue.shift, T(0), 0, channels_, 1, shift_);
    }
    if (arguments_.gradient_prologue) {
      copy_channels(arguments_.gradient_prologue.grad_scale, T(1), 0, outputs_, 1, grad_scale_);
      copy_channels(arguments_.gradient_prologue.output_scale, T(0), 0, outputs_, 1, output_scale_);
      copy_channels(arguments_.gradient_prologue.offset, T(0), 0, outputs_, 1, offset_);
    }
    if (arguments_.sums) copy_channels(arguments_.sums.mean, T(0), 0, channels_, 1, mean_);
  }

  /// All tiles of the slices, one after the other.
  void run_slices(const Range& slices, const Task& task, const Lane& lane) {
    const std::int64_t in_pitch = round_up(channels_, kLanes<T>), out_pitch = round_up(outputs_, kLanes<T>);
    Prefetcher prefetcher;
    bool first = true;
    for (std::int64_t s = slices.begin; s < slices.end; ++s) {
      SumVectors<T> sums;
      if (arguments_.sums && task.grad_x) {
        sums = {mean_, sum_grad_ + s * in_pitch, sum_centered_ + s * in_pitch};
        std::fill_n(sums.grad, in_pitch, T(0));
        std::fill_n(sums.grad_times_centered, in_pitch, T(0));
      }
      T* grad_bias = task.grad_bias ? sum_bias_ + s * out_pitch : nullptr;
      if (task.grad_bias) std::fill_n(grad_bias, out_pitch, T(0));
      const Range tiles = tiles_.tiles_of(s);
      for (std::int64_t i = tiles.begin; i < tiles.end; ++i, first = false) {
        prefetcher.clear();
        if (i + 1 < tiles_.tiles_of(slices.end - 1).end) prefetch(tiles_.tile(i + 1), task, prefetcher);
        const LineTile tile = tiles_.tile(i);
        const Patch<const T> grad = read_grad(tile, lane);
        if (task.grad_bias) add_channel_sums<Major, T>(grad, {tile.positions(), outputs_}, grad_bias);
        if (task.windows.size() > 0) add_weight_gradient(grad, tile, task, lane, !first, prefetcher);
        if (task.grad_x) write_input_gradient(grad, tile, sums, lane, prefetcher);
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
  Patch<const T> read_lines(const ConstTensorView& x, const LineTile& tile, bool is_operand, T* buffer,
                            const Lane& lane) const {
    if (is_line_patch<T>(x, tile, is_operand)) return read_patch<Major, T>(x, part_of_line(x, tile, 0), true, buffer);
    const Patch<T> copy{buffer, Major::pitch(tile.positions(), 0)};
    load_lines<T>(x, tile, lane.scratch, copy);
    return copy;
  }

  /// grad_y behind its prologue.
  Patch<const T> read_grad(const LineTile& tile, const Lane& lane) const {
    const bool has_prologue = static_cast<bool>(arguments_.gradient_prologue);
    const Patch<const T> raw = read_lines(views_.grad_y, tile, !has_prologue, lane.grad, lane);
    if (!has_prologue) return raw;
    const Patch<const T> output = read_lines(views_.output, tile, false, lane.output, lane);
    const Patch<T> grad{lane.grad, Major::pitch(tile.positions(), 0)};
    apply_gradient_prologue<Major, T>(raw, output, {grad_scale_, output_scale_, offset_, views_.output},
                                      {tile.positions(), outputs_}, grad);
    return grad;
  }

  void add_weight_gradient(const Patch<const T>& grad, const LineTile& tile, const Task& task, const Lane& lane,
                           bool accumulate, Prefetcher& prefetcher) const {
    const AffineVectors<T> prologue{scale_, shift_, arguments_.prologue.activation};
    const Patch<const T> a = load_positions<T>(views_.x, tile, prologue, lane.a);
    const Patch<T> to{grad_weight_->group(task.copy, 0), grad_weight_->pitch()};
    windows_.weight_gradient(task.windows, grad, a, tile.positions(), to, accumulate, prefetcher);
  }

  void write_input_gradient(const Patch<const T>& grad, const LineTile& tile, const SumVectors<T>& sums,
                            const Lane& lane, Prefetcher& prefetcher) const {
    const bool in_place = is_line_patch<T>(views_.grad_x, tile, false);
    const std::int64_t pitch = Major::pitch(tile.positions(), 0);
    const Patch<T> grad_x = in_place ? patch_of<Major, T>(views_.grad_x, part_of_line(views_.grad_x, tile, 0))
                                     : Patch<T>{lane.grad_x, pitch};
    windows_.input_gradient(*weight_, grad, grad_x, in_place ? tile.positions() : pitch, prefetcher);
    const Extent extent{tile.positions(), channels_};
    if (arguments_.prologue) {
      const AffineVectors<T> prologue{scale_, shift_, arguments_.prologue.activation};
      const Patch<const T> raw = read_lines(views_.x, tile, false, lane.raw, lane);
      apply_activation_backward<Major, T>(grad_x, raw, prologue, sums, extent);
    }
    if (views_.grad_add) {
      add_patch<Major, T>(read_lines(views_.grad_add, tile, false, lane.raw, lane), extent, grad_x);
    }
    if (!in_place) store_lines<T>(grad_x, views_.grad_x, tile, lane.scratch);
  }

  void finish(const Execution& execution) {
    if (grad_weight_) grad_weight_->finish(execution, tiles_.count > 0);
    const std::int64_t in_pitch = round_up(channels_, kLanes<T>), out_pitch = round_up(outputs_, kLanes<T>);
    if (arguments_.sums) {
      const GradientSums& sums = arguments_.sums;
      add_slices(sum_grad_, tiles_.slices, in_pitch, channels_, static_cast<T*>(sums.grad.data));
      add_slices(sum_centered_, tiles_.slices, in_pitch, channels_, static_cast<T*>(sums.grad_times_centered.data));
    }
    if (arguments_.grad_bias) {
      add_slices(sum_bias_, tiles_.slices, out_pitch, outputs_, grad_bias_);
      with_storage<T>(arguments_.grad_bias.dtype, [&]<class Storage>() HWY_ATTR {
        convert_back<T>(grad_bias_, static_cast<Storage*>(arguments_.grad_bias.data), outputs_);
      });
    }
  }

  const SlidingChannelBackwardArguments& arguments_;
  SlidingGradientViews views_;
  std::int64_t channels_, outputs_;
  SlidingWindows<T> windows_;
  LineTiles tiles_;
  Arena arena_;
  std::int64_t lanes_, window_lanes_ = 0;
  bool by_windows_ = false;
  std::optional<PackedWeight<T>> weight_;
  std::optional<WeightGradient<T>> grad_weight_;
  T* scale_ = nullptr;
  T* shift_ = nullptr;
  T* grad_scale_ = nullptr;
  T* output_scale_ = nullptr;
  T* offset_ = nullptr;
  T* mean_ = nullptr;
  T* sum_grad_ = nullptr;  ///< [slice][channels], likewise sum_centered_; sum_bias_: [slice][outputs]
  T* sum_centered_ = nullptr;
  T* sum_bias_ = nullptr;
  T* grad_bias_ = nullptr;
};

Plan<SlidingChannelBackwardArguments> sliding_channel_backward_plan(const SlidingChannelBackwardArguments& arguments,
                                                                    int threads) {
  return plan_of_pass_by_type<SlidingChannelBackward>(arguments, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(sliding_channel_backward_plan);

}  // namespace

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_cpu() {
  return {
      .name = "cpu_windows",
      .why_not =
          [](const SlidingChannelBackwardArguments& arguments) {
            const std::string device = needs_device(Device::cpu, arguments.x.device);
            if (!device.empty()) return device;
            return why_not_by_windows(sliding_channels_of(arguments), arguments.weight.sizes[0]);
          },
      .plan = [](const SlidingChannelBackwardArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(sliding_channel_backward_plan)(arguments, threads); },
  };
}

}  // namespace fusedsc
#endif
