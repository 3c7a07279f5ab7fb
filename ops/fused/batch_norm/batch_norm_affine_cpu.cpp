#include "fusedsc/fused/batch_norm/batch_norm_affine_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/batch_norm/batch_norm_affine_cpu.cpp"
#include "hwy/foreach_target.h"

#include <vector>

#include "fusedsc/common/channel_values.h"
#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Bytes of a tile's patches: they stay in the first-level cache, where each is walked channel by channel.
inline constexpr std::int64_t kBatchNormTileBytes = 16 << 10;

/// What both passes share: tiles of the tensors, the affine map's vectors, and lanes that take slices.
template <class T, template <class> class Order>
class BatchNormPass {
 public:
  using Major = Order<T>;

  BatchNormPass(const ConstTensorView& x, int patches, int threads, void* workspace)
      : channels_(x.sizes[1]),
        pitch_(round_up(channels_, kLanes<T>)),
        tiles_(x.sizes, positions_of_tile(patches), Major::kPositions, threads),
        arena_(workspace),
        lanes_(std::min<std::int64_t>(threads, tiles_.slices)),
        scale_(arena_.take<T>(pitch_)),
        shift_(arena_.take<T>(pitch_)) {}

 protected:
  AffineVectors<T> affine(const ConstChannelVector& scale, const ConstChannelVector& shift,
                          Activation activation) const {
    copy_channels(scale, T(1), 0, channels_, 1, scale_);
    copy_channels(shift, T(0), 0, channels_, 1, shift_);
    return {scale_, shift_, activation};
  }

  /// body(part, slice, lane) for every tile.
  template <class Body>
  void for_each_tile(const Execution& execution, const Body& body) const {
    run_lanes(execution, lanes_, [&](std::int64_t lane) {
      const Range slices = part_of(tiles_.slices, lanes_, lane);
      for (std::int64_t s = slices.begin; s < slices.end; ++s) {
        const Range tiles = tiles_.tiles_of(s);
        for (std::int64_t i = tiles.begin; i < tiles.end; ++i) {
          const PositionTile tile = tiles_.tile(i);
          body(TilePart{.image = tile.image,
                        .row = tile.row,
                        .column = tile.column,
                        .positions = tile.count,
                        .channels = channels_},
               s, lane);
        }
      }
    });
  }

  /// A patch in scratch memory for every lane.
  T* take_patches(Arena& arena) const { return arena.take<T>(lanes_ * patch_size()); }
  std::int64_t patch_size() const { return round_up(Major::size(tiles_.size(), channels_), kLanes<T>); }
  T* patch_in(T* patches, std::int64_t lane) const {
    return patches == nullptr ? nullptr : patches + lane * patch_size();
  }

  std::int64_t channels_, pitch_;
  PositionTiles tiles_;
  Arena arena_;
  std::int64_t lanes_;
  T* scale_;
  T* shift_;

 private:
  std::int64_t positions_of_tile(int patches) const {
    const std::int64_t elements = kBatchNormTileBytes / static_cast<std::int64_t>(sizeof(T)) / patches;
    return std::max(elements / channels_ / kLanes<T>, std::int64_t{1}) * kLanes<T>;
  }
};

/// to = factor*from [+ residual]; `to` may be `from`.
template <class Major, class T>
void multiply(Patch<const T> from, T factor, Patch<const T> residual, Extent extent, Patch<T> to) {
  for_each_vector<Major>(extent, [=](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
    auto result = hn::Mul(Major::load(Major::at(from, c, p), left), hn::Set(Tag<T>(), factor));
    if (residual.data != nullptr) result = hn::Add(result, Major::load(Major::at(residual, c, p), left));
    Major::store(result, Major::at(to, c, p), left);
  });
}

struct BatchNormApplyViews {
  ConstTensorView x, residual;
  TensorView out;

  BatchNormApplyViews(const BatchNormApplyArguments& arguments, bool join_images)
      : x(arguments.x), residual(arguments.residual), out(arguments.out) {
    join_all_rows(x, residual, out);
    if (join_images && !arguments.image_scale) join_all_images(x, residual, out);
  }
  bool channel_major() const { return all_contiguous(x, residual, out); }
};

template <class T, template <class> class Order>
class BatchNormApply : BatchNormPass<T, Order> {
 public:
  using Pass = BatchNormPass<T, Order>;
  using Major = Order<T>;

