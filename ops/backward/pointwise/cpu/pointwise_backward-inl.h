/// The backward pass of a pointwise convolution over tiles of positions: input and weight gradients from the same
/// loads.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_POINTWISE_CPU_POINTWISE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_POINTWISE_CPU_POINTWISE_BACKWARD_INL_H_
#undef FUSEDSC_BACKWARD_POINTWISE_CPU_POINTWISE_BACKWARD_INL_H_
#else
#define FUSEDSC_BACKWARD_POINTWISE_CPU_POINTWISE_BACKWARD_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <optional>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/forward/pointwise/cpu/gemm-inl.h"
#include "fusedsc/forward/pointwise/cpu/line_patch-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_fusion-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// What a tile is asked for: the input gradient, the weight gradient, or both. `channels` of x and `outputs` of grad_y
/// are what the weight gradient is taken over; the input gradient wants them all.
struct PointwiseGradientTask {
  bool grad_x = false, grad_weight = false;
  Range channels, outputs;
};

/// Position-major, with g and a the patches of grad_y and x behind their prologues:
///   grad_weight[m][c] += g[p][m] a[p][c], grad_x[p][c] = g[p][m] W[m][c].
/// Channel-major, where the weight gradient needs the narrower of the two transposed:
///   grad_weight[m][c] += g[m][p] a^T[p][c] or grad_weight^T[c][m] += a[c][p] g^T[p][m], grad_x[c][p] = W^T[c][m]
///   g[m][p].
template <class T, template <class> class Order>
class PointwiseGradientTile {
 public:
  using Major = Order<T>;

  /// Scratch patches for whatever cannot be used in place, of tiles of up to so many positions with all channels and,
  /// if there are such, of `window_positions` with those of the task `window`.
  PointwiseGradientTile(const PointwiseGradientViews& views, const ConstTensorView& weight, std::int64_t groups,
                        std::int64_t positions, std::int64_t window_positions, const PointwiseGradientTask& window,
                        const std::optional<WeightGradient<T>>& grad_weight, const GemmBlocks& blocks, Arena& arena)
      : views_(views), groups_(groups), grad_weight_(grad_weight), blocks_(blocks) {
    if (views.grad_x) {
      weight_.emplace(weight, groups, false,
                      Major::kChannelMajor ? PackedWeight<T>::Role::scalars : PackedWeight<T>::Role::vectors, arena,
                      blocks);
    }
    const std::int64_t channels = views.x.sizes[1], outputs = views.grad_y.sizes[1];
    const auto larger = [&](std::int64_t all, std::int64_t part) {
      return std::max(Major::size(positions, all), Major::size(window_positions, part));
    };
    grad_ = arena.take<T>(larger(outputs, window.outputs.size()));
    if (views.output) output_ = arena.take<T>(larger(outputs, window.outputs.size()));
    a_ = arena.take<T>(larger(channels, window.channels.size()));
    raw_ = arena.take<T>(Major::size(positions, channels));
    if (views.grad_x) grad_x_ = arena.take<T>(Major::size(positions, channels));
    if (Major::kChannelMajor) {
      transposed_ =
          arena.take<T>(PositionMajor<T>::size(std::max(positions, window_positions), std::min(channels, outputs)));
    }
  }

  /// To be called once, before an input gradient is asked for.
  void pack_weight() { weight_->pack({}); }

  /// `copy` of the weight gradient is written by the first tile and added to by the others.
  void run(const LineTile& tile, const PointwiseGradientTask& task, const PointwiseGradientVectors<T>& vectors,
           std::int64_t copy, bool first, Prefetcher& prefetcher) {
    const Patch<const T> grad = read_grad(tile, task, vectors);
    if (vectors.grad_bias != nullptr) {
      add_channel_sums<Major, T>(grad, {tile.positions(), task.outputs.size()}, vectors.grad_bias + task.outputs.begin);
    }
    Patch<T> activated;  // x behind its prologue, where the input gradient makes it in passing
    if (task.grad_x && task.grad_weight && vectors.prologue) {
      activated = {a_, Major::pitch(tile.positions(), task.channels.size())};
    }
    if (task.grad_x) write_input_gradient(grad, tile, vectors, activated, prefetcher);
    if (task.grad_weight) add_weight_gradient(grad, activated, tile, task, vectors.prologue, copy, first, prefetcher);
  }

  /// Queues what the next tile will touch.
  void prefetch(const LineTile& tile, const PointwiseGradientTask& task, Prefetcher& prefetcher) const {
    prefetch_lines<T>(prefetcher, views_.x, tile, task.channels);
    if (task.grad_x) prefetch_lines<T>(prefetcher, views_.grad_x, tile);
    prefetch_lines<T>(prefetcher, views_.grad_y, tile, task.outputs);
    if (views_.output) prefetch_lines<T>(prefetcher, views_.output, tile, task.outputs);
  }

