/// The backward pass of a pointwise convolution over tiles of positions: input and weight gradients from the same
/// loads.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_POINTWISE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_POINTWISE_BACKWARD_INL_H_
#undef FUSEDSC_COMMON_CPU_POINTWISE_BACKWARD_INL_H_
#else
#define FUSEDSC_COMMON_CPU_POINTWISE_BACKWARD_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <optional>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/common/cpu/gemm-inl.h"
#include "fusedsc/common/cpu/pointwise_plan-inl.h"
#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/common/cpu/seam-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// The tensors of a backward pass, rows and images joined as far as their strides allow.
struct PointwiseGradientViews {
  ConstTensorView x, grad_y, output, grad_add;
  TensorView grad_x;

  PointwiseGradientViews(const PointwiseBackwardArguments& arguments, bool join_images)
      : x(arguments.x),
        grad_y(arguments.grad_y),
        output(arguments.gradient_prologue.output),
        grad_add(arguments.grad_add),
        grad_x(arguments.grad_x) {
    join_all_rows(x, grad_y, output, grad_add, grad_x);
    if (join_images) join_all_images(x, grad_y, output, grad_add, grad_x);
  }
};

/// The per-channel vectors of the seams, and where the sums of one slice go.
template <class T>
struct PointwiseGradientVectors {
  AffineVectors<T> prologue;
  GradientVectors<T> gradient_prologue;
  SumVectors<T> sums;
  T* grad_bias = nullptr;
};

/// What a tile is asked for: the input gradient, the weight gradient, or both; `outputs` are the channels of grad_y
/// that the weight gradient is taken over.
struct PointwiseGradientTask {
  bool grad_x = false, grad_weight = false;
  Range outputs;
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

  /// Scratch patches for whatever cannot be used in place.
  PointwiseGradientTile(const PointwiseGradientViews& views, std::int64_t groups, std::int64_t positions,
                        const std::optional<PackedWeight<T>>& weight,
                        const std::optional<WeightGradient<T>>& grad_weight, Arena& arena)
      : views_(views), groups_(groups), weight_(weight), grad_weight_(grad_weight) {
    const std::int64_t channels = views.x.sizes[1], outputs = views.grad_y.sizes[1];
    grad_ = arena.take<T>(Major::size(positions, outputs));
    if (views.output) output_ = arena.take<T>(Major::size(positions, outputs));
    a_ = arena.take<T>(Major::size(positions, channels));
    raw_ = arena.take<T>(Major::size(positions, channels));
    if (views.grad_x) grad_x_ = arena.take<T>(Major::size(positions, channels));
    if (Major::kChannelMajor) {
      transposed_ = arena.take<T>(PositionMajor<T>::size(positions, std::min(channels, outputs)));
    }
  }

  /// `copy` of the weight gradient is written by the first tile and added to by the others.
  void run(const PositionTile& tile, const PointwiseGradientTask& task, const PointwiseGradientVectors<T>& vectors,
           std::int64_t copy, bool first, Prefetcher& prefetcher) {
    const TilePart in{.image = tile.image,
                      .row = tile.row,
                      .column = tile.column,
                      .positions = tile.count,
                      .channels = views_.x.sizes[1]};
    TilePart out = in;
    out.channel = task.outputs.begin;
    out.channels = task.outputs.size();
    const Patch<const T> grad = read_grad(out, task, vectors);
    if (vectors.grad_bias != nullptr) {
      add_channel_sums<Major, T>(grad, {tile.count, out.channels}, vectors.grad_bias + out.channel);
    }
    if (task.grad_weight) add_weight_gradient(grad, in, out, vectors.prologue, copy, first, prefetcher);
    if (task.grad_x) write_input_gradient(grad, in, vectors, prefetcher);
  }

  /// Queues what the next tile will touch.
  void prefetch(const PositionTile& tile, const PointwiseGradientTask& task, Prefetcher& prefetcher) const {
    TilePart part{.image = tile.image,
                  .row = tile.row,
                  .column = tile.column,
                  .positions = tile.count,
                  .channels = views_.x.sizes[1]};
    Major::prefetch(prefetcher, views_.x, part);
    if (task.grad_x) Major::prefetch(prefetcher, views_.grad_x, part);
    part.channel = task.outputs.begin;
    part.channels = task.outputs.size();
    Major::prefetch(prefetcher, views_.grad_y, part);
    if (views_.output) Major::prefetch(prefetcher, views_.output, part);
  }

  /// Steps of the products of a tile.
  std::int64_t steps(std::int64_t positions, const PointwiseGradientTask& task) const {
    const std::int64_t channels = views_.x.sizes[1] / groups_, outputs = task.outputs.size() / groups_;
    std::int64_t steps = 0;
    if (task.grad_weight) steps += gemm_steps(Gemm<T>{.rows = outputs, .columns = channels, .depth = positions});
    if (task.grad_x) steps += gemm_steps(Gemm<T>{.rows = positions, .columns = channels, .depth = outputs});
    return steps * groups_;
  }

