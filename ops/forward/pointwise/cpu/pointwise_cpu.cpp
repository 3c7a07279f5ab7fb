#include "fusedsc/forward/pointwise/cpu/pointwise_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/pointwise/cpu/pointwise_cpu.cpp"
#include "hwy/foreach_target.h"

#include <vector>

#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/forward/pointwise/cpu/gemm-inl.h"
#include "fusedsc/forward/pointwise/cpu/line_patch-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_fusion-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_tiling-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// A forward pass over tiles of positions. Position-major: y[p][m] = sum of x[p][c] * W^T[c][m], x broadcast;
/// channel-major: y[m][p] = sum of W[m][c] * x[c][p], W broadcast. Either way tensors that already look like a patch
/// are read and written in place.
template <class T, template <class> class Order>
class PointwiseForward {
 public:
  using Major = Order<T>;

  PointwiseForward(const PointwiseArguments& arguments, int threads, void* workspace, const PointwiseTiling& tiling)
      : arguments_(arguments),
        x_(arguments.x),
        y_(arguments.y),
        residual_(arguments.epilogue.residual),
        tiles_(join(), tiling.positions, Major::kPositions, threads, !Major::kChannelMajor),
        blocks_(tiling.blocks),
        arena_(workspace),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)),
        fusion_(arguments, tiles_.slices, arena_) {}

  std::size_t workspace_bytes() {
    Arena measured = arena_;
    for (std::int64_t lane = 0; lane < lanes_; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    fusion_.prepare();
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes_; ++lane) scratch.emplace_back(*this, arena_);
    run_lanes(execution, lanes_, [&](std::int64_t lane) {
      Lane& mine = scratch[static_cast<std::size_t>(lane)];
      mine.weight.pack({});
      const Range slices = part_of(tiles_.slices, lanes_, lane);
      // From the last tile to the first: what a depthwise pass wrote last is still in a cache.
      for (std::int64_t s = slices.end; s-- > slices.begin;) run_slice(s, mine);
    });
    fusion_.finish([&](std::int64_t slice) { return tiles_.positions_of(slice); });
  }

 private:
  /// One lane's weight: to read what another core has just packed would take longer than to pack it. And its patches,
  /// where tensors cannot be used in place.
  struct Lane {
    PackedWeight<T> weight;
    T* x = nullptr;
    T* y = nullptr;
    T* residual = nullptr;

    Lane(const PointwiseForward& pass, Arena& arena)
        : weight(pass.arguments_.weight, pass.arguments_.groups, !Major::kChannelMajor,
                 Major::kChannelMajor ? PackedWeight<T>::Role::scalars : PackedWeight<T>::Role::vectors, arena,
                 pass.blocks_) {
      const std::int64_t positions = pass.tiles_.size(), outputs = pass.y_.sizes[1];
      const bool lines_alone = pass.tiles_.together == 1;
      if (!pass.x_in_place_ || !lines_alone) x = arena.take<T>(Major::size(positions, pass.x_.sizes[1]));
      if (!pass.y_in_place_ || !lines_alone) y = arena.take<T>(Major::size(positions, outputs));
      if (pass.residual_) residual = arena.take<T>(Major::size(positions, outputs));
    }
  };

  /// Joins what the strides allow, and returns the sizes to cut into tiles.
  const Sizes& join() {
    join_all_rows(x_, y_, residual_);
    if (!Major::kChannelMajor) join_all_images(x_, y_, residual_);
    const bool plain = !arguments_.prologue && Major::is_patch(x_);
    x_in_place_ = plain && (!Major::kChannelMajor || x_.sizes[3] % kLanes<T> == 0);
    const bool vector_passes = arguments_.epilogue || arguments_.bias || arguments_.statistics;
    y_in_place_ = Major::is_readable(y_) || (!vector_passes && Major::is_patch(y_));
    return x_.sizes;
  }

  void run_slice(std::int64_t slice, const Lane& lane) {
    Moments<T> moments = fusion_.moments(slice);
    Prefetcher prefetcher;
    const Range tiles = tiles_.tiles_of(slice);
    for (std::int64_t i = tiles.end; i-- > tiles.begin;) run_tile(i, lane, moments, prefetcher);
  }

  void run_tile(std::int64_t index, const Lane& lane, Moments<T>& moments, Prefetcher& prefetcher) {
    const LineTile tile = tiles_.tile(index);
    const Extent extent{tile.positions(), y_.sizes[1]};
    const bool in_place = !arguments_.prologue && Major::is_operand(x_, part_of_line(x_, tile, 0));
    const auto x = read_patch_of_lines<Major, T>(x_, tile, {0, x_.sizes[1]}, in_place, lane.x, fusion_.prologue());
    const bool y_in_place = y_in_place_ && tile.lines == 1;
    const Patch<T> y = y_in_place ? patch_of<Major, T>(y_, part_of_line(y_, tile, 0))
                                  : Patch<T>{lane.y, Major::pitch(extent.positions, extent.channels)};
    multiply(x, y, y_in_place, index, lane.weight, prefetcher);
    fusion_.template finish_tile<Major>(
        y, extent, [&] { return residual(tile, lane); }, moments);
    if (!y_in_place) store_patch_of_lines<Major, T>(lane.y, y_, tile);
  }

  Patch<const T> residual(const LineTile& tile, const Lane& lane) const {
    if (!residual_) return {};
    return read_patch_of_lines<Major, T>(residual_, tile, {0, residual_.sizes[1]}, Major::is_readable(residual_),
                                         lane.residual);
  }

  void multiply(const Patch<const T>& x, const Patch<T>& y, bool y_in_place, std::int64_t index,
                const PackedWeight<T>& weight, Prefetcher& prefetcher) {
    const std::int64_t positions = tiles_.tile(index).positions();
    const std::int64_t groups = arguments_.groups, channels = x_.sizes[1] / groups, outputs = y_.sizes[1] / groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      Gemm<T> product{.depth = channels, .c_row = y.pitch};
      const bool padded = !y_in_place && (Major::kChannelMajor || groups == 1);  // then whole lines are written
      if constexpr (Major::kChannelMajor) {
        product.rows = outputs;
        product.columns = padded ? y.pitch : positions;
        weight.set_scalars(g, true, product);
        product.b = x.data + g * channels * x.pitch;
        product.b_depth = x.pitch;
        product.c = y.data + g * outputs * y.pitch;
      } else {
        product.rows = positions;
        product.columns = padded ? y.pitch : outputs;
        product.a = x.data + g * channels;
        product.a_row = x.pitch;
        weight.set_vectors(g, product);
        product.c = y.data + g * outputs;
      }
      if (g == 0) prefetch_next(index, gemm_steps(product) * groups, prefetcher);
      gemm(product, prefetcher);
    }
  }

  /// What the next tile reads and writes, fetched while this one is multiplied.
  void prefetch_next(std::int64_t index, std::int64_t steps, Prefetcher& prefetcher) const {
    prefetcher.clear();
    if (index == 0) return;
    const LineTile tile = tiles_.tile(index - 1);
    prefetch_lines<T>(prefetcher, x_, tile);
    prefetch_lines<T>(prefetcher, y_, tile);
    prefetcher.start(steps);
  }

  const PointwiseArguments& arguments_;
  ConstTensorView x_;
  TensorView y_;
  ConstTensorView residual_;
  bool x_in_place_ = false;  ///< every tile of x that is one line is an operand as it lies
  bool y_in_place_ = false;  ///< likewise y's
  LineTiles tiles_;
  GemmBlocks blocks_;
  Arena arena_;
  std::int64_t lanes_;
  ForwardFusion<T, PointwiseArguments> fusion_;
};

