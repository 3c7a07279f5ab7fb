#include "fusedsc/forward/sliding_channel/cpu/sliding_channel_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/sliding_channel/cpu/sliding_channel_cpu.cpp"
#include "hwy/foreach_target.h"

#include <vector>

#include "fusedsc/common/joined_views.h"
#include "fusedsc/forward/pointwise/cpu/line_patch-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_fusion-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_tiling-inl.h"
#include "fusedsc/forward/sliding_channel/cpu/sliding_windows-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// A forward pass over tiles of positions, channel-major whatever the layout: transposing a tile in the cache costs
/// less than windows' filters side by side in a vector, of which there may be few.
template <class T>
class SlidingChannelForward {
 public:
  using Major = ChannelMajor<T>;

  SlidingChannelForward(const SlidingChannelArguments& arguments, int threads, void* workspace,
                        const PointwiseTiling& tiling)
      : arguments_(arguments),
        x_(arguments.x),
        y_(arguments.y),
        residual_(arguments.epilogue.residual),
        windows_(sliding_channels_of(arguments), y_.sizes[1], tiling.blocks),
        tiles_(join(), tiling.positions, Major::kPositions, threads),
        arena_(workspace),
        weight_(arena_.take<T>(windows_.weight_size())),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)),
        fusion_(arguments, tiles_.slices, arena_) {}

  std::size_t workspace_bytes() {
    Arena measured = arena_;
    for (std::int64_t lane = 0; lane < lanes_; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    windows_.pack(arguments_.weight, execution, weight_);
    fusion_.prepare();
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes_; ++lane) scratch.emplace_back(*this, arena_);
    run_lanes(execution, lanes_, [&](std::int64_t lane) {
      const Range slices = part_of(tiles_.slices, lanes_, lane);
      for (std::int64_t s = slices.begin; s < slices.end; ++s) run_slice(s, scratch[static_cast<std::size_t>(lane)]);
    });
    fusion_.finish([&](std::int64_t slice) { return tiles_.positions_of(slice); });
  }

 private:
  /// One lane's patches, where tensors cannot be used in place.
  struct Lane {
    T *x, *y, *residual = nullptr, *scratch;

    Lane(const SlidingChannelForward& pass, Arena& arena) {
      const std::int64_t positions = pass.tiles_.size(), channels = pass.x_.sizes[1], outputs = pass.y_.sizes[1];
      x = arena.take<T>(channels * spread_pitch<T>(positions));
      y = arena.take<T>(Major::size(positions, outputs));
      if (pass.residual_) residual = arena.take<T>(Major::size(positions, outputs));
      scratch = arena.take<T>(line_scratch_size<T>(positions, std::max(channels, outputs)));
    }
  };

  /// Joins what the strides allow, and returns the sizes to cut into tiles.
  const Sizes& join() {
    join_all_rows(x_, y_, residual_);
    join_all_images(x_, y_, residual_);
    return x_.sizes;
  }

  void run_slice(std::int64_t slice, const Lane& lane) {
    Moments<T> moments = fusion_.moments(slice);
    Prefetcher prefetcher;
    const Range tiles = tiles_.tiles_of(slice);
    for (std::int64_t i = tiles.begin; i < tiles.end; ++i) run_tile(i, lane, moments, prefetcher);
  }

  void run_tile(std::int64_t index, const Lane& lane, Moments<T>& moments, Prefetcher& prefetcher) {
    const LineTile tile = tiles_.tile(index);
    const Patch<const T> x = read_x(tile, lane);
    const bool y_in_place = is_line_patch<T>(y_, tile);
    const std::int64_t pitch = Major::pitch(tile.positions(), 0);
    const Patch<T> y = y_in_place ? patch_of<Major, T>(y_, part_of_line(y_, tile, 0)) : Patch<T>{lane.y, pitch};
    const std::int64_t columns = y_in_place ? tile.positions() : pitch;  // in scratch memory whole lines are written
    prefetcher.clear();
    if (index + 1 < tiles_.count) {
      const LineTile next = tiles_.tile(index + 1);
      prefetch_lines<T>(prefetcher, x_, next);
      prefetch_lines<T>(prefetcher, y_, next);
      prefetcher.start(windows_.steps(columns));
    }
    windows_.forward(weight_, x, y, columns, prefetcher);

    const Extent extent{tile.positions(), y_.sizes[1]};
    fusion_.template finish_tile<Major>(
        y, extent, [&] { return read_residual(tile, lane); }, moments);
    if (!y_in_place) store_lines<T>(y, y_, tile, lane.scratch);
  }

  Patch<const T> read_x(const LineTile& tile, const Lane& lane) const {
    const Patch<T> x{lane.x, spread_pitch<T>(tile.positions())};
    load_lines<T>(x_, tile, lane.scratch, x);
    if (arguments_.prologue) apply_epilogue<Major, T>(x, fusion_.prologue(), {}, {tile.positions(), x_.sizes[1]}, x);
    return x;
  }

  Patch<const T> read_residual(const LineTile& tile, const Lane& lane) const {
    if (!residual_) return {};
    if (is_line_patch<T>(residual_, tile)) {
      return read_patch<Major, T>(residual_, part_of_line(residual_, tile, 0), true, lane.residual);
    }
    const Patch<T> residual{lane.residual, Major::pitch(tile.positions(), 0)};
    load_lines<T>(residual_, tile, lane.scratch, residual);
    return residual;
  }

  const SlidingChannelArguments& arguments_;
  ConstTensorView x_;
  TensorView y_;
  ConstTensorView residual_;
  SlidingWindows<T> windows_;
  LineTiles tiles_;
  Arena arena_;
  T* weight_;
  std::int64_t lanes_;
  ForwardFusion<T, SlidingChannelArguments> fusion_;
};