  BatchNormApply(const BatchNormApplyArguments& arguments, const BatchNormApplyViews& views, int threads,
                 void* workspace)
      : Pass(views.x, 3, threads, workspace), arguments_(arguments), views_(views) {
    if (!Major::is_readable(views.x)) x_ = this->take_patches(this->arena_);
    if (views.residual && !Major::is_readable(views.residual)) residual_ = this->take_patches(this->arena_);
    if (!Major::is_readable(views.out)) out_ = this->take_patches(this->arena_);
  }

  std::size_t workspace_bytes() const { return this->arena_.used(); }

  void run(const Execution& execution) const {
    const auto affine = this->affine(arguments_.scale, arguments_.shift, arguments_.activation);
    this->for_each_tile(execution, [&](const TilePart& part, std::int64_t, std::int64_t lane) {
      const bool in_place = Major::is_readable(views_.out);
      const auto x = read_patch<Major, T>(views_.x, part, Major::is_readable(views_.x), this->patch_in(x_, lane));
      const Patch<T> out = in_place ? patch_of<Major, T>(views_.out, part)
                                    : Patch<T>{this->patch_in(out_, lane), Major::pitch(part.positions, part.channels)};
      Patch<const T> residual;
      if (views_.residual) {
        residual = read_patch<Major, T>(views_.residual, part, Major::is_readable(views_.residual),
                                        this->patch_in(residual_, lane));
      }
      const Extent extent{part.positions, part.channels};
      if (arguments_.image_scale) {
        apply_epilogue<Major, T>(x, affine, {}, extent, out);
        multiply<Major, T>(out, value_or(arguments_.image_scale, part.image, T(1)), residual, extent, out);
      } else {
        apply_epilogue<Major, T>(x, affine, residual, extent, out);
      }
      if (!in_place) Major::store(out.data, views_.out, part);
    });
  }

 private:
  const BatchNormApplyArguments& arguments_;
  const BatchNormApplyViews& views_;
  T* x_ = nullptr;
  T* residual_ = nullptr;
  T* out_ = nullptr;
};

struct BatchNormReduceViews {
  ConstTensorView x, grad_y;
  TensorView grad;

  BatchNormReduceViews(const BatchNormReduceArguments& arguments, bool join_images)
      : x(arguments.x), grad_y(arguments.grad_y), grad(arguments.grad) {
    join_all_rows(x, grad_y, grad);
    if (join_images && !arguments.image_scale) join_all_images(x, grad_y, grad);
  }
  bool channel_major() const { return all_contiguous(x, grad_y, grad); }
};

template <class T, template <class> class Order>
class BatchNormReduce : BatchNormPass<T, Order> {
 public:
  using Pass = BatchNormPass<T, Order>;
  using Major = Order<T>;

  BatchNormReduce(const BatchNormReduceArguments& arguments, const BatchNormReduceViews& views, int threads,
                  void* workspace)
      : Pass(views.x, views.grad ? 3 : 2, threads, workspace),
        arguments_(arguments),
        views_(views),
        mean_(this->arena_.template take<T>(this->pitch_)),
        sum_grad_(this->arena_.template take<T>(this->tiles_.slices * this->pitch_)),
        sum_centered_(this->arena_.template take<T>(this->tiles_.slices * this->pitch_)) {
    if (!Major::is_readable(views.x)) x_ = this->take_patches(this->arena_);
    if (!Major::is_readable(views.grad_y)) grad_y_ = this->take_patches(this->arena_);
    if (views.grad && !Major::is_readable(views.grad)) grad_ = this->take_patches(this->arena_);
  }

  std::size_t workspace_bytes() const { return this->arena_.used(); }