  /// Steps of the products of a tile.
  std::int64_t steps(std::int64_t positions, const PointwiseGradientTask& task) const {
    const std::int64_t channels = task.channels.size() / groups_, outputs = task.outputs.size() / groups_;
    std::int64_t steps = 0;
    if (task.grad_weight)
      steps += gemm_steps(Gemm<T>{.rows = outputs, .columns = channels, .depth = positions, .blocks = blocks_});
    if (task.grad_x)
      steps += gemm_steps(Gemm<T>{.rows = positions, .columns = channels, .depth = outputs, .blocks = blocks_});
    return steps * groups_;
  }

 private:
  /// grad_y behind its prologue.
  Patch<const T> read_grad(const LineTile& tile, const PointwiseGradientTask& task,
                           const PointwiseGradientVectors<T>& vectors) {
    const GradientVectors<T>& prologue = vectors.gradient_prologue;
    if (!prologue) {
      const bool vector_passes = vectors.grad_bias != nullptr;
      const TilePart line = part_of_line(views_.grad_y, tile, 0, task.outputs);
      const bool in_place = (task.grad_x ? Major::is_operand(views_.grad_y, line) : Major::is_patch(views_.grad_y)) &&
                            (!vector_passes || Major::is_readable(views_.grad_y));
      return read_patch_of_lines<Major, T>(views_.grad_y, tile, task.outputs, in_place, grad_);
    }
    const Extent extent{tile.positions(), task.outputs.size()};
    const auto raw =
        read_patch_of_lines<Major, T>(views_.grad_y, tile, task.outputs, Major::is_readable(views_.grad_y), grad_);
    const auto output =
        read_patch_of_lines<Major, T>(views_.output, tile, task.outputs, Major::is_readable(views_.output), output_);
    const Patch<T> grad{grad_, Major::pitch(extent.positions, extent.channels)};
    const std::int64_t m = task.outputs.begin;
    apply_gradient_prologue<Major, T>(
        raw, output, {prologue.grad_scale + m, prologue.output_scale + m, prologue.offset + m, {}}, extent, grad);
    return grad;
  }

  void add_weight_gradient(const Patch<const T>& grad, const Patch<const T>& activated, const LineTile& tile,
                           const PointwiseGradientTask& task, AffineVectors<T> prologue, std::int64_t copy, bool first,
                           Prefetcher& prefetcher) {
    const std::int64_t positions = tile.positions();
    const std::int64_t channels = task.channels.size() / groups_, outputs = task.outputs.size() / groups_;
    if (prologue) {
      prologue.scale += task.channels.begin;
      prologue.shift += task.channels.begin;
    }
    bool in_place = !prologue && Major::is_patch(views_.x);
    if (!Major::kChannelMajor) in_place = in_place && channels % kLanes<T> == 0;  // its lines are read in whole vectors
    const auto a = activated.data != nullptr
                       ? activated
                       : read_patch_of_lines<Major, T>(views_.x, tile, task.channels, in_place, a_, prologue);
    Gemm<T> product{.depth = positions, .c_row = grad_weight_->pitch(), .accumulate = !first, .blocks = blocks_};
    if constexpr (Major::kChannelMajor) {
      const bool narrow_outputs = grad_weight_->transposed();
      const Patch<const T>& lines = narrow_outputs ? a : grad;
      const auto vectors = narrow_outputs ? transposed_patch(grad, positions, task.outputs.size())
                                          : transposed_patch(a, positions, task.channels.size());
      product.rows = narrow_outputs ? channels : outputs;
      product.columns = narrow_outputs ? outputs : channels;
      product.a_row = lines.pitch;
      product.b_depth = vectors.pitch;
      for (std::int64_t g = 0; g < groups_; ++g) {
        product.a = lines.data + g * product.rows * lines.pitch;
        product.b = vectors.data + g * product.columns;
        product.c = weight_gradient(copy, g, task);
        gemm(product, prefetcher);
      }
    } else {
      product.rows = outputs;
      product.columns = channels;
      product.a_row = 1;
      product.a_depth = grad.pitch;
      product.b_depth = a.pitch;
      for (std::int64_t g = 0; g < groups_; ++g) {
        product.a = grad.data + g * outputs;
        product.b = a.data + g * channels;
        product.c = weight_gradient(copy, g, task);
        gemm(product, prefetcher);
      }
    }
  }

  /// Where the task's part of a group's weight gradient begins.
  T* weight_gradient(std::int64_t copy, std::int64_t g, const PointwiseGradientTask& task) const {
    const bool transposed = grad_weight_->transposed();
    const std::int64_t line = transposed ? task.channels.begin : task.outputs.begin;
    const std::int64_t column = transposed ? task.outputs.begin : task.channels.begin;
    return grad_weight_->group(copy, g) + line * grad_weight_->pitch() + column;
  }