PointwiseWork work_of(const SlidingChannelArguments& arguments) {
  ConstTensorView x = arguments.x, y = arguments.y, residual = arguments.epilogue.residual;
  join_all_rows(x, y, residual);
  join_all_images(x, y, residual);
  PointwiseWork work;
  work.only_channel_major = true;
  work.by_position = work.by_channel = x.sizes;
  work.elements = arguments.x.sizes[1] + arguments.y.sizes[1];
  work.depth = sliding_channels_of(arguments).width;
  return work;
}

Config sliding_channel_prior(const SlidingChannelArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(work) : prior_tiling<float>(work)).config();
}

Configs sliding_channel_all(const SlidingChannelArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return arguments.x.dtype == DataType::float64 ? pointwise_configs<double>(work) : pointwise_configs<float>(work);
}

Plan<SlidingChannelArguments> sliding_channel_plan(const SlidingChannelArguments& arguments, const Config& config,
                                                   int threads) {
  return plan_of_pass_by_type<SlidingChannelForward>(arguments, threads, PointwiseTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(sliding_channel_prior);
HWY_EXPORT(sliding_channel_all);
HWY_EXPORT(sliding_channel_plan);

tuning::Configs configs(const SlidingChannelArguments& a) { return HWY_DYNAMIC_DISPATCH(sliding_channel_all)(a); }

}  // namespace

bool suits_sliding_channel_cpu(const SlidingChannels& windows, std::int64_t filters) {
  // A product of fewer rows loads more than it computes: the dense one is faster then, its zeros notwithstanding.
  constexpr std::int64_t kLeastFilters = 4;
  return windows.width < windows.channels && filters >= kLeastFilters * windows.cycle;
}

tuning::Config sliding_channel_cpu_prior(const SlidingChannelArguments& a) {
  return HWY_DYNAMIC_DISPATCH(sliding_channel_prior)(a);
}

tuning::Kernel<SlidingChannelArguments> sliding_channel_cpu() {
  return {
      .name = "cpu_windows",
      .unsupported = [](const SlidingChannelArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const SlidingChannelArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu_windows", a, config, sliding_channel_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(sliding_channel_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