  void run(const Execution& execution) const {
    const auto affine = this->affine(arguments_.scale, arguments_.shift, arguments_.activation);
    const GradientSums& sums = arguments_.sums;
    copy_channels(sums.mean, T(0), 0, this->channels_, 1, mean_);
    const std::int64_t pitch = this->pitch_, slices = this->tiles_.slices;
    std::fill_n(sum_grad_, slices * pitch, T(0));
    std::fill_n(sum_centered_, slices * pitch, T(0));
    this->for_each_tile(execution, [&](const TilePart& part, std::int64_t slice, std::int64_t lane) {
      const auto x = read_patch<Major, T>(views_.x, part, Major::is_readable(views_.x), this->patch_in(x_, lane));
      const auto grad_y =
          read_patch<Major, T>(views_.grad_y, part, Major::is_readable(views_.grad_y), this->patch_in(grad_y_, lane));
      SumVectors<T> tile_sums;
      if (sums) tile_sums = {mean_, sum_grad_ + slice * pitch, sum_centered_ + slice * pitch};
      const Extent extent{part.positions, part.channels};
      if (!views_.grad) return apply_activation_backward<Major, T>(grad_y, x, affine, tile_sums, extent);
      const bool in_place = Major::is_readable(views_.grad);
      const Patch<T> grad = in_place
                                ? patch_of<Major, T>(views_.grad, part)
                                : Patch<T>{this->patch_in(grad_, lane), Major::pitch(part.positions, part.channels)};
      multiply<Major, T>(grad_y, value_or(arguments_.image_scale, part.image, T(1)), {}, extent, grad);
      apply_activation_backward<Major, T>(grad, x, affine, tile_sums, extent);
      if (!in_place) Major::store(grad.data, views_.grad, part);
    });
    if (!sums) return;
    add_slices(sum_grad_, slices, pitch, this->channels_, static_cast<T*>(sums.grad.data));
    add_slices(sum_centered_, slices, pitch, this->channels_, static_cast<T*>(sums.grad_times_centered.data));
  }

 private:
  const BatchNormReduceArguments& arguments_;
  const BatchNormReduceViews& views_;
  T* mean_;
  T* sum_grad_;  ///< [slice][channels], likewise sum_centered_
  T* sum_centered_;
  T* x_ = nullptr;
  T* grad_y_ = nullptr;
  T* grad_ = nullptr;
};

/// A pass with the views that it looks through.
template <template <class, template <class> class> class Pass, class Views, class T, template <class> class Order>
struct WithViews {
  Views views;
  Pass<T, Order> pass;

  template <class Arguments>
  WithViews(const Arguments& arguments, int threads, void* workspace)
      : views(arguments, !Order<T>::kChannelMajor), pass(arguments, views, threads, workspace) {}
  std::size_t workspace_bytes() const { return pass.workspace_bytes(); }
  void run(const Execution& execution) const { pass.run(execution); }
};

template <template <class, template <class> class> class Pass, class Views, class Arguments>
Plan<Arguments> plan_with_views(const Arguments& arguments, int threads) {
  const bool channel_major = Views(arguments, false).channel_major();
  if (arguments.x.dtype == DataType::float64) {
    if (channel_major) return plan_of_pass<WithViews<Pass, Views, double, ChannelMajor>>(arguments, threads);
    return plan_of_pass<WithViews<Pass, Views, double, PositionMajor>>(arguments, threads);
  }
  if (channel_major) return plan_of_pass<WithViews<Pass, Views, float, ChannelMajor>>(arguments, threads);
  return plan_of_pass<WithViews<Pass, Views, float, PositionMajor>>(arguments, threads);
}

Plan<BatchNormApplyArguments> batch_norm_apply_plan(const BatchNormApplyArguments& arguments, int threads) {
  return plan_with_views<BatchNormApply, BatchNormApplyViews>(arguments, threads);
}

Plan<BatchNormReduceArguments> batch_norm_reduce_plan(const BatchNormReduceArguments& arguments, int threads) {
  return plan_with_views<BatchNormReduce, BatchNormReduceViews>(arguments, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(batch_norm_apply_plan);
HWY_EXPORT(batch_norm_reduce_plan);

template <class Arguments>
std::string why_not(const Arguments& arguments) {
  return needs_device(Device::cpu, arguments.x.device);
}

}  // namespace

Implementation<BatchNormApplyArguments> batch_norm_apply_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<BatchNormApplyArguments>,
      .plan = [](const BatchNormApplyArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(batch_norm_apply_plan)(arguments, threads); },
  };
}

Implementation<BatchNormReduceArguments> batch_norm_reduce_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<BatchNormReduceArguments>,
      .plan = [](const BatchNormReduceArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(batch_norm_reduce_plan)(arguments, threads); },
  };
}

}  // namespace fusedsc
#endif