 private:
  /// grad_y behind its prologue.
  Patch<const T> read_grad(const TilePart& out, const PointwiseGradientTask& task,
                           const PointwiseGradientVectors<T>& vectors) {
    const GradientVectors<T>& prologue = vectors.gradient_prologue;
    if (!prologue) {
      const bool vector_passes = vectors.grad_bias != nullptr;
      const bool in_place = (task.grad_x ? Major::is_operand(views_.grad_y, out) : Major::is_patch(views_.grad_y)) &&
                            (!vector_passes || Major::is_readable(views_.grad_y));
      return read_patch<Major, T>(views_.grad_y, out, in_place, grad_);
    }
    const Extent extent{out.positions, out.channels};
    const auto raw = read_patch<Major, T>(views_.grad_y, out, Major::is_readable(views_.grad_y), grad_);
    const auto output = read_patch<Major, T>(views_.output, out, Major::is_readable(views_.output), output_);
    const Patch<T> grad{grad_, Major::pitch(out.positions, out.channels)};
    const std::int64_t m = out.channel;
    apply_gradient_prologue<Major, T>(
        raw, output, {prologue.grad_scale + m, prologue.output_scale + m, prologue.offset + m, {}}, extent, grad);
    return grad;
  }

  void add_weight_gradient(const Patch<const T>& grad, const TilePart& in, const TilePart& out,
                           const AffineVectors<T>& prologue, std::int64_t copy, bool first, Prefetcher& prefetcher) {
    const std::int64_t channels = in.channels / groups_, outputs = out.channels / groups_;
    bool in_place = !prologue && Major::is_patch(views_.x);
    if (!Major::kChannelMajor) in_place = in_place && channels % kLanes<T> == 0;  // its lines are read in whole vectors
    const auto a = read_patch<Major, T>(views_.x, in, in_place, a_, prologue);
    Gemm<T> product{.depth = in.positions, .c_row = grad_weight_->pitch(), .accumulate = !first};
    if constexpr (Major::kChannelMajor) {
      const bool narrow_outputs = grad_weight_->transposed();
      const Patch<const T>& lines = narrow_outputs ? a : grad;
      const auto vectors = narrow_outputs ? transposed_patch(grad, in.positions, out.channels)
                                          : transposed_patch(a, in.positions, in.channels);
      product.rows = narrow_outputs ? channels : outputs;
      product.columns = narrow_outputs ? outputs : channels;
      product.a_row = lines.pitch;
      product.b_depth = vectors.pitch;
      for (std::int64_t g = 0; g < groups_; ++g) {
        product.a = lines.data + g * product.rows * lines.pitch;
        product.b = vectors.data + g * product.columns;
        product.c = weight_gradient(copy, g, out.channel);
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
        product.c = weight_gradient(copy, g, out.channel);
        gemm(product, prefetcher);
      }
    }
  }

  /// Where output channel `output` of the group has its weights' gradients.
  T* weight_gradient(std::int64_t copy, std::int64_t g, std::int64_t output) const {
    return grad_weight_->group(copy, g) + output * (grad_weight_->transposed() ? 1 : grad_weight_->pitch());
  }

  /// A channel-major patch as a position-major one.
  Patch<const T> transposed_patch(const Patch<const T>& from, std::int64_t positions, std::int64_t channels) {
    const std::int64_t pitch = PositionMajor<T>::pitch(positions, channels);
    transpose(from.data, from.pitch, transposed_, pitch, channels, positions);
    return {transposed_, pitch};
  }

  void write_input_gradient(const Patch<const T>& grad, const TilePart& in, const PointwiseGradientVectors<T>& vectors,
                            Prefetcher& prefetcher) {
    const bool vector_passes = vectors.prologue || views_.grad_add;
    const bool in_place = Major::is_readable(views_.grad_x) || (!vector_passes && Major::is_patch(views_.grad_x));
    const Patch<T> grad_x =
        in_place ? patch_of<Major, T>(views_.grad_x, in) : Patch<T>{grad_x_, Major::pitch(in.positions, in.channels)};
    multiply(grad, grad_x, in.positions, prefetcher);
    const Extent extent{in.positions, in.channels};
    if (vectors.prologue) {
      const auto raw = read_patch<Major, T>(views_.x, in, Major::is_readable(views_.x), raw_);
      apply_activation_backward<Major, T>(grad_x, raw, vectors.prologue, vectors.sums, extent);
    }
    if (views_.grad_add) {
      add_patch<Major, T>(read_patch<Major, T>(views_.grad_add, in, Major::is_readable(views_.grad_add), raw_), extent,
                          grad_x);
    }
    if (!in_place) Major::store(grad_x_, views_.grad_x, in);
  }

  void multiply(const Patch<const T>& grad, const Patch<T>& grad_x, std::int64_t positions, Prefetcher& prefetcher) {
    const std::int64_t channels = views_.x.sizes[1] / groups_, outputs = views_.grad_y.sizes[1] / groups_;
    for (std::int64_t g = 0; g < groups_; ++g) {
      Gemm<T> product{.depth = outputs, .c_row = grad_x.pitch};
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
  const std::optional<PackedWeight<T>>& weight_;
  const std::optional<WeightGradient<T>>& grad_weight_;
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