  /// A channel-major patch as a position-major one.
  Patch<const T> transposed_patch(const Patch<const T>& from, std::int64_t positions, std::int64_t channels) {
    const std::int64_t pitch = PositionMajor<T>::pitch(positions, channels);
    transpose(from.data, from.pitch, transposed_, pitch, channels, positions);
    return {transposed_, pitch};
  }

  /// What the prologue makes of a product: applied block by block while these are in the first-level cache.
  struct ActivationFinisher final : BlockFinisher {
    Patch<T> grad_x;
    Patch<const T> raw;
    Patch<T> activated;
    const PointwiseGradientVectors<T>& vectors;

    ActivationFinisher(const Patch<T>& grad_x_, const Patch<const T>& raw_, const Patch<T>& activated_,
                       const PointwiseGradientVectors<T>& vectors_)
        : grad_x(grad_x_), raw(raw_), activated(activated_), vectors(vectors_) {}

    /// Rows are positions, columns channels.
    void finish(const Range& rows, const Range& columns) const override {
      const auto part = [&](const auto& patch) {
        auto moved = patch;
        if (moved.data != nullptr) moved.data = Major::at(patch, columns.begin, rows.begin);
        return moved;
      };
      AffineVectors<T> affine = vectors.prologue;
      affine.scale += columns.begin;
      affine.shift += columns.begin;
      SumVectors<T> sums = vectors.sums;
      if (sums) sums = {sums.mean + columns.begin, sums.grad + columns.begin, sums.grad_times_centered + columns.begin};
      apply_activation_backward<Major, T>(part(grad_x), part(raw), affine, sums, {rows.size(), columns.size()},
                                          part(activated));
    }
  };

  void write_input_gradient(const Patch<const T>& grad, const LineTile& tile,
                            const PointwiseGradientVectors<T>& vectors, const Patch<T>& activated,
                            Prefetcher& prefetcher) {
    const bool vector_passes = vectors.prologue || views_.grad_add;
    const bool in_place =
        tile.lines == 1 && (Major::is_readable(views_.grad_x) || (!vector_passes && Major::is_patch(views_.grad_x)));
    const Extent extent{tile.positions(), views_.x.sizes[1]};
    const Range channels{0, extent.channels};
    const Patch<T> grad_x = in_place ? patch_of<Major, T>(views_.grad_x, part_of_line(views_.grad_x, tile, 0))
                                     : Patch<T>{grad_x_, Major::pitch(extent.positions, extent.channels)};
    if (vectors.prologue) {
      const auto raw = read_patch_of_lines<Major, T>(views_.x, tile, channels, Major::is_readable(views_.x), raw_);
      const ActivationFinisher finisher(grad_x, raw, activated, vectors);
      // Vectors of channels belong to one group only where there is only one.
      const bool by_blocks = !Major::kChannelMajor && groups_ == 1;
      multiply(grad, grad_x, extent.positions, by_blocks ? &finisher : nullptr, prefetcher);
      if (!by_blocks) finisher.finish({0, extent.positions}, channels);
    } else {
      multiply(grad, grad_x, extent.positions, nullptr, prefetcher);
    }
    if (views_.grad_add) {
      const auto addend =
          read_patch_of_lines<Major, T>(views_.grad_add, tile, channels, Major::is_readable(views_.grad_add), raw_);
      add_patch<Major, T>(addend, extent, grad_x);
    }
    if (!in_place) store_patch_of_lines<Major, T>(grad_x_, views_.grad_x, tile);
  }

  void multiply(const Patch<const T>& grad, const Patch<T>& grad_x, std::int64_t positions,
                const BlockFinisher* finisher, Prefetcher& prefetcher) {
    const std::int64_t channels = views_.x.sizes[1] / groups_, outputs = views_.grad_y.sizes[1] / groups_;
    for (std::int64_t g = 0; g < groups_; ++g) {
      Gemm<T> product{.depth = outputs, .c_row = grad_x.pitch, .finisher = finisher};
      if constexpr (Major::kChannelMajor) {
        product.rows = channels;
        product.columns = positions;
        weight_->set_scalars(g, false, product);
        product.b = grad.data + g * outputs * grad.pitch;
        product.b_depth = grad.pitch;
        product.c = grad_x.data + g * channels * grad_x.pitch;
      } else {
        product.rows = positions;
        product.columns = channels;
        product.a = grad.data + g * outputs;
        product.a_row = grad.pitch;
        weight_->set_vectors(g, product);
        product.c = grad_x.data + g * channels;
      }
      gemm(product, prefetcher);
    }
  }

  const PointwiseGradientViews& views_;
  std::int64_t groups_;
  std::optional<PackedWeight<T>> weight_;  ///< the lane's own
  const std::optional<WeightGradient<T>>& grad_weight_;
  GemmBlocks blocks_;
  T* grad_ = nullptr;
  T* output_ = nullptr;
  T* a_ = nullptr;
  T* raw_ = nullptr;
  T* grad_x_ = nullptr;
  T* transposed_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