template <class T>
using PointwiseForwardByChannel = PointwiseForward<T, ChannelMajor>;
template <class T>
using PointwiseForwardByPosition = PointwiseForward<T, PositionMajor>;

PointwiseWork work_of(const PointwiseArguments& arguments) {
  ConstTensorView x = arguments.x, y = arguments.y, residual = arguments.epilogue.residual;
  const std::int64_t channels = x.sizes[1], outputs = y.sizes[1];
  PointwiseWork work;
  join_all_rows(x, y, residual);
  work.contiguous = all_contiguous(x, y, residual);
  work.by_channel = x.sizes;
  join_all_images(x, y, residual);
  work.by_position = x.sizes;
  work.elements = channels + outputs;
  work.columns = outputs / arguments.groups;
  work.depth = channels / arguments.groups;
  return work;
}

Config pointwise_prior(const PointwiseArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(work) : prior_tiling<float>(work)).config();
}

Configs pointwise_all(const PointwiseArguments& arguments) {
  const PointwiseWork work = work_of(arguments);
  return arguments.x.dtype == DataType::float64 ? pointwise_configs<double>(work) : pointwise_configs<float>(work);
}

Plan<PointwiseArguments> pointwise_plan(const PointwiseArguments& arguments, const Config& config, int threads) {
  const PointwiseTiling tiling(config);
  if (tiling.channel_major) return plan_of_pass_by_type<PointwiseForwardByChannel>(arguments, threads, tiling);
  return plan_of_pass_by_type<PointwiseForwardByPosition>(arguments, threads, tiling);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(pointwise_prior);
HWY_EXPORT(pointwise_all);
HWY_EXPORT(pointwise_plan);

tuning::Configs configs(const PointwiseArguments& a) { return HWY_DYNAMIC_DISPATCH(pointwise_all)(a); }

}  // namespace

tuning::Config pointwise_cpu_prior(const PointwiseArguments& a) { return HWY_DYNAMIC_DISPATCH(pointwise_prior)(a); }

tuning::Kernel<PointwiseArguments> pointwise_cpu() {
  return {
      .name = "cpu",
      .unsupported = [](const PointwiseArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const PointwiseArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu", a, config, pointwise_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(pointwise_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
